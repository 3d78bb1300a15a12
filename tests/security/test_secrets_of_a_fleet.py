"""No secret of a fleet is in what its processes write, answer, keep or show, whatever goes wrong."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

import pytest

from tests.support.answers import Dies, Stream, as_asked
from tests.support.client import CHAT, Call, HungUpError, chat_body, fetch
from tests.support.config_file import key_of, write_config
from tests.support.processes import Process, clean_environment
from tests.support.redis_server import free_port
from tests.support.rig import Rig, rig
from tests.support.scripted_engine import ScriptedEngine
from tests.support.secrets import assert_no_secret, redis_content
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.support.redis_server import RedisServer

pytestmark = pytest.mark.timeout(180)

KEY: Final = key_of("acme")
WRONG: Final = "sk-wrong-0123456789-secret"
ENGINE_KEY: Final = "engine-key-9876543210"
ADMIN_TOKEN: Final = "admin-token-abcdefghij"
# Of characters that an address must quote.
REDIS_PASSWORD: Final = "redis-pass/word+0123?456"
PROMPT: Final = "a prompt that must be in no log"
SECRETS: Final = (KEY, WRONG, ENGINE_KEY, ADMIN_TOKEN, REDIS_PASSWORD, PROMPT)


@pytest.fixture
def guarded_redis(spare_redis: Callable[..., RedisServer]) -> RedisServer:
    """A server with a user of the product's own; the tests come in by the unix socket."""
    return spare_redis("--user", "tenure", "on", f">{REDIS_PASSWORD}", "~*", "&*", "+@all")


def guarded_url(server: RedisServer) -> str:
    return f"redis://tenure:{quote(REDIS_PASSWORD, safe='')}@127.0.0.1:{server.port}/0"


async def tell(url: str, **request: Any) -> bytes:
    """Make a call and return all that comes back, headers and body."""
    with await Call.start(url, **request) as call:
        try:
            await call.head()
            return repr(call.headers).encode() + await call.rest()
        except HungUpError as hung_up:
            return repr(hung_up).encode()


async def use(fleet: Rig, engine: ScriptedEngine) -> list[bytes]:
    """Use every secret where it belongs and where it does not; return all answers."""
    said = []
    for script in (as_asked, Dies("before_head"), Stream(ending="torn")):
        engine.answer = script
        for key in (KEY, WRONG, ADMIN_TOKEN, ENGINE_KEY, REDIS_PASSWORD):
            for request in (
                {"key": key},
                {"headers": [("x-api-key", key)]},
                {"headers": [("authorization", f"Basic {key}")]},
                {"path": f"{CHAT}?api_key={quote(key)}&token={quote(key)}", "key": KEY},
                {"path": f"/v1/{quote(key)}", "key": KEY},
                {"method": "GET", "path": f"/admin/v1/fleets?token={quote(key)}", "key": key},
                {"path": "/admin/v1/tenants/acme", "method": "PUT", "key": ADMIN_TOKEN, "body": {"x": key}},
            ):
                asked: dict[str, Any] = {"path": CHAT, "body": chat_body(prompt=PROMPT), **request}
                said.append(await tell(fleet.urls[0], **asked))
    engine.answer = as_asked
    for path in ("/metrics", "/healthz", "/readyz", "/openapi.json", "/admin/v1/gateways"):
        said += [await tell(url, method="GET", path=path, key=ADMIN_TOKEN) for url in fleet.urls]
    return said


async def command(folder: Path, *words: str, **environ: str) -> bytes:
    """Run a `tenure` command to its end and return all that it wrote."""
    done = await asyncio.to_thread(
        subprocess.run,
        [sys.executable, *words],
        cwd=folder,
        env={**clean_environment(), **environ},
        capture_output=True,
        check=False,
        timeout=60,
    )
    assert b"Traceback" not in done.stderr, done.stderr
    return bytes(done.stdout + done.stderr)


LOOKS: Final = ("fleets", "leases", "line", "gateways", "events", "doctor")


async def look(folder: Path, config: Path) -> list[bytes]:
    """Return what the commands that only look say, for people and for programs."""
    words = ("-m", "services.cli")
    ways = [(word, *more) for word in LOOKS for more in ((), ("--json",))]
    return [await command(folder, *words, *way, "--config", str(config)) for way in ways]


async def test_no_secret_leaves_by_logs_answers_metrics_redis_or_commands(
    guarded_redis: RedisServer, tmp_path: Path
) -> None:
    """What is written down is copied, shipped and read by many."""
    with ScriptedEngine() as engine, guarded_redis.monitor() as commands:
        behind = {"url": engine.url, "name": "e1", "api_key": ENGINE_KEY}
        url = guarded_url(guarded_redis)
        config: dict[str, Any] = {"admin": {"token": ADMIN_TOKEN}}
        async with rig(tmp_path, url, engines=[behind], gateways=2, reapers=1, **config) as fleet:
            said = await use(fleet, engine)
            said += await look(tmp_path, fleet.configs[0])
            made = await fetch(fleet.urls[0], "/admin/v1/tenants/acme/keys", method="POST", key=ADMIN_TOKEN)
            new_key = str(json.loads(made.body)["key"])
            assert (await fetch(fleet.urls[0], "/v1/models", key=KEY)).status == 200
            # Its password is changed under the processes, and its sessions end: they are refused from now on.
            guarded_redis.cli("ACL", "SETUSER", "tenure", "resetpass", ">another")
            guarded_redis.cli("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
            said.append(await tell(fleet.urls[0], path=CHAT, key=KEY, body=chat_body(prompt=PROMPT)))
            said += await look(tmp_path, fleet.configs[0])
            guarded_redis.cli("ACL", "SETUSER", "tenure", "resetpass", f">{REDIS_PASSWORD}")
            for replica in fleet.gateways:
                await replica.ready()
            shown = [shown_of(process.pid, "cmdline") for process in (*fleet.gateways, *fleet.reapers)]
            content = redis_content(guarded_redis)
    for answer in said:
        assert_no_secret("what is said", answer, set(SECRETS) - {KEY})
    for line in shown:
        assert_no_secret("a command line", line, SECRETS)
    everything = (*SECRETS, new_key)
    assert_no_secret("Redis", content, everything)
    assert b"EVALSHA" in commands
    assert_no_secret("a command sent to Redis", bytes(commands), everything)
    for log in tmp_path.glob("*.log"):
        assert_no_secret(log.name, log.read_bytes(), everything)


def shown_of(pid: int, name: str) -> bytes:
    """Return a page that the kernel shows of a process."""
    with open(f"/proc/{pid}/{name}", "rb") as page:  # noqa: PTH123 - no file of the disk
        return page.read()


# Each one wrong in a way of its own, with a secret at the very place.
BAD: Final = {
    "redis_port": f'redis.url = "redis://tenure:{REDIS_PASSWORD}@127.0.0.1:port/0"',
    "redis_scheme": f'redis.url = "http://tenure:{REDIS_PASSWORD}@127.0.0.1/0"',
    "redis_database": 'redis.url = "redis://tenure:PASSWORD@127.0.0.1:1/zero"',
    "redis_no_host": f'redis.url = "redis://:{quote(REDIS_PASSWORD, safe="")}@/0"',
    "redis_unknown_key": f'redis.password = "{REDIS_PASSWORD}"',
    "redis_away": 'redis.url = "redis://tenure:PASSWORD@127.0.0.1:1/0"',
    "redis_quoted_badly": f'redis.url = "redis://tenure:%zz{REDIS_PASSWORD}@127.0.0.1:x/0"',
    "token_of_two_words": f'admin.token = "{ADMIN_TOKEN} {ADMIN_TOKEN}"',
    "token_not_ascii": f'admin.token = "{ADMIN_TOKEN}é"',
    "token_is_a_list": f'admin.token = ["{ADMIN_TOKEN}"]',
    "token_is_a_table": f'admin.token = {{value = "{ADMIN_TOKEN}"}}',
    "token_unknown_key": f'admin.tokn = "{ADMIN_TOKEN}"',
    "token_not_closed": f'admin.token = "{ADMIN_TOKEN}',
    "token_bare": f"admin.token = {ADMIN_TOKEN}",
    "engine_key_of_two_words": f'fleets.demo.engines = [{{url = "http://a", api_key = "{ENGINE_KEY} x"}}]',
    "engine_key_unknown": f'fleets.demo.engines = [{{url = "http://a", key = "{ENGINE_KEY}"}}]',
    "engine_key_is_a_list": f'fleets.demo.engines = [{{url = "http://a", api_key = ["{ENGINE_KEY}"]}}]',
    "engine_user": f'fleets.demo.engines = [{{url = "http://user:{ENGINE_KEY}@a"}}]',
    "engine_user_and_port": f'fleets.demo.engines = [{{url = "http://user:{ENGINE_KEY}@a:port"}}]',
    "engine_scheme": f'fleets.demo.engines = [{{url = "ftp://user:{ENGINE_KEY}@a"}}]',
    "engine_is_a_key": f'fleets.demo.engines = ["{ENGINE_KEY}"]',
    "engines_are_a_key": f'fleets.demo.engines = "{ENGINE_KEY}"',
    "fleet_is_a_key": f'fleets.demo = "{ENGINE_KEY}"',
    "section_is_a_token": f'admin = "{ADMIN_TOKEN}"',
    "key_itself": f'tenants.acme.keys_sha256 = ["{KEY}"]',
    "key_as_a_string": f'tenants.acme.keys_sha256 = "{KEY}"',
    "key_unknown": f'tenants.acme.keys = ["{KEY}"]',
}  # fmt: skip
MODULES: Final = {
    "gateway": ("services.gateway",),
    "doctor": ("services.cli", "doctor"),
}


@pytest.mark.parametrize("module", MODULES)
async def test_no_secret_is_quoted_by_what_a_wrong_configuration_is_told(tmp_path: Path, module: str) -> None:
    """The line is pasted into tickets; the secret is often right and only at the wrong place."""
    turns = asyncio.Semaphore(4)

    async def one(name: str, line: str) -> bytes:
        config = tmp_path / f"{name}.toml"
        password = quote(REDIS_PASSWORD, safe="")
        config.write_text(line.replace("PASSWORD", password) + "\n")
        async with turns:
            return await command(tmp_path, "-m", *MODULES[module], "--config", str(config))

    said = dict(zip(BAD, await asyncio.gather(*(one(*bad) for bad in BAD.items())), strict=True))
    for name, words in said.items():
        assert words, name
        assert_no_secret(f"what {module} says of {name}", words, SECRETS)


@pytest.mark.parametrize("variable", ["TENURE_ADMIN__TOKEN", "TENURE_REDIS__URL"])
async def test_a_wrong_variable_is_named_and_not_quoted(tmp_path: Path, variable: str) -> None:
    config = write_config(tmp_path, "redis://127.0.0.1:1/0", ["http://127.0.0.1:9"])
    value = f"{ADMIN_TOKEN} {REDIS_PASSWORD}"
    for words in MODULES.values():
        said = await command(tmp_path, "-m", *words, "--config", str(config), **{variable: value})
        assert variable.encode() in said
        assert_no_secret("what is said", said, SECRETS)


async def test_what_tenure_up_starts_shows_no_secret_to_the_neighbours(
    guarded_redis: RedisServer, tmp_path: Path
) -> None:
    """Command lines are everybody's to read on a host, and a terminal is watched by many."""
    with ScriptedEngine() as engine:
        behind = [{"url": engine.url, "name": "e1", "api_key": ENGINE_KEY}]
        config = write_config(tmp_path, "redis://127.0.0.1:1/0", behind, admin={"token": ADMIN_TOKEN})
        environ = {"TENURE_REDIS__URL": guarded_url(guarded_redis)}
        words = ("up", "--config", str(config), "--port", str(free_port()), "--reaper-port", str(free_port()))
        up = Process(
            tmp_path, "up", "-m", "services.cli", *words, "--gateways", "1", "--json", environment=environ
        )
        try:
            await wait_until(lambda: "gateways" in up.log_text() or not up.alive, "it says that it is up", 75)
            assert up.alive, up.log_text()
            said = next(line for line in up.json_lines() if "gateways" in line)
            pids = [said["gateways"][0]["pid"], said["reaper"]["pid"]]
            shown = [shown_of(pid, name) for pid in pids for name in ("cmdline", "environ")]
        finally:
            up.sigterm()
            await up.wait(40)
    assert_no_secret("what it says", up.log_path.read_bytes(), SECRETS)
    for content in shown:
        assert_no_secret("what a child shows", content, SECRETS)
    for file in (tmp_path / ".tenure").rglob("*"):
        if file.is_file() and file.stat().st_mode & 0o077:
            assert_no_secret(file.name, file.read_bytes(), SECRETS)
    assert ADMIN_TOKEN in (tmp_path / ".tenure" / "tenure.toml").read_text()
