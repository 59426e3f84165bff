"""What may go wrong between us and the API server, one class per mistake, each with one sentence that says what and
what to try. Errors of libraries are chained and never leave this room. Must not decide what follows."""

from __future__ import annotations


class ApiError(Exception):
    """A request that did not do what it was for."""

    def __init__(self, text: str, *, retry_after_s: float = 0.0) -> None:
        super().__init__(text)
        self.retry_after_s = retry_after_s
        """The server asks not to come back earlier, seconds; 0: it says nothing."""


class Misconfigured(ApiError):
    """The configuration or the credentials cannot be used as they are."""


class Unreachable(ApiError):
    """Nobody answered, or the answer broke off."""


class Distrusted(ApiError):
    """The certificate of the server is not one that we trust."""


class Unauthorized(ApiError):
    """401: the server does not know us."""


class Forbidden(ApiError):
    """403: the server knows us, and we may not."""


class NotFound(ApiError):
    """404: there is no such resource or object."""


class NotDefined(NotFound):
    """404, and the API server itself says that the object that was asked for does not exist."""


class Gone(ApiError):
    """410: what we ask to continue from is no longer kept."""


class Ahead(ApiError):
    """We ask to continue from a version that the server has not reached."""


class Busy(ApiError):
    """429, or another answer that says when to come back."""


class Refused(ApiError):
    """Any other answer that is none of success."""

    def __init__(self, text: str, *, status: int) -> None:
        super().__init__(text)
        self.status = status


class Garbled(ApiError):
    """An answer of success that is not what an API server says."""
