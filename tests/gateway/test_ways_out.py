"""Every way out of a request gives its permit back once, closes the engine's side, and has one reason."""

import asyncio
import socket
import time
from contextlib import ExitStack
from typing import Any

import pytest

from tests.support.answers import EVENT_STREAM, Dies, Stream, Whole, failure
from tests.support.client import chat_body, fetch
from tests.support.reply import Reply
from tests.support.scripted_engine import ScriptedEngine
from tests.support.waiting import wait_until


def ends(gateway: Any) -> list[tuple[int | None, str | None]]:
    return [(line["status"], line["reason"]) for line in gateway.records()]


async def left_alone(gateway: Any, engine: ScriptedEngine) -> None:
    await gateway.is_idle()
    await wait_until(lambda: engine.open == 0, "nothing is open at the engine")


async def test_a_stream_that_ends_well_is_completed(gateway: Any, engine: ScriptedEngine) -> None:
    call = await gateway.call()
    assert await call.head() == 200
    body = await call.rest()
    assert call.ended == "clean"
    assert body.endswith(b"data: [DONE]\n\n")
    call.close()
    line = await gateway.record()
    assert (line["reason"], line["tokens"], line["class"]) == ("completed", 3, "cold")
    times = [
        line[name] for name in ("queued_at", "admitted_at", "first_token_at", "last_token_at", "released_at")
    ]
    assert times == sorted(times)
    await left_alone(gateway, engine)


async def test_the_spans_of_a_line_lie_between_its_times(gateway: Any, engine: ScriptedEngine) -> None:
    """Each of another length, so that none can stand for another."""
    engine.answer = Stream(tokens=3, delay_s=0.05, gap_s=0.1)
    call = await gateway.call()
    assert await call.head() == 200
    await call.rest()
    call.close()
    line = await gateway.record()
    queued, admitted, first, last, released = (
        line[name] for name in ("queued_at", "admitted_at", "first_token_at", "last_token_at", "released_at")
    )
    assert line["queue_ms"] == pytest.approx(admitted - queued, abs=1)
    assert line["prefill_ms"] == pytest.approx(first - admitted, abs=1)
    assert line["decode_ms"] == pytest.approx(last - first, abs=1)
    assert line["prefill_ms"] >= 50
    assert line["decode_ms"] >= 200
    # Its end lies between the last token and the release.
    assert 0 <= line["release_ms"] <= released - last + 1


async def test_the_place_is_free_when_the_engine_is_done_not_when_the_client_has_read(
    gateway: Any, engine: ScriptedEngine
) -> None:
    """A slow reader must not hold an engine's place for bytes that lie in buffers."""
    engine.answer = Whole(body=b"x" * 20_000)
    call = await gateway.call(receive_buffer=4096)
    await wait_until(lambda: engine.requests and engine.open == 0, "the engine is done")
    done_s = time.monotonic()
    await gateway.is_idle()
    print(f"free {time.monotonic() - done_s:.3f} s after the engine was done, nothing read")  # noqa: T201
    call.reset()


async def test_a_client_that_leaves_while_the_engine_is_silent_is_noticed(
    gateway: Any, engine: ScriptedEngine
) -> None:
    engine.answer = Stream(hold_before_head=True)
    calls = [await gateway.call(body=chat_body(stream=stream)) for stream in (True, False)]
    await wait_until(lambda: engine.open == 2, "both wait for headers")
    for call in calls:
        call.reset()
    await left_alone(gateway, engine)
    await gateway.record(2)
    assert [reason for _, reason in ends(gateway)] == ["client_disconnect"] * 2


async def test_a_client_that_leaves_after_the_first_token_stops_the_engine(
    gateway: Any, engine: ScriptedEngine
) -> None:
    engine.answer = Stream(tokens=None, gap_s=0.02)
    call = await gateway.call()
    await call.first_token()
    call.reset()
    await left_alone(gateway, engine)
    assert engine.requests[0].closed_by == "client"
    assert (await gateway.record())["reason"] == "client_disconnect"


async def test_a_half_closed_client_counts_as_gone(gateway: Any, engine: ScriptedEngine) -> None:
    engine.answer = Stream(tokens=None, gap_s=0.02)
    call = await gateway.call()
    await call.first_token()
    call.half_close()
    await left_alone(gateway, engine)
    call.close()
    assert (await gateway.record())["reason"] == "client_disconnect"


async def test_a_client_that_leaves_with_the_last_byte_ends_once(
    gateway: Any, engine: ScriptedEngine
) -> None:
    """Both reasons may race; exactly one is written, and the place comes back every time."""
    rounds = 200

    async def once() -> None:
        call = await gateway.call(body=chat_body())
        await call.head()
        while b"[DONE]" not in (await call.next_event() or b"[DONE]"):
            pass
        call.reset()

    for _ in range(rounds // 4):
        await asyncio.gather(*(once() for _ in range(4)))
        await gateway.is_idle()
    await gateway.record(rounds)
    assert {reason for _, reason in ends(gateway)} <= {"completed", "client_disconnect"}
    await left_alone(gateway, engine)


@pytest.mark.parametrize(
    ("script", "reason", "ended"),
    [
        (Stream(tokens=3, ending="reset"), "engine_error", "clean"),
        (Stream(tokens=3, ending="cut"), "engine_error", "clean"),
        (Stream(tokens=3, ending="torn"), "engine_error", "cut"),
        (Stream(tokens=3, ending="bare"), "completed", "clean"),
        (Stream(tokens=3, ending="error"), "completed", "clean"),
    ],
)
async def test_an_engine_that_dies_in_its_stream_gets_no_invented_ending(
    gateway: Any, engine: ScriptedEngine, script: Stream, reason: str, ended: str
) -> None:
    """Between two events ours says why; in the midst of one only a cut connection is honest."""
    engine.answer = script
    call = await gateway.call()
    assert await call.head() == 200
    body = await call.rest()
    assert call.ended == ended
    call.close()
    for n in range(3):
        assert f" token{n}".encode() in body
    assert b"[DONE]" not in body
    assert b'"finish_reason": "stop"' not in body
    assert (b'"code":"engine_error"' in body) == (reason == "engine_error" and ended == "clean")
    assert (await gateway.record())["reason"] == reason
    await left_alone(gateway, engine)


@pytest.mark.parametrize(
    ("script", "status"),
    [(Dies("before_head"), 502), (Dies("within_head"), 502)],
)
async def test_an_engine_that_dies_before_its_reply_is_a_502(
    gateway: Any, engine: ScriptedEngine, script: Any, status: int
) -> None:
    engine.answer = script
    call = await gateway.call()
    assert await call.head() == status
    assert call.headers["tenure-refused"] == "engine_error"
    assert await call.error_code() == "engine_error"
    call.close()
    assert (await gateway.record())["reason"] == "engine_error"
    await left_alone(gateway, engine)


async def test_an_engine_that_dies_after_its_head_leaves_a_cut_reply(
    gateway: Any, engine: ScriptedEngine
) -> None:
    engine.answer = Dies("after_head")
    call = await gateway.call()
    await call.head()
    await call.rest()
    call.close()
    assert (await gateway.record())["reason"] == "engine_error"
    await left_alone(gateway, engine)


async def test_a_body_without_a_length_that_ends_by_a_reset_is_not_whole(
    gateway: Any, engine: ScriptedEngine
) -> None:
    async def breaks(reply: Reply) -> None:
        await reply.raw(b"HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\n\r\nhalf of it")
        reply.reset()

    engine.answer = breaks
    call = await gateway.call()
    assert await call.head() == 200
    assert await call.rest() in (b"", b"half of it")
    assert call.ended == "cut"
    call.close()
    assert (await gateway.record())["reason"] == "engine_error"
    await left_alone(gateway, engine)


async def test_a_stream_without_a_single_event_ends_as_the_engine_ended_it(
    gateway: Any, engine: ScriptedEngine
) -> None:
    async def says_nothing(reply: Reply) -> None:
        await reply.head(200, (EVENT_STREAM,))
        await reply.end()

    engine.answer = says_nothing
    call = await gateway.call()
    assert await call.head() == 200
    assert call.headers["content-type"] == "text/event-stream"
    assert await call.rest() == b""
    assert call.ended == "clean"
    call.close()
    line = await gateway.record()
    assert (line["reason"], line["tokens"]) == ("completed", 0)
    await left_alone(gateway, engine)


@pytest.mark.parametrize("status", [400, 401, 404, 429, 500, 502, 503, 504])
async def test_an_engines_own_error_passes_untouched(
    gateway: Any, engine: ScriptedEngine, status: int
) -> None:
    engine.answer = failure(status, retry_after="7")
    call = await gateway.call()
    assert await call.head() == status
    assert call.headers["retry-after"] == "7"
    assert call.headers["content-type"] == "application/json"
    assert "tenure-refused" not in call.headers
    assert "tenure-lease" in call.headers
    assert (await call.json())["error"] == {
        "message": f"scripted {status}",
        "type": "scripted",
        "code": status,
    }
    call.close()
    assert (await gateway.record())["status"] == status
    await left_alone(gateway, engine)


async def test_an_unreachable_engine_is_a_502_and_named(gateway: Any, engine: ScriptedEngine) -> None:
    engine.refuse()
    call = await gateway.call()
    assert await call.head() == 502
    assert await call.error_code() == "engine_unreachable"
    call.close()
    assert (await gateway.record())["reason"] == "engine_unreachable"
    engine.listen()
    answer = await fetch(
        gateway.url, "/v1/chat/completions", method="POST", key="key-of-acme", body=chat_body()
    )
    assert answer.status == 200


@pytest.mark.parametrize(
    ("budget", "script", "outcome"),
    [
        ("first_token_ms", Stream(hold_before_head=True), (504, "first_token_timeout")),
        ("first_token_ms", Stream(hold_after=0), (200, "first_token_timeout")),
        ("idle_ms", Stream(hold_after=1), (200, "idle_timeout")),
        ("idle_ms", Stream(tokens=6, hold_after=4, gap_s=0.02), (200, "idle_timeout")),
        ("total_ms", Stream(hold_before_head=True), (504, "total_timeout")),
        ("total_ms", Stream(tokens=None, gap_s=0.02), (200, "total_timeout")),
    ],
)
async def test_each_budget_ends_the_request_by_its_own_name(
    open_gateway: Any, engine: ScriptedEngine, budget: str, script: Stream, outcome: tuple[int, str]
) -> None:
    status, reason = outcome
    gateway = await open_gateway(budgets={budget: 300})
    engine.answer = script
    call = await gateway.call()
    assert await call.head() == status
    body = await call.rest()
    assert f'"code":"{reason}"'.encode() in body
    assert call.ended == "clean"
    call.close()
    assert (await gateway.record())["reason"] == reason
    await left_alone(gateway, engine)


@pytest.mark.parametrize(
    ("budgets", "steady"),
    [
        # The gaps are short, and together longer than one may be.
        ({"idle_ms": 1_000}, Stream(tokens=40, gap_s=0.05)),
        # The first token's budget must not go on binding the gaps.
        ({"first_token_ms": 300}, Stream(tokens=2, gap_s=0.6)),
    ],
)
async def test_a_budget_does_not_bind_what_it_is_not_for(
    open_gateway: Any, engine: ScriptedEngine, budgets: dict[str, int], steady: Stream
) -> None:
    gateway = await open_gateway(budgets=budgets)
    engine.answer = steady
    call = await gateway.call()
    assert await call.head() == 200
    assert b"[DONE]" in await call.rest()
    call.close()
    assert (await gateway.record())["reason"] == "completed"


async def test_a_client_that_stops_reading_is_cut_by_its_budget(
    open_gateway: Any, engine: ScriptedEngine
) -> None:
    gateway = await open_gateway(budgets={"stall_ms": 300})
    engine.answer = Stream(tokens=None, text="x" * 20_000)
    call = await gateway.call(receive_buffer=4096)
    await call.head()
    assert (await gateway.record())["reason"] == "client_stalled"
    call.reset()
    await left_alone(gateway, engine)


async def test_connecting_is_bounded(open_gateway: Any) -> None:
    """An address that swallows packets must not eat the whole budget of the first token."""
    with socket.create_server(("127.0.0.1", 0), backlog=0) as full, ExitStack() as queued:
        port = full.getsockname()[1]
        for _ in range(3):  # more than its queue takes, so the next SYN gets no answer
            filler = queued.enter_context(socket.socket())
            filler.setblocking(False)
            filler.connect_ex(("127.0.0.1", port))
        gateway = await open_gateway(engines=[f"http://127.0.0.1:{port}"], budgets={"connect_ms": 200})
        call = await gateway.call()
        assert await call.head(2) == 502
        assert await call.error_code() == "engine_unreachable"
        call.close()


async def test_exactly_as_many_as_the_limit_run_after_many_bad_ends(
    gateway: Any, engine: ScriptedEngine
) -> None:
    """Fewer would be a leak, more a double release."""
    for script in (Dies("before_head"), Stream(ending="torn"), failure(500), Stream(ending="cut")):
        engine.answer = script
        for _ in range(5):
            call = await gateway.call()
            await call.head()
            await call.rest()
            call.reset()
    engine.answer = Stream(hold_after=1)
    calls = [await gateway.call() for _ in range(5)]
    statuses = sorted([await call.head() for call in calls])
    assert statuses == [200, 200, 200, 200, 429]
    assert engine.max_open <= 4
    for call in calls:
        call.reset()
    await left_alone(gateway, engine)
