"""Another engine is tried only while no work can have begun, and always under the same permit."""

from typing import Any

import pytest

from tests.support.answers import Dies, Stream, failure
from tests.support.client import fetch
from tests.support.config_file import key_of
from tests.support.scripted_engine import ScriptedEngine
from tests.support.waiting import wait_until


async def test_an_engine_that_cannot_be_reached_is_passed_over(
    open_gateway: Any, engine: ScriptedEngine
) -> None:
    with ScriptedEngine() as second:
        gateway = await open_gateway(engines=[engine.url, second.url])
        engine.refuse()
        for _ in range(4):
            call = await gateway.call()
            assert await call.head() == 200
            await call.rest()
            call.close()
            await gateway.is_idle()
        await gateway.record(4)
        assert len(second.requests) == 4
        assert {line["engine"] for line in gateway.records()} == {second.url.removeprefix("http://")}
        assert len({line["lease"] for line in gateway.records()}) == 4


async def test_one_request_holds_one_permit_however_many_engines_it_tries(
    open_gateway: Any, engine: ScriptedEngine
) -> None:
    with ScriptedEngine() as second:
        gateway = await open_gateway(engines=[engine.url, second.url], fleet={"total": 1, "cold": 1})
        engine.refuse()
        second.answer = Stream(hold_after=1)
        call = await gateway.call()
        await call.head()
        assert (await gateway.app.gate.count("demo")).total == 1
        other = await gateway.call()
        assert await other.head() == 429
        second.finish_all()
        await call.rest()
        call.close()
        other.close()
        await gateway.is_idle()


async def test_no_engine_left_is_unreachable(open_gateway: Any, engine: ScriptedEngine) -> None:
    with ScriptedEngine() as second:
        gateway = await open_gateway(engines=[engine.url, second.url])
        engine.refuse()
        second.refuse()
        call = await gateway.call()
        assert await call.head() == 502
        assert await call.error_code() == "engine_unreachable"
        call.close()
        await gateway.is_idle()


async def test_work_that_may_have_begun_is_not_done_twice(open_gateway: Any, engine: ScriptedEngine) -> None:
    """A prompt that was sent once may be computing: sending it again would double the load."""
    with ScriptedEngine() as second:
        gateway = await open_gateway(engines=[engine.url, second.url])
        engine.answer = second.answer = Dies("before_head")
        call = await gateway.call()
        assert await call.head() == 502
        call.close()
        await gateway.is_idle()
        assert len(engine.requests) + len(second.requests) == 1


async def test_an_engines_answer_is_final(open_gateway: Any, engine: ScriptedEngine) -> None:
    with ScriptedEngine() as second:
        gateway = await open_gateway(engines=[engine.url, second.url])
        engine.answer = second.answer = failure(503)
        call = await gateway.call()
        assert await call.head() == 503
        call.close()
        await gateway.is_idle()
        assert len(engine.requests) + len(second.requests) == 1


async def test_a_kept_connection_that_the_engine_closed_costs_nobody_an_error(
    gateway: Any, engine: ScriptedEngine
) -> None:
    for _ in range(20):
        call = await gateway.call()
        assert await call.head() == 200
        await call.rest()
        call.close()
        await wait_until(lambda: engine.open == 0, "the request is over")
        engine.hang_up()
        await gateway.is_idle()


async def kept_connection(gateway: Any, engine: ScriptedEngine) -> None:
    """Leave one idle connection to the engine."""
    call = await gateway.call()
    await call.head()
    await call.rest()
    call.close()
    await gateway.is_idle()
    assert engine.connections == 1


@pytest.mark.parametrize("method", ["GET", "HEAD", "PUT", "DELETE"])
async def test_what_may_be_done_twice_is_sent_again_when_a_kept_connection_was_at_its_end(
    gateway: Any, engine: ScriptedEngine, method: str
) -> None:
    """The engine may have closed it while the request was on its way."""
    await kept_connection(gateway, engine)
    engine.choose = lambda seen: Dies("before_head") if seen.connection == 1 else None
    answer = await fetch(gateway.url, "/v1/files/a", method=method, key=key_of("acme"))
    assert answer.status == 200
    assert [seen.connection for seen in engine.requests[1:]] == [1, 2]
    await gateway.record(2)


@pytest.mark.parametrize(
    ("method", "death"),
    [("POST", Dies("before_head")), ("PATCH", Dies("before_head")), ("GET", Dies("within_head"))],
)
async def test_a_request_whose_work_or_answer_may_have_begun_is_not_sent_again(
    gateway: Any, engine: ScriptedEngine, method: str, death: Dies
) -> None:
    await kept_connection(gateway, engine)
    engine.answer = death
    answer = await fetch(gateway.url, "/v1/files/a", method=method, key=key_of("acme"))
    assert answer.status == 502
    assert len(engine.requests) == 2
    await gateway.record(2)


async def test_a_new_connection_that_breaks_is_no_reason_for_another(
    gateway: Any, engine: ScriptedEngine
) -> None:
    engine.answer = Dies("before_head")
    answer = await fetch(gateway.url, "/v1/files/a", method="GET", key=key_of("acme"))
    assert answer.status == 502
    assert len(engine.requests) == 1
    await gateway.record()
