"""Tokens from a file, for a mesh without an API server (`--token-review static:FILE`): to try and to test the way over
TLS. Whoever can read the file can be any of its callers, so it is refused beside a real cluster (app.py). Must not say
a token in an error.

    tokens:
    - token: a-long-secret        # what the client sends as a bearer
      namespace: istio-system
      serviceAccount: ztunnel
      pod: ztunnel-a              # optional, as the two below: as in the manifest of the pod that holds the token
      uid: 7b0c3a1e
      node: node-a
"""

from __future__ import annotations

import hmac
from pathlib import Path

from ambientd.aside import read_file
from ambientd.resources.yaml_text import TextError, yaml_documents
from ambientd.xds.authentication import Denied, Refusal, Reviewed

_REQUIRED = ("token", "namespace", "serviceAccount")
_OPTIONAL = ("pod", "uid", "node")


class BadTokenFile(Exception):
    """A file that cannot be used; one line for the operator."""


class StaticTokens:
    """Tokens that are known from the start."""

    def __init__(self, known: dict[str, Reviewed]) -> None:
        self._known = [(token.encode(), reviewed) for token, reviewed in known.items()]

    async def review(self, token: str) -> Reviewed:
        """Raises Denied."""
        given = token.encode("utf-8", "surrogatepass")
        found = None
        for known, reviewed in self._known:
            # All are compared, so that the time tells nothing.
            if hmac.compare_digest(known, given):
                found = reviewed
        if found is None:
            raise Denied(Refusal.REFUSED, "it is not in the file of tokens")
        return found


def load_tokens(path: Path) -> StaticTokens:
    """Raises BadTokenFile."""
    try:
        documents = list(yaml_documents(read_file(path)))
    except OSError as error:
        raise BadTokenFile(f"{path}: cannot be read: {(error.strerror or str(error)).lower()}") from None
    except TextError as error:
        # The problem may quote the text, which may hold a token.
        raise BadTokenFile(f"{path}: cannot be read as YAML at line {error.line}") from None
    document = documents[0] if len(documents) == 1 else None
    fields = document.value if document is not None and isinstance(document.value, dict) else {}
    if document is None or not isinstance(fields.get("tokens"), list) or set(fields) != {"tokens"}:
        raise BadTokenFile(f"{path}: must have one field, tokens, with a list")
    known: dict[str, Reviewed] = {}
    for number, entry in enumerate(fields["tokens"]):
        where = f"{path}: tokens[{number}] at line {document.line_of(f'tokens[{number}]')}"
        token, reviewed = _entry(where, entry)
        if token in known:
            raise BadTokenFile(f"{where}: token must occur once, and was there before")
        known[token] = reviewed
    return StaticTokens(known)


def _entry(where: str, entry: object) -> tuple[str, Reviewed]:
    if not isinstance(entry, dict):
        raise BadTokenFile(f"{where} must be an object with {', '.join(_REQUIRED)}")
    for key, value in entry.items():
        if key not in (*_REQUIRED, *_OPTIONAL):
            # Its name is not told: it may be a token that stands in the wrong place.
            raise BadTokenFile(f"{where} must have no field but {', '.join((*_REQUIRED, *_OPTIONAL))}")
        if not isinstance(value, str) or not value.strip() or value != value.strip():
            raise BadTokenFile(f"{where}: {key} must be a text without blanks around it; put it in quotes")
    for key in _REQUIRED:
        if key not in entry:
            raise BadTokenFile(f"{where}: {key} must be there")
    return entry["token"], Reviewed(
        namespace=entry["namespace"],
        account=entry["serviceAccount"],
        pod_name=entry.get("pod", ""),
        pod_uid=entry.get("uid", ""),
        node=entry.get("node", ""),
    )
