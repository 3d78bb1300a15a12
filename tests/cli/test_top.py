"""`tenure top`: one frame in a pipe, and the live view as a person at a terminal sees it."""

import json
import signal

import pytest

from tests.cli.conftest import MAIN, Serving, Tenure, clean_environment, only_line
from tests.support.redis_server import RedisServer
from tests.support.terminal import Terminal
from tests.support.waiting import wait_until

pytestmark = pytest.mark.timeout(120)

UP, DOWN = "\x1b[A", "\x1b[B"


def live(serving: Serving, *options: str, rows: int = 24, columns: int = 80) -> Terminal:
    config = str(serving.rig.configs[0])
    command = (*MAIN, "top", "--config", config, "--interval", "0.3", *options)
    return Terminal(serving.rig.folder, *command, environ=clean_environment(), rows=rows, columns=columns)


async def test_one_frame_in_a_pipe_fits_80_columns_and_tells_who_holds_what(
    tenure: Tenure, serving: Serving
) -> None:
    streams = [await serving.stream("acme"), await serving.stream("acme"), await serving.stream("umbrella")]
    await serving.ask("acme")
    await tenure("limits", "demo", "cold=2")
    for options in (("--once",), ()):
        done = await tenure("top", *options)
        assert (done.returncode, done.stderr) == (0, "")
        assert "\x1b" not in done.stdout
        lines = done.stdout.splitlines()
        assert max(map(len, lines)) <= 80
        text = done.stdout
        assert lines[0].startswith("tenure top  fleet demo  1 gateway")
        assert "1 over the limit" not in lines[0]
        assert "3/3" in lines[1]
        assert "3/2" in lines[1]
        assert "TENANTS 2" in text
        assert "LINE 1" in text
        assert "LEASES, oldest first: 3" in text
        for stream in streams:
            assert stream.headers["tenure-lease"][-8:] in text
        assert "limit_set who=" in text
        assert "field=cold old=3 new=2" in text
    view = json.loads((await tenure("top", "--json")).stdout)
    assert view["pools"]["total"] == {"limit": 3, "in_use": 3}
    assert {lease["tenant"] for lease in view["leases"]} == {"acme", "umbrella"}
    assert [waiter["tenant"] for waiter in view["line"]] == ["acme"]
    only = json.loads((await tenure("top", "--tenant", "umbrella", "--json")).stdout)
    assert [lease["tenant"] for lease in only["leases"]] == ["umbrella"]


async def test_failures_of_the_first_look_are_one_line(tenure: Tenure, serving: Serving) -> None:
    done = await tenure("top", "--once", "--fleet", "demos")
    assert (done.returncode, done.stdout) == (1, "")
    assert only_line(done.stderr) == "tenure: no fleet 'demos'; the fleets are: demo"
    done = await tenure("top", "--redis-url", "redis://127.0.0.1:1/0")
    assert done.returncode == 1
    assert "127.0.0.1:1 does not answer" in only_line(done.stderr)


async def test_a_person_filters_revokes_after_a_question_and_quits(serving: Serving) -> None:
    oldest = await serving.stream("acme")
    other = await serving.stream("umbrella")
    with live(serving) as terminal:
        await terminal.until("LEASES, oldest first: 2")
        await wait_until(lambda: len(terminal.screen()) == 24, "the first frame is complete")
        assert max(map(len, terminal.screen())) <= 80

        terminal.press("tumb\r")
        await terminal.until("LEASES, oldest first: 1")
        await terminal.until("tenant umb*")
        terminal.press("\x1b")
        await terminal.until("LEASES, oldest first: 2")

        terminal.press("r")
        await terminal.until("select a lease first")
        terminal.press(DOWN + DOWN + UP)
        await terminal.until("▶ g1~")
        terminal.press("r")
        await terminal.until(f"revoke {oldest.headers['tenure-lease']}?")
        terminal.press("n")
        await terminal.until("nothing was revoked")
        await terminal.until("LEASES, oldest first: 2")
        terminal.press("r")
        await terminal.until("y ends its request")
        terminal.press("y")
        await terminal.until("LEASES, oldest first: 1")
        await terminal.until("revoked tenant=acme reason=revoked")
        assert b"[DONE]" not in await oldest.rest()

        terminal.press("q")
        assert await terminal.ended() == 0
        assert terminal.mode() == terminal.mode_before
        # The screen of before, and a cursor.
        assert b"\x1b[?1049l" in terminal.output[-40:]
        assert b"\x1b[?25h" in terminal.output[-40:]
    serving.engine.finish_all()
    assert (await other.rest()).endswith(b"data: [DONE]\n\n")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
async def test_a_signal_gives_the_terminal_back(serving: Serving, number: signal.Signals) -> None:
    with live(serving) as terminal:
        await terminal.until("LEASES")
        assert terminal.mode() != terminal.mode_before
        terminal.signal(number)
        assert await terminal.ended() == 0
        assert terminal.mode() == terminal.mode_before
        assert b"\x1b[?1049l" in terminal.output[-40:]


async def test_it_does_not_outlive_its_window(serving: Serving) -> None:
    """A lost SSH connection must not leave a process that asks Redis for ever."""
    with live(serving) as terminal:
        await terminal.until("LEASES")
        terminal.hang_up()
        assert await terminal.ended() == 0


async def test_a_terminal_without_unicode_gets_plain_signs(tenure: Tenure, serving: Serving) -> None:
    await serving.stream("acme")
    done = await tenure("top", "--once", environ={"PYTHONIOENCODING": "ascii"})
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.isascii()
    assert "#" in done.stdout.splitlines()[1]


async def test_ctrl_c_ends_it_and_a_key_that_means_nothing_does_not(serving: Serving) -> None:
    with live(serving) as terminal:
        await terminal.until("LEASES")
        terminal.press("z\x1b[15~\x1a?")
        terminal.press("t")
        await terminal.until("tenant begins with: _")
        terminal.press("\x03")
        assert await terminal.ended() == 0
        assert terminal.mode() == terminal.mode_before


async def test_redis_may_go_and_come_back_under_it(serving: Serving, redis_server: RedisServer) -> None:
    """The one on call must not lose the view at the moment that it is needed."""
    await serving.stream("acme")
    with live(serving) as terminal:
        await terminal.until("LEASES, oldest first: 1")
        redis_server.pause()
        await terminal.until("does not answer")
        assert terminal.shows("LEASES, oldest first: 1")
        redis_server.resume()
        await terminal.until("q quit")
        terminal.press("q")
        assert await terminal.ended() == 0


async def test_a_small_window_is_used_as_it_is(serving: Serving) -> None:
    await serving.stream("acme")
    with live(serving, rows=8, columns=40) as terminal:
        await terminal.until("LEASES")
        await wait_until(lambda: len(terminal.screen()) == 8, "a frame of the window's height", 10)
        assert max(map(len, terminal.screen())) <= 40
        terminal.resize(100, 30)
        await wait_until(lambda: len(terminal.screen()) == 30, "the new size is used", 10)
        assert terminal.shows("RECENT")
        terminal.press("q")
        assert await terminal.ended() == 0


async def test_with_a_dumb_terminal_it_prints_one_frame(serving: Serving) -> None:
    with Terminal(
        serving.rig.folder,
        "-c",
        "import os; os.environ['TERM'] = 'dumb'; from services.cli.__main__ import main; main()",
        *("top", "--config", str(serving.rig.configs[0])),
        environ=clean_environment(),
    ) as terminal:
        assert await terminal.ended() == 0
        assert b"LEASES" in terminal.output
        assert b"\x1b[?1049h" not in terminal.output
