"""Many streams of one test, closed with it: those that run, and those that wait for a place."""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

from tests.support.answers import Stream
from tests.support.client import Call, chat_body
from tests.support.config_file import key_of

if TYPE_CHECKING:
    from types import TracebackType

# A stream that has one token and stays until the test lets the engine finish it.
LONG = Stream(hold_after=1)


class Streams:
    """Opens streams at gateways by their URL, and closes all of them at the end of its block."""

    def __init__(self) -> None:
        """Begin with none."""
        self._calls: list[Call] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for call in self._calls:
            call.close()

    async def waiting(self, url: str, count: int = 1, *, tenant: str = "acme") -> list[Call]:
        """Send requests and wait for nothing."""
        calls = [await Call.start(url, key=key_of(tenant), body=chat_body()) for _ in range(count)]
        self._calls += calls
        return calls

    async def running(self, url: str, count: int = 1, *, tenant: str = "acme") -> list[Call]:
        """Send requests and return when each has had its first token."""
        calls = await self.waiting(url, count, tenant=tenant)
        for call in calls:
            assert await call.first_token() is not None, call.status
        return calls


async def end_cleanly(*calls: Call) -> None:
    """Read each to its end, which must be as framed."""
    for call in calls:
        if not call.status:
            await call.head()
        await call.rest()
        assert (call.status, call.ended) == (200, "clean")


async def refusal(url: str, tenant: str = "acme") -> tuple[int, str | None]:
    """Make one request and return (status, code) of its refusal; (200, None) when it is none."""
    with await Call.start(url, key=key_of(tenant), body=chat_body()) as call:
        status = await call.head()
        return status, None if status == 200 else await call.error_code()
