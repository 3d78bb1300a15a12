"""Redis behind TLS, and with a user who may do no more than Tenure needs."""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
from typing import TYPE_CHECKING, Any, Final

import pytest

from services.permits.admin import Admin
from services.permits.connect import connect
from services.permits.errors import Unusable
from services.permits.probe import commands, probe
from services.permits.store import Store
from tests.nodes.places import LONG, Eye, looking_at
from tests.permits.scene import a_gate, begin, demand
from tests.support.certificates import Certificates, make_certificates
from tests.support.config_file import write_config
from tests.support.processes import ROOT
from tests.support.redis_server import RedisServer, free_port
from tests.support.rig import rig
from tests.support.sentinels import Sentinels
from tests.support.streams import Streams
from tests.support.waiting import wait_until
from tests.topologies.held import BUDGETS, RUNNING, doctor

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.support.scripted_engine import ScriptedEngine

    SpareRedis = Callable[..., RedisServer]

pytestmark = pytest.mark.timeout(180)

# What the doctor would like to know and does without.
OPTIONAL: Final = {"config|get"}


@pytest.fixture
def certificates(tmp_path: Path) -> Certificates:
    return make_certificates(tmp_path)


def documented_rules() -> list[str]:
    """Return the rules of the user in README.md."""
    found = re.search(r"ACL SETUSER tenure (on [^`]*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert found is not None
    return found.group(1).replace("\\\n", " ").split()


def refusals(server: RedisServer) -> set[str]:
    """Return what Redis refused somebody for lack of a right."""
    entries: list[dict[str, Any]] = server.cli("ACL", "LOG")
    return {str(entry["object"]) for entry in entries} - OPTIONAL


def tls_server(spare_redis: SpareRedis, certificates: Certificates) -> tuple[RedisServer, str]:
    """Start a server that speaks nothing but TLS over TCP; return it and its address."""
    port = free_port()
    try:
        server = spare_redis("--port", "0", "--tls-port", str(port), *certificates.server_options())
    except RuntimeError as error:
        pytest.skip(f"this redis-server has no TLS: {error}")
    return server, f"rediss://127.0.0.1:{port}/0?ssl_ca_certs={certificates.ca}"


async def tenure(config: Path, *words: str) -> str:
    """Run a command, which must succeed, and return what it printed."""
    command = [sys.executable, "-m", "services.cli", *words, "--config", str(config)]
    done = await asyncio.to_thread(
        subprocess.run, command, cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


async def test_gateways_reaper_and_commands_work_over_tls(
    spare_redis: SpareRedis, certificates: Certificates, engine: ScriptedEngine, tmp_path: Path
) -> None:
    server, url = tls_server(spare_redis, certificates)
    engine.answer = LONG
    async with rig(tmp_path, url, engines=[engine.url], gateways=2, reapers=1) as replicas:
        with Streams() as streams:
            for gateway in replicas.urls:
                await streams.running(gateway)
            assert server.cli("ZCARD", "tenure:{demo}:pool:total") == 2
            assert "2" in await tenure(replicas.configs[0], "fleets")
            found = await doctor(replicas.configs[0])
            assert not [finding for finding in found.values() if finding["level"] == "problem"]
        async with looking_at(replicas.configs[0]) as eye:
            await eye.see(0, "every place goes back")


async def test_a_server_that_nobody_vouches_for_is_not_spoken_to(
    spare_redis: SpareRedis, certificates: Certificates, tmp_path: Path
) -> None:
    """Without the authority's certificate, and for a name that the server's does not have."""
    _, url = tls_server(spare_redis, certificates)
    plain = url.partition("?")[0]
    for bad in (plain, url.replace("127.0.0.1", "localhost")):

        async def doubted(bad: str = bad) -> bool:
            found = (await doctor(write_config(tmp_path, bad, ["http://127.0.0.1:1"])))["redis.reachable"]
            assert found["level"] == "problem"
            # On a busy machine the greeting may take longer than a connection is given.
            return "certificate" in found["detail"]

        await wait_until(doubted, "the certificate is what is wrong", 40)
    found = await doctor(
        write_config(tmp_path, f"{plain}?ssl_cert_reqs=none&ssl_check_hostname=false", ["http://127.0.0.1:1"])
    )
    assert found["redis.reachable"]["level"] == "ok"


@pytest.mark.parametrize("options", ["ssl_ca_certs=/none.pem", "no_such=1"])
async def test_options_that_cannot_work_end_the_start_with_one_line(options: str) -> None:
    with pytest.raises(Unusable, match=r"^redis\.url: [^\n]+$"):
        async with a_gate(f"rediss://127.0.0.1:1/0?{options}"):
            pass


async def test_sentinels_and_their_servers_may_speak_tls_only(
    spare_redis: SpareRedis, certificates: Certificates
) -> None:
    tls_server(spare_redis, certificates)
    with Sentinels(certificates=certificates) as started:
        await begin(started.url)
        async with a_gate(started.url) as gate:
            await wait_until(lambda: gate.ready()[0], "it is ready", 20)
            async with gate.hold(demand()):
                assert started.primary().cli("ZCARD", "tenure:{f}:pool:total") == 1


def test_the_documented_user_has_exactly_the_commands_that_are_sent() -> None:
    rules = documented_rules()
    assert {rule[1:] for rule in rules if rule.startswith("+")} == {name.lower() for name in commands()}
    assert {rule for rule in rules if rule[0] not in "+>"} == {"on", "~tenure:*", "&tenure:*"}


async def test_everything_works_for_the_documented_user(
    spare_redis: SpareRedis, engine: ScriptedEngine, tmp_path: Path
) -> None:
    server = spare_redis()
    server.cli("ACL", "SETUSER", "tenure", *documented_rules())
    password = next(rule[1:] for rule in documented_rules() if rule.startswith(">"))
    server.cli("ACL", "SETUSER", "tenure", f">{password}")
    url = server.url.replace("redis://", f"redis://tenure:{password}@")
    engine.answer = RUNNING
    budgets = {**BUDGETS, "queue_ms": 60000}
    limits = {"total": 2, "cold": 2}
    async with rig(
        tmp_path, url, engines=[engine.url], gateways=2, reapers=1, fleet=limits, budgets=budgets
    ) as replicas:
        config = replicas.configs[0]
        with Streams() as streams:
            running = await streams.running(replicas.urls[0], 2)
            waiting = await streams.waiting(replicas.urls[1])
            async with looking_at(config) as eye:
                await eye.see(2, "two run")
                await wait_for_line(eye, 1)
                await administer_everything(url, running[0].headers["tenure-lease"])
                assert await waiting[0].first_token() is not None
                found = await doctor(config)
                assert not [finding for finding in found.values() if finding["level"] == "problem"]
                replicas.gateways[0].kill9()
                await eye.see(1, "the reaper takes back what the dead one held", 10)
    assert refusals(server) == set()


async def administer_everything(url: str, lease: str) -> None:
    """Call all that the commands call; they themselves would take a minute to start."""
    client = connect(url)
    try:
        admin = Admin(Store(client), who="ann")
        await admin.put_tenant("new", weight=2, quotas={"demo": 1})
        key = await admin.add_key("new")
        assert [row.key_id for row in (await admin.tenant("new")).keys] == [key.key_id]
        await admin.revoke_key("new", key.key_id)
        await admin.delete_tenant("new")
        await admin.set_limits("demo", {"line_max": 9})
        assert [row.gateway for row in await admin.gateways()] == ["g1", "g2"]
        assert len((await admin.leases("demo")).items) == 2
        assert len(await admin.line("demo")) == 1
        assert await admin.newest_events()
        assert (await admin.events("demo")).items
        await admin.revoke(lease)
    finally:
        await client.aclose()


async def wait_for_line(eye: Eye, count: int) -> None:
    async def reached() -> bool:
        return (await eye.counts()).waiting == count

    await wait_until(reached, f"{count} in line")


@pytest.mark.parametrize(
    ("lacks", "named"),
    [
        (("-evalsha",), "evalsha"),
        (("-eval",), "eval"),
        (("-zadd", "-ssubscribe"), "ssubscribe, zadd"),
        (("resetchannels",), "spublish, ssubscribe"),
    ],
)
async def test_a_user_who_may_too_little_is_told_what_is_missing_at_the_start(
    spare_redis: SpareRedis, lacks: tuple[str, ...], named: str
) -> None:
    server = spare_redis()
    server.cli("ACL", "SETUSER", "weak", "on", ">pw", "~tenure:*", "&tenure:*", "+@all", *lacks)
    with pytest.raises(Unusable, match=rf"^redis\.url: this user may not use {named} on keys .*ACL SETUSER"):
        async with a_gate(server.url.replace("redis://", "redis://weak:pw@")):
            pass


async def test_scripts_are_sent_as_text_to_a_server_that_forgot_them(spare_redis: SpareRedis) -> None:
    """Nobody needs the right to SCRIPT LOAD."""
    server = spare_redis()
    server.cli("ACL", "SETUSER", "tenure", *documented_rules(), ">pw")
    client = connect(server.url.replace("redis://", "redis://tenure:pw@"))
    try:
        await probe(client)
        server.cli("SCRIPT", "FLUSH")
        store = Store(client)
        await store.set_limits("f", {"total": 1}, who="test", learning_ms=0)
        assert (await store.limits("f"))["total"] == 1
    finally:
        await client.aclose()
    assert "cmdstat_script|load" not in server.cli("INFO", "commandstats")
