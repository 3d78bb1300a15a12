"""Runs scripts by the names in their headers. The verbs, with their types, are in `store.py`."""

import asyncio
import itertools
import secrets
from collections.abc import Mapping, Sequence
from typing import Any

from redis.exceptions import OutOfMemoryError, ReadOnlyError

from services.permits.clock import monotonic
from services.permits.connect import TROUBLE, Client
from services.permits.errors import OutOfMemory, Unavailable
from services.permits.events import Listener, Silent
from services.permits.keys import FleetKeys, SharedKeys
from services.permits.model import LeaseTimes
from services.permits.replies import read
from services.permits.scripts import Arg, Script, load


class ScriptCaller:
    """One Redis client with the scripts, the keys and the times that every call needs."""

    def __init__(
        self,
        client: Client,
        *,
        prefix: str = "tenure",
        times: LeaseTimes | None = None,
        listener: Listener | None = None,
    ) -> None:
        """Bind to a client of this event loop; loads the scripts from disk once per process."""
        self._client = client
        self._times = times or LeaseTimes()
        self._listener = listener or Silent()
        self._scripts: Mapping[str, Script] = load()
        # As text: each call would print them anew.
        self._fixed_args: dict[str, Arg] = {
            "tick_ms": str(self._times.tick_ms),
            "learning_ms": str(self._times.learning_ms),
            "ttl_ms": str(self._times.ttl_ms),
            "provisional_ms": str(self._times.provisional_ms),
        }
        self._nonces = secrets.token_hex(8)
        self._calls = itertools.count(1)
        self._prefix = prefix
        self._fleet_keys: dict[str, FleetKeys] = {}
        self._fixed_keys: dict[str, dict[str, str]] = {}
        self.shared = SharedKeys(prefix, clustered=client.clustered)

    def settled(self) -> "asyncio.Future[None]":
        """Return a future that is done once no script that was sent so far can still be carried out."""
        return self._client.pipe.settled()

    def keys(self, fleet: str) -> FleetKeys:
        """Return the key builder of a fleet."""
        try:
            return self._fleet_keys[fleet]
        except KeyError:
            return self._fleet_keys.setdefault(fleet, FleetKeys(self._prefix, fleet))

    def _named(self, fleet: str, **more: str) -> dict[str, str]:
        try:
            named = self._fixed_keys[fleet]
        except KeyError:
            keys = self.keys(fleet)
            named = self._fixed_keys[fleet] = {
                "meta": keys.meta,
                "limits": keys.limits,
                "total": keys.total,
                "cold": keys.cold,
                "gateways": keys.gateways,
                "events": keys.events,
                "waiting": keys.waiting,
                "draining": keys.draining,
            }
        return {**named, **more} if more else named

    async def _run(
        self, verb: str, keys: Mapping[str, str], args: Mapping[str, Arg], rest: Sequence[Arg]
    ) -> Any:  # noqa: ANN401
        """Run a script and return the value of its reply; raises Unavailable."""
        script = self._scripts[verb]
        # A nonce names at most one epoch, so each call brings its own.
        named = {**self._fixed_args, "nonce": f"{self._nonces}{next(self._calls):x}", **args}
        began_s = monotonic()
        try:
            reply = await self._client.pipe.run(script, *script.arrange(keys, named, rest))
        except TROUBLE as error:
            raise await self._explained(error) from error
        finally:
            self._listener.script(verb, monotonic() - began_s)
        return read(verb, reply)

    async def _plain(self, call: Any) -> Any:  # noqa: ANN401  (redis-py types its commands as sync-or-async)
        try:
            return await call
        except TROUBLE as error:
            raise await self._explained(error) from error

    async def _explained(self, error: Exception) -> Unavailable:
        """Return what an error of redis-py means to callers."""
        if isinstance(error, ReadOnlyError):
            # A primary that was demoted under our feet: its connections stay open and would say so for ever.
            await self._client.leave()
        kind = OutOfMemory if isinstance(error, OutOfMemoryError) else Unavailable
        return kind(f"{type(error).__name__}: {error}")
