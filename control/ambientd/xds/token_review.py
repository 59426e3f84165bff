"""Tokens as the API server knows them: TokenReview (ca.md 4.6). Must not remember anything, and must not let a token
into an error."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
from msgspec import Struct, field

from ambientd.ca.caller import CannotTell
from ambientd.kube.errors import ApiError, Refused
from ambientd.kube.turns import Urgency
from ambientd.xds.authentication import Denied, Refusal, Reviewed

if TYPE_CHECKING:
    from ambientd.kube.api import Api

PATH = "/apis/authentication.k8s.io/v1/tokenreviews"

_ACCOUNTS = "system:serviceaccounts"
_POD_NAME = "authentication.kubernetes.io/pod-name"
_POD_UID = "authentication.kubernetes.io/pod-uid"
_NODE_NAME = "authentication.kubernetes.io/node-name"
_ABOUT_THE_TOKEN = frozenset({400, 413, 422})
"""Statuses of an API server that does not even review what it was given."""


class _User(Struct):
    username: str = ""
    groups: list[str] | None = None
    extra: dict[str, list[str] | None] | None = None


class _Status(Struct):
    authenticated: bool = False
    error: str = ""
    user: _User = field(default_factory=_User)
    audiences: list[str] | None = None


class _Review(Struct):
    status: _Status


_REVIEW = msgspec.json.Decoder(_Review)


class TokenReviews:
    """An API server that is asked."""

    def __init__(self, api: Api, audiences: tuple[str, ...]) -> None:
        self._api = api
        self._audiences = audiences

    async def review(self, token: str) -> Reviewed:
        """Raises Denied, and CannotTell when the API server gives no answer."""
        try:
            raw = await self._api.send("POST", PATH, urgency=Urgency.CALLER, body=_request(token, self._audiences))
        except Refused as error:
            if error.status in _ABOUT_THE_TOKEN:
                raise Denied(Refusal.REFUSED, f"the API server does not review it (status {error.status})") from None
            raise CannotTell(f"the token could not be reviewed: status {error.status}") from None
        except ApiError as error:
            raise CannotTell(f"the token could not be reviewed: {_without(token, str(error))}") from None
        except UnicodeEncodeError:
            raise Denied(Refusal.REFUSED, "it is no text") from None
        return read_review(raw, token, self._audiences)


def _request(token: str, audiences: tuple[str, ...]) -> bytes:
    return msgspec.json.encode(
        {
            "apiVersion": "authentication.k8s.io/v1",
            "kind": "TokenReview",
            "spec": {"token": token, "audiences": audiences},
        }
    )


def read_review(raw: bytes, token: str, audiences: tuple[str, ...]) -> Reviewed:
    """What an answer means, in the order of ca.md 4.6 step 4. Raises Denied, and CannotTell for what is no answer."""
    try:
        status = _REVIEW.decode(raw).status
    except (msgspec.DecodeError, RecursionError):
        raise CannotTell("the API server's answer is no TokenReview") from None
    if status.error:
        raise Denied(Refusal.REFUSED, _without(token, status.error))
    if not status.authenticated:
        raise Denied(Refusal.REFUSED, "the API server does not know it")
    if _ACCOUNTS not in (status.user.groups or ()):
        raise Denied(Refusal.NO_ACCOUNT, f"its groups lack {_ACCOUNTS}")
    parts = status.user.username.split(":")
    if len(parts) != 4 or parts[:2] != ["system", "serviceaccount"] or not parts[2] or not parts[3]:
        raise Denied(Refusal.NO_ACCOUNT, f"its user is {status.user.username[:200]!r}")
    if status.audiences and not set(status.audiences) & set(audiences):
        raise Denied(Refusal.REFUSED, f"it is for other audiences than {', '.join(audiences)}")
    extra = status.user.extra or {}
    return Reviewed(
        namespace=parts[2],
        account=parts[3],
        pod_name=_first(extra, _POD_NAME),
        pod_uid=_first(extra, _POD_UID),
        node=_first(extra, _NODE_NAME),
    )


def _first(extra: dict[str, list[str] | None], key: str) -> str:
    values = extra.get(key)
    return values[0] if values else ""


def _without(token: str, text: str) -> str:
    """A text of somebody else, which might quote what it was given."""
    return " ".join(text.replace(token, "…").split())[:300]
