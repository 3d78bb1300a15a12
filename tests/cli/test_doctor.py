"""`tenure doctor`: all problems, each with its cure, against real servers that have them."""

import json
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from services.cli.doctor import too_old
from tests.cli.conftest import Done, Tenure
from tests.support import processes
from tests.support.config_file import write_config
from tests.support.processes import Process
from tests.support.redis_server import RedisServer, free_port
from tests.support.rig import begin_without_learning

SpareRedis = Callable[..., RedisServer]


@pytest.fixture
async def engine(tmp_path: Path) -> AsyncIterator[Process]:
    process = processes.simulated_engine(tmp_path)
    await process.ready()
    yield process
    await process.end()


def problems(done: Done) -> dict[str, dict[str, Any]]:
    findings = json.loads(done.stdout)["findings"]
    found = {finding["check"]: finding for finding in findings if finding["level"] == "problem"}
    assert all(finding["cure"] for finding in found.values())
    return found


async def test_a_healthy_installation_has_nothing_to_fix(
    tenure: Tenure, tmp_path: Path, redis_url: str, engine: Process
) -> None:
    config = write_config(tmp_path, redis_url, [engine.url])
    await begin_without_learning(config)
    done = await tenure("doctor", "--config", str(config))
    assert (done.returncode, done.stderr) == (0, "")
    assert "nothing to fix" in done.stdout
    assert "answers: demo" in done.stdout
    assert "0 of 4 in use" in done.stdout
    assert "PROBLEM" not in done.stdout


async def test_a_terminal_obeys_nothing_that_an_engine_says(
    tenure: Tenure, tmp_path: Path, redis_url: str
) -> None:
    """A model may be named like an order to the terminal, or so that it hides what comes before it."""
    named = "\x1b]0;owned\x07\u202edemo\x9b31m"
    process = processes.simulated_engine(tmp_path, "--model", named)
    try:
        await process.ready()
        config = write_config(tmp_path, redis_url, [process.url])
        await begin_without_learning(config)
        done = await tenure("doctor", "--config", str(config))
    finally:
        await process.end()
    assert "answers: \\x1b]0;owned\\x07\\u202edemo\\x9b31m" in done.stdout
    assert not set(done.stdout) & set("\x1b\x07\u202e\x9b")


async def test_every_problem_is_listed_at_once(
    tenure: Tenure, tmp_path: Path, spare_redis: SpareRedis
) -> None:
    """Three faults are three lines, not three runs."""
    server = spare_redis("--maxmemory", "100mb", "--maxmemory-policy", "allkeys-lru")
    dead = f"http://127.0.0.1:{free_port()}"
    config = write_config(tmp_path, server.url, [{"name": "a", "url": dead}, {"name": "b", "url": dead}])
    done = await tenure("doctor", "--config", str(config), "--json")
    found = problems(done)
    assert done.returncode == 1
    assert set(found) == {"redis.eviction", "engine.demo.a", "engine.demo.b"}
    assert "allkeys-lru" in found["redis.eviction"]["detail"]
    assert "CONFIG SET maxmemory-policy noeviction" in found["redis.eviction"]["cure"]
    assert "connection" in found["engine.demo.a"]["detail"]


async def test_a_problem_is_shown_with_its_cure(
    tenure: Tenure, tmp_path: Path, spare_redis: SpareRedis, engine: Process
) -> None:
    server = spare_redis("--maxmemory-policy", "allkeys-random")
    done = await tenure("doctor", "--config", str(write_config(tmp_path, server.url, [engine.url])))
    lines = done.stdout.splitlines()
    (at,) = [number for number, line in enumerate(lines) if line.startswith("PROBLEM")]
    assert "allkeys-random" in lines[at]
    assert lines[at + 1].strip().startswith("-> redis-cli CONFIG SET")
    assert lines[-1] == "1 problem"


async def test_a_redis_that_is_away_is_one_problem_and_the_engines_are_still_asked(
    tenure: Tenure, tmp_path: Path, engine: Process
) -> None:
    port = free_port()
    config = write_config(tmp_path, f"redis://user:secret@127.0.0.1:{port}/0", [engine.url])
    done = await tenure("doctor", "--config", str(config), "--json")
    found = problems(done)
    assert set(found) == {"redis.reachable"}
    assert f"127.0.0.1:{port} does not answer (connection refused)" in found["redis.reachable"]["detail"]
    assert "secret" not in done.stdout
    assert "answers: demo" in done.stdout


async def test_a_redis_that_hangs_is_given_up_on(
    tenure: Tenure, tmp_path: Path, spare_redis: SpareRedis, engine: Process
) -> None:
    server = spare_redis()
    config = write_config(tmp_path, server.url, [engine.url])
    server.pause()
    done = await tenure("doctor", "--config", str(config), "--json")
    server.resume()
    assert set(problems(done)) == {"redis.reachable"}


async def test_a_replica_is_no_place_for_leases(
    tenure: Tenure, tmp_path: Path, spare_redis: SpareRedis, engine: Process
) -> None:
    primary = spare_redis()
    replica = spare_redis("--replicaof", f"127.0.0.1 {primary.port}")
    config = write_config(tmp_path, replica.url, [engine.url])
    done = await tenure("doctor", "--config", str(config), "--json")
    assert str(primary.port) in problems(done)["redis.role"]["cure"]


async def test_a_user_that_may_not_run_scripts_is_told(
    tenure: Tenure, tmp_path: Path, spare_redis: SpareRedis, engine: Process
) -> None:
    server = spare_redis()
    server.cli("ACL", "SETUSER", "weak", "on", ">pw", "~*", "+@all", "-@scripting")
    url = server.url.replace("redis://", "redis://weak:pw@")
    config = write_config(tmp_path, url, [engine.url])
    done = await tenure("doctor", "--config", str(config), "--json")
    assert "ACL" in problems(done)["redis.scripts"]["cure"]


async def test_a_wrong_password_is_told_from_a_silent_server(
    tenure: Tenure, tmp_path: Path, redis_url: str, engine: Process
) -> None:
    config = write_config(tmp_path, redis_url.replace("redis://", "redis://who:secret@"), [engine.url])
    done = await tenure("doctor", "--config", str(config), "--json")
    assert "refuses us" in problems(done)["redis.reachable"]["detail"]


async def test_a_key_of_another_program_in_our_place_is_found(
    tenure: Tenure, tmp_path: Path, redis_server: RedisServer, redis_url: str, engine: Process
) -> None:
    redis_server.cli("SET", "tenure:{demo}:limits", "not ours")
    config = write_config(tmp_path, redis_url, [engine.url])
    done = await tenure("doctor", "--config", str(config), "--json")
    assert set(problems(done)) == {"redis.fleet.demo"}


async def test_a_wrong_configuration_is_a_finding_and_redis_is_still_looked_at(
    tenure: Tenure, tmp_path: Path, redis_url: str
) -> None:
    config = write_config(tmp_path, redis_url, ["http://127.0.0.1:9"], lease={"ttl_ms": 1})
    done = await tenure("doctor", "--config", str(config), "--json", "--redis-url", redis_url)
    assert done.returncode == 1
    assert "ttl_ms" in problems(done)["config"]["detail"]
    assert "redis.reachable" in done.stdout


async def test_everything_that_is_wrong_with_the_configuration_is_listed(
    tenure: Tenure, tmp_path: Path, redis_url: str
) -> None:
    """And nothing that is only wrong because something else is."""
    config = tmp_path / "tenure.toml"
    config.write_text(
        '[redis]\nurll = "x"\n[lease]\nttl_ms = 5\n'
        '[fleets.demo]\nmodels = ["a"]\ntotall = 7\nengines = [{ url = "ftp://x" }]\n'
    )
    findings = json.loads((await tenure("doctor", "--json")).stdout)["findings"]
    assert [finding["level"] for finding in findings] == ["problem"] * 4
    for field in ("redis.urll", "lease: ttl_ms", "fleets.demo.engines[0].url", "fleets.demo.totall"):
        assert any(field in finding["detail"] and finding["cure"] for finding in findings), field


def test_an_old_redis_is_named_with_the_cure() -> None:
    """What Redis 6.2 answers to a script that begins with a shebang."""
    error = "ERR Error compiling script (new function): user_script:1: unexpected symbol near '#'"
    finding = too_old("redis.scripts", "6.2.14", error)
    assert finding.level == "problem"
    assert "Redis 6.2.14" in finding.detail
    assert "Redis 7" in finding.cure
    assert "Valkey" in finding.cure
