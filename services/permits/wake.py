"""Hears from Redis what became of this process's waiters and who was ended: one subscription per process.

A message only makes things quick. Each is also in the answer to the next tick, so losing one costs a tick.
"""

import asyncio
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

import structlog

from services.permits.connect import TROUBLE, Client
from services.permits.model import Cut, Granted
from services.permits.replies import wake_ups

RETRY_S: Final = (0.1, 2.0)
# A silent connection is looked at this often, so that one that died is replaced.
IDLE_S: Final = 5.0

log = structlog.get_logger(__name__)

Hear = Callable[[str, Iterable[tuple[str, Granted | Cut]]], None]


class WakeListener:
    """Listens until cancelled; `hear(fleet, news)` is called in this event loop."""

    def __init__(
        self,
        client: Client,
        channels: Mapping[str, str],
        hear: Hear,
        missed: Callable[[Iterable[str]], None],
    ) -> None:
        """`channels` maps channel -> fleet; `missed(fleets)` is called when messages may have been lost."""
        self._client = client
        self._channels = channels
        self._hear = hear
        self._missed = missed

    async def run(self) -> None:
        """Subscribe, and again after every failure, for ever."""
        pause_s = RETRY_S[0]
        while True:
            try:
                async with await self._client.ear() as subscription:
                    await subscription.ssubscribe(*self._channels)
                    # What was published while nobody listened is in the answer to a tick.
                    self._missed(self._channels.values())
                    pause_s = RETRY_S[0]
                    while True:
                        await self._take(await self._client.next_message(subscription, IDLE_S))
            except TROUBLE as error:
                log.info("wake_ups_interrupted", why=f"{type(error).__name__}: {error}")
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, RETRY_S[1])

    async def _take(self, message: dict[str, Any] | None) -> None:
        if message is None or message["type"] != "smessage":
            return
        try:
            news = list(wake_ups(message["data"]))
        except ValueError:
            # Anybody may publish; only scripts publish what we can read.
            log.warning("wake_up_unreadable", channel=message["channel"])
            return
        self._hear(self._channels[message["channel"]], news)
