"""The names that certificates are about: SPIFFE ids of accounts (ca.md 0, 5.4). An id is one opaque value from the
request to the certificate. Must not join, split, decode or change one."""

from __future__ import annotations

import re

from ambientd.index.pods import AccountRef

_LABEL = "[a-z0-9](?:[-a-z0-9]{0,61}[a-z0-9])?"
# Of a subdomain, Kubernetes limits the whole, and no part.
_PART = "[a-z0-9](?:[-a-z0-9]*[a-z0-9])?"
# Without a comma, blank, percent sign or @, an id cannot smuggle a second name into a list of names (ca.md 5.4).
_ID = re.compile(rf"spiffe://([A-Za-z0-9._-]{{1,255}})/ns/({_LABEL})/sa/({_PART}(?:\.{_PART})*)")
_ACCOUNT_LIMIT = 253
_LIMIT = len("spiffe:///ns//sa/") + 255 + 63 + _ACCOUNT_LIMIT


def parse_identity(text: str) -> tuple[str, AccountRef] | None:
    """Trust domain and account of a SPIFFE id of an account; None: it is none (ca.md 5.4)."""
    if len(text) > _LIMIT:
        return None
    found = _ID.fullmatch(text)
    if found is None or len(found[3]) > _ACCOUNT_LIMIT:
        return None
    return found[1], AccountRef(found[2], found[3])
