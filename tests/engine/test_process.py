"""The engine as its operator meets it: started, stopped, and started wrongly."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from services.engine.__main__ import main
from services.engine.options import BadOptionError, EngineOptions
from tests.support import sockets
from tests.support.client import Call, chat_body
from tests.support.processes import Process
from tests.support.redis_server import free_port

if TYPE_CHECKING:
    from pathlib import Path


async def test_sigterm_ends_it_at_once_with_status_0_though_streams_run(tmp_path: Path) -> None:
    port = free_port()
    options = ("--port", str(port), "--tokens", "1000", "--token-ms", "50", "--slots", "1")
    command = ("-m", "services.engine", *options)
    engine = Process(tmp_path, "engine", *command, url=f"http://127.0.0.1:{port}", ready_path="/health")
    await engine.ready()
    running = await Call.start(engine.url, body=chat_body())
    await running.first_token()
    waiting = await Call.start(engine.url, body=chat_body())
    engine.sigterm()
    assert await engine.wait(3) == 0
    await running.rest()
    assert running.ended in ("cut", "reset"), "a stream that was cut must not look complete"
    running.close()
    waiting.close()
    assert engine.log_text().splitlines() == [f"engine demo: 1 slots on http://127.0.0.1:{port}/v1"]


def test_a_taken_port_is_one_line_and_status_1(capsys: pytest.CaptureFixture[str]) -> None:
    with sockets.listen() as listener:
        port = listener.getsockname()[1]
        assert main(["--port", str(port)]) == 1
    assert capsys.readouterr().err == f"--port: cannot listen on 127.0.0.1:{port}: Address already in use\n"


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("slots", 0),
        ("tokens", 0),
        ("token-ms", -1),
        ("prefill-ms", -0.1),
        ("port", 70000),
        ("page-tokens", 0),
    ],
)
def test_an_option_out_of_range_is_one_line_that_names_it(
    capsys: pytest.CaptureFixture[str], option: str, value: float
) -> None:
    assert main([f"--{option}", str(value)]) == 1
    line = capsys.readouterr().err
    assert line.startswith(f"--{option}: {value:g} is out of range")
    assert line.count("\n") == 1


def test_an_empty_model_name_is_refused() -> None:
    with pytest.raises(BadOptionError, match="--model"):
        EngineOptions(model="")


def test_the_cache_grows_with_the_slots_unless_it_is_given() -> None:
    assert EngineOptions(slots=1).page_count == 4096
    assert EngineOptions(slots=100).page_count == 12_800
    assert EngineOptions(slots=100, pages=10).page_count == 10
