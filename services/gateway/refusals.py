"""Saying no: from an error to status, code, Retry-After and OpenAI's envelope, in one total match.

`Tenure-Refused: CODE` tells our refusals from an engine's own errors, which pass through untouched.
"""

import random
from dataclasses import dataclass
from email.utils import formatdate
from typing import Final, Literal

import msgspec

from services.permits import errors
from services.permits.clock import monotonic
from services.permits.errors import RefusalCode, Refused, Unavailable

Code = (
    RefusalCode
    | Literal[
        "bad_request", "invalid_api_key", "forbidden", "unknown_model", "unknown_request",
        "request_too_large", "engine_unreachable", "engine_error", "first_token_timeout",
        "idle_timeout", "total_timeout", "not_found", "internal_error",
    ]
)  # fmt: skip

Reason = Literal[
    "completed", "client_disconnect", "user_stop", "client_stalled", "first_token_timeout",
    "idle_timeout", "total_timeout", "engine_error", "engine_unreachable", "lease_lost", "revoked",
    "shutdown", "internal_error",
]  # fmt: skip

STATUS: Final[dict[Code, int]] = {
    "bad_request": 400,
    "invalid_api_key": 401,
    "forbidden": 403,
    "unknown_model": 404,
    "unknown_request": 404,
    "not_found": 404,
    "request_too_large": 413,
    "tenant_quota": 429,
    "cold_pool_full": 429,
    "total_pool_full": 429,
    "line_full": 429,
    "queue_timeout": 429,
    "internal_error": 500,
    "engine_unreachable": 502,
    "engine_error": 502,
    "admission_unavailable": 503,
    "recovering": 503,
    "draining": 503,
    "first_token_timeout": 504,
    "idle_timeout": 504,
    "total_timeout": 504,
}
_RETRYABLE: Final = frozenset({429, 503})
_TYPES: Final = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}
RETRY_AFTER_MAX_S: Final = 60
# The first wait named before anything was measured, and where Redis or a shutdown is the reason.
_WAIT_S: Final = 2.0
# How far one measured hold moves the average: about the last ten requests count.
_EWMA_WEIGHT: Final = 0.1
# Turns lie closer together than places come free: whoever finds none is only refused again, and whole
# seconds make people come in bunches; a place that nobody came for is lost.
_TURN_SHARE: Final = 0.5
_SERVER_ERROR: Final = 500


class NotServed(Exception):
    """A request that gets our answer instead of an engine's.

    `close` asks for the connection to be closed after it, because the request was not read whole.
    """

    def __init__(self, code: Code, message: str, *, close: bool = False) -> None:
        """`message` goes to the caller: no key, no prompt, nothing of another tenant."""
        super().__init__(message)
        self.code: Code = code
        self.message = message
        self.close = close


@dataclass(frozen=True, slots=True)
class Refusal:
    """One refusal, ready to be sent."""

    status: int
    code: Code
    message: str
    retry_after_s: int | None = None
    close: bool = False

    @property
    def envelope(self) -> bytes:
        """OpenAI's error object as JSON."""
        kind = _TYPES.get(
            self.status, "server_error" if self.status >= _SERVER_ERROR else "invalid_request_error"
        )
        return msgspec.json.encode(
            {"error": {"message": self.message, "type": kind, "param": None, "code": self.code}}
        )

    def headers(self, body: bytes) -> list[tuple[bytes, bytes]]:
        """The head that goes with `body`."""
        headers = [
            (b"content-type", b"application/json"),
            (b"content-length", b"%d" % len(body)),
            (b"date", formatdate(usegmt=True).encode()),
            (b"tenure-refused", self.code.encode()),
        ]
        if self.retry_after_s is not None:
            headers.append((b"retry-after", b"%d" % self.retry_after_s))
        if self.close:
            headers.append((b"connection", b"close"))
        return headers


class Pace:
    """How fast one fleet frees places, measured: what Retry-After is computed from."""

    def __init__(self) -> None:
        """Start from a guess until the first request has ended."""
        self._hold_s = _WAIT_S
        self._turn_s = 0.0

    def held(self, seconds: float) -> None:
        """Take in how long one permit was held."""
        self._hold_s += _EWMA_WEIGHT * (seconds - self._hold_s)

    def wait_s(self, refused: Refused, *, gateways: int, total: int) -> float:
        """Return when to come back: behind those in line, and behind those this gateway sent away before.

        A pool that stays full frees a place once per hold and place: what is measured is the hold.

        Each refusal gets a turn of its own, as far apart as places come free over the whole fleet, so that
        those refused together neither return together nor leave places idle. Turns that nobody takes up cost
        nothing: they pass like time.
        """
        places = total if refused.pool == "line" else refused.limit
        gap_s = self._hold_s / max(1, places)
        now_s = monotonic()
        behind_line_s = now_s + gap_s * (refused.waiting + 1)
        turn_s = max(behind_line_s, self._turn_s + gap_s * max(1, gateways) * _TURN_SHARE)
        if turn_s - now_s > RETRY_AFTER_MAX_S:
            return RETRY_AFTER_MAX_S * random.uniform(0.5, 1.0)
        self._turn_s = turn_s
        return turn_s - now_s


def refusal_of(
    error: NotServed | Refused | Unavailable,
    pace: Pace | None = None,
    *,
    gateways: int = 1,
    total: int = 1,
) -> Refusal:
    """Turn any expected no into what the caller gets.

    `pace`, how many `gateways` live and the `total` limit are those of the fleet that was asked.
    """
    match error:
        case NotServed():
            return _refusal(error.code, error.message, _WAIT_S, close=error.close)
        case Refused(wait_ms=wait_ms) if wait_ms > 0:
            return _refusal(error.code, str(error), wait_ms / 1000)
        case Refused():
            wait_s = pace.wait_s(error, gateways=gateways, total=total) if pace and error.pool else _WAIT_S
            return _refusal(error.code, str(error), wait_s)
        case Unavailable():
            return _refusal(
                "admission_unavailable", "admission is unavailable: Redis cannot be reached", _WAIT_S
            )


def refusal_at_end(reason: Reason) -> Refusal | None:
    """Return what a caller that has not got a byte yet is told; None when nobody listens."""
    match reason:
        case "completed" | "client_disconnect" | "client_stalled":
            return None
        case "first_token_timeout" | "idle_timeout" | "total_timeout" | "engine_error" | "engine_unreachable":
            return _refusal(reason, _END_MESSAGES[reason], _WAIT_S)
        case "lease_lost":
            return _refusal("admission_unavailable", _END_MESSAGES[reason], _WAIT_S)
        case "shutdown":
            return _refusal("draining", _END_MESSAGES[reason], _WAIT_S, close=True)
        case "user_stop" | "revoked":
            return _refusal("forbidden", _END_MESSAGES[reason], _WAIT_S)
        case "internal_error":
            return _refusal("internal_error", _END_MESSAGES[reason], _WAIT_S)


def error_event(reason: Reason) -> bytes:
    """Return the one event that tells the reader of a broken stream why it ends; b"" if nobody reads."""
    refusal = refusal_at_end(reason)
    return b"data: " + refusal.envelope + b"\n\n" if refusal else b""


_END_MESSAGES: Final[dict[str, str]] = {
    "first_token_timeout": "the engine produced no token within first_token_ms",
    "idle_timeout": "the engine fell silent for longer than idle_ms",
    "total_timeout": "the request ran longer than total_ms",
    "engine_error": "the engine broke off",
    "engine_unreachable": "no engine of the fleet can be reached",
    "lease_lost": "the permit's lease was lost and the fleet's policy is to stop",
    "shutdown": "this gateway is shutting down",
    "user_stop": "the request was stopped",
    "revoked": "the permit was revoked",
    "internal_error": "the gateway failed; its log names the request",
}


def _refusal(code: Code, message: str, wait_s: float, *, close: bool = False) -> Refusal:
    status = STATUS[code]
    retry_after_s = spread(wait_s) if status in _RETRYABLE else None
    return Refusal(status, code, message, retry_after_s, close)


def spread(wait_s: float) -> int:
    """Return whole seconds around `wait_s`, so that those refused together do not return together."""
    return round(min(RETRY_AFTER_MAX_S, max(1.0, wait_s * random.uniform(0.8, 1.2))))


# A refusal code that the library gains must get a status here.
assert set(STATUS) >= errors.REFUSAL_CODES  # noqa: S101  (checked at import, in every test and start)
