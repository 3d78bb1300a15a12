"""What can end a request early.

Gone         the client left; nobody reads an answer
BadRequest   the request is answered with an error in OpenAI's envelope
"""

from __future__ import annotations


class Gone(Exception):
    """The client closed its connection."""


class BadRequest(Exception):
    """The request cannot be served as it is."""

    def __init__(
        self,
        message: str,
        *,
        status: int = 400,
        code: str = "bad_request",
        kind: str = "invalid_request_error",
    ) -> None:
        super().__init__(message)
        self.message = message
        self.status = status
        self.code = code
        self.kind = kind
