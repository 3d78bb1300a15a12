"""Where the parts of `tenure up` listen."""

import socket
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from services.cli.plan import Plan, Wishes, make_plan
from tests.support.config_file import write_config
from tests.support.redis_server import free_port


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder without a configuration."""
    monkeypatch.chdir(tmp_path)


def roomy_port() -> int:
    """Return a port with free ones where the others would move."""
    while True:
        first = free_port()
        try:
            with ExitStack() as probes:
                for port in (first, first + 1, first + 10, first + 90):
                    probes.enter_context(socket.socket()).bind(("127.0.0.1", port))
                return first
        except (OSError, OverflowError):
            continue


async def plan(**wishes: Any) -> Plan:
    defaults: dict[str, Any] = {"gateways": 2, "port": None, "reaper_port": None, "engine_port": None}
    return await make_plan(
        Wishes(**{**defaults, "redis_url": None, "engines": (), "config": None, **wishes}), {}
    )


def ports(made: Plan) -> tuple[int, int, int | None]:
    return made.gateways[0].port, made.reaper.port, made.engine.port if made.engine else None


async def test_the_first_port_takes_the_others_along() -> None:
    """So a second `tenure up`, in another folder, needs one option."""
    first = roomy_port()
    made = await plan(port=first)
    assert [gateway.port for gateway in made.gateways] == [first, first + 1]
    assert ports(made) == (first, first + 90, first + 10)
    assert made.settings.reaper.port == first + 90


async def test_a_port_of_its_own_stays_where_it_was_put(tmp_path: Path) -> None:
    first, reaper, engine = roomy_port(), free_port(), free_port()
    assert ports(await plan(port=first, reaper_port=reaper, engine_port=engine)) == (first, reaper, engine)
    # Also one that the configuration names.
    config = write_config(
        tmp_path, "redis://x", ["http://127.0.0.1:9"], name="own.toml", reaper={"port": reaper}
    )
    assert ports(await plan(port=first, config=config)) == (first, reaper, None)


async def test_any_free_port_means_all_of_them() -> None:
    made = await plan(port=0)
    assert len({*ports(made), made.gateways[1].port}) == 4
    assert 0 not in ports(made)
