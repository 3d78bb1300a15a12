"""Keys of callers: known from memory, fresh within about a second, valid through the loss of Redis."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

import pytest

from services.permits import Unavailable
from services.permits.clock import monotonic
from services.permits.directory import REMEMBERED_MAX
from tests.permits.scene import a_gate
from tests.support.redis_shim import RedisShim
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from services.permits import Gate
    from tests.permits.scene import Seen
    from tests.support.redis_server import RedisServer

KEYS = "tenure:keys"


def hashed(key: str) -> str:
    return hashlib.sha256(key.encode()).hexdigest()


FILE = {hashed("sk-acme"): "acme", hashed("sk-other"): "other"}


def revoke(seen: Seen, key: str) -> None:
    """Do what an admin call does."""
    seen.client.hset(KEYS, hashed(key), "")
    seen.client.hincrby(KEYS, "#revision", 1)


async def test_a_key_belongs_to_its_tenant_and_no_other_key_to_anybody(url: str, seen: Seen) -> None:
    async with a_gate(url, keys=FILE) as gate:
        assert gate.tenant_of("sk-acme") == "acme"
        assert gate.tenant_of("sk-nobody") is None
        assert gate.tenant_of("#epoch") is None
        assert gate.tenant_of("") is None
        assert gate.tenants() == ["acme", "other"]
        assert seen.client.smembers("tenure:tenants") == {"acme", "other"}


async def test_a_new_key_is_seen_within_about_a_second(url: str, seen: Seen) -> None:
    async with a_gate(url, keys=FILE) as gate:
        seen.client.hset(KEYS, hashed("sk-new"), "acme")
        began_s = monotonic()
        await wait_until(lambda: gate.tenant_of("sk-new") == "acme", "the key is known", 3)
        assert monotonic() - began_s < 2


async def test_a_revoked_key_is_refused_within_about_a_second_and_stays_so(url: str, seen: Seen) -> None:
    async with a_gate(url, keys=FILE) as gate:
        assert gate.tenant_of("sk-acme") == "acme"
        revoke(seen, "sk-acme")
        began_s = monotonic()
        await wait_until(lambda: gate.tenant_of("sk-acme") is None, "the key is refused", 3)
        assert monotonic() - began_s < 2
    async with a_gate(url, keys=FILE) as restarted:
        assert restarted.tenant_of("sk-acme") is None, "an older file does not bring it back"
        assert restarted.tenants() == ["other"]


async def test_no_more_than_so_many_keys_are_remembered_and_none_that_is_nobodys(url: str) -> None:
    file = {hashed(f"sk-{number}"): f"t{number % 7}" for number in range(REMEMBERED_MAX + 50)}
    async with a_gate(url, keys=file) as gate:
        directory = gate._ticker.directory  # noqa: SLF001
        for number in (*range(REMEMBERED_MAX + 50), *range(50)):
            assert gate.tenant_of(f"sk-{number}") == f"t{number % 7}"
            assert gate.tenant_of(f"sk-none-{number}") is None
            assert directory._copy is not None  # noqa: SLF001
            _, remembered = directory._copy  # noqa: SLF001
            assert len(remembered) <= REMEMBERED_MAX
            assert f"sk-none-{number}" not in remembered


async def test_a_valid_key_stays_valid_while_redis_loses_everything(url: str, seen: Seen) -> None:
    """Also one that no file knows."""
    async with a_gate(url, keys=FILE) as gate:
        seen.client.hset(KEYS, hashed("sk-new"), "acme")
        await wait_until(lambda: gate.tenant_of("sk-new"), "the key is known", 3)
        seen.client.flushall()
        answers = set()

        def restored() -> bool:
            answers.add(gate.tenant_of("sk-new"))
            answers.add(gate.tenant_of("sk-acme"))
            return bool(seen.client.hget(KEYS, hashed("sk-new")) == "acme")

        await wait_until(restored, "Redis knows it again", 4)
        await wait_until(lambda: seen.client.hlen(KEYS) >= 4, "and the others")
        assert answers == {"acme"}


async def test_a_revoked_key_is_not_revived_by_the_file_after_a_loss(url: str, seen: Seen) -> None:
    async with a_gate(url, keys=FILE) as gate:
        revoke(seen, "sk-acme")
        await wait_until(lambda: gate.tenant_of("sk-acme") is None, "the key is refused", 3)
        seen.client.flushall()
        async with a_gate(url, "g2", keys=FILE) as newcomer:
            await wait_until(lambda: seen.client.hget(KEYS, "#revision") == "1", "the memory is back", 4)
            assert seen.client.hget(KEYS, hashed("sk-acme")) == ""
            await wait_until(lambda: newcomer.tenant_of("sk-acme") is None, "all gateways refuse it", 3)
            assert gate.tenant_of("sk-acme") is None
            assert gate.tenant_of("sk-other") == "other"


async def test_keys_are_known_while_redis_is_away(shim: RedisShim) -> None:
    async with a_gate(shim.url, keys=FILE) as gate:
        shim.refuse()
        await wait_until(lambda: not gate.ready()[0], "the gate noticed")
        assert gate.tenant_of("sk-acme") == "acme"


async def test_before_redis_was_ever_read_nobody_is_told_that_a_key_is_wrong(
    redis_server: RedisServer, redis_url: str
) -> None:
    with RedisShim(redis_server.port) as shim:
        shim.refuse()
        async with a_gate(shim.url, keys=FILE) as gate:
            with pytest.raises(Unavailable):
                gate.tenant_of("sk-acme")
            assert gate.tenants() == []
            shim.healthy()
            await wait_until(lambda: _known(gate), "the keys are read", 4)


def _known(gate: Gate) -> bool:
    try:
        return gate.tenant_of("sk-acme") == "acme"
    except Unavailable:
        return False
