"""Which tenant a caller's key belongs to, kept in memory and refreshed from Redis.

Requests never wait for Redis to be known: they are looked up in the last complete copy. A change in Redis is
seen within a second. When Redis lost its data the copy is written back, so a key that was valid stays valid.
Runs in the ticker's loop; `tenant_of` may be called from any thread.
"""

import hashlib
from collections.abc import Iterable, Mapping
from typing import Final

from services.permits.errors import Unavailable
from services.permits.model import KeyVersion
from services.permits.store import Store

# A change is to be seen within a second; looking costs two small reads.
REFRESH_S: Final = 0.5
# Even when the version looks the same: somebody may have edited a value by hand.
RELOAD_EVERY: Final = 30
# Keys whose tenant is remembered for the next request: to hash one is a thirtieth of a request's CPU.
REMEMBERED_MAX: Final = 1_024

# Before the name of a tenant: the field that says since when it exists; empty: it was removed.
_NOTE: Final = "#tenant:"


class Directory:
    """Key hash -> tenant."""

    def __init__(self, store: Store, seeds: Mapping[str, str], tenants: Iterable[str] = ()) -> None:
        """`seeds` are the config file's hashes, written where Redis has no value; `tenants` its tenants."""
        self._store = store
        self._seeds = dict(seeds)
        self._named = {*seeds.values(), *tenants}
        # Key hash -> tenant as last read, and the keys that came since with theirs: forgotten with that copy.
        # Replaced as a whole: of an older copy nothing is remembered beside a newer one.
        self._copy: tuple[Mapping[str, str], dict[str, str]] | None = None
        self._version: KeyVersion | None = None
        self._age = 0

    def tenant_of(self, key: str) -> str | None:
        """Return the key's tenant or None; raise Unavailable before the first copy was read."""
        if self._copy is None:
            raise Unavailable("the keys have not been read from Redis yet")
        tenants, remembered = self._copy
        if (tenant := remembered.get(key)) is None:
            # Looked up by hash: how long that takes says nothing about the key.
            tenant = tenants.get(hashlib.sha256(key.encode()).hexdigest()) or None
            if tenant is not None:
                if len(remembered) >= REMEMBERED_MAX:
                    remembered.clear()
                remembered[key] = tenant
        return tenant

    @property
    def known(self) -> bool:
        """Whether the keys have been read at all."""
        return self._copy is not None

    def tenants(self) -> list[str]:
        """Return the names of all tenants that have a key."""
        return sorted(_named(self._copy[0] if self._copy else {}))

    async def refresh(self) -> None:
        """Bring the copy up to date, or Redis, when Redis lost what this copy still has."""
        version = await self._store.key_version()
        if self._version is None or version.epoch != self._version.epoch:
            await self._seed()
            version = await self._store.key_version()
        elif version == self._version and self._age < RELOAD_EVERY:
            self._age += 1
            return
        copied, tenants = await self._store.key_copy()
        # Lost since we looked: what we have is the better copy, and the next look writes it back.
        if copied.epoch and copied.epoch == version.epoch:
            self._version, self._copy, self._age = copied, (tenants, {}), 0

    async def _seed(self) -> None:
        if self._copy and self._version:
            await self._store.seed_keys(self._copy[0], revision=self._version.revision)
        await self._store.seed_keys(self._seeds)
        _, facts = await self._store.key_copy()
        # A tenant that was removed stays so, whatever a file says; see lua/set_tenant.lua.
        names = self._named | _named(facts)
        await self._store.add_tenants(sorted(name for name in names if facts.get(_NOTE + name) != ""))


def _named(facts: Mapping[str, str]) -> set[str]:
    """Return the tenants that have a key or a note of their own."""
    noted = {field.removeprefix(_NOTE) for field, value in facts.items() if field.startswith(_NOTE) and value}
    return noted | {tenant for field, tenant in facts.items() if tenant and not field.startswith("#")}
