"""The client of the tests fires together, reads no further than asked, and leaves as it is told."""

import socket
import threading
import time
from collections import Counter
from collections.abc import Iterator

import pytest

from tests.support.answers import Flood, Stream, Whole, failure
from tests.support.burst import burst
from tests.support.client import Call, HungUpError, chat_body, fetch, request_bytes
from tests.support.reply import Script, Seen
from tests.support.scripted_engine import ScriptedEngine
from tests.support.waiting import wait_until


@pytest.fixture
def u() -> Iterator[ScriptedEngine]:
    with ScriptedEngine() as engine:
        yield engine


async def test_a_burst_arrives_together_and_holds_what_was_let_in(u: ScriptedEngine) -> None:
    """Instruments first: three hundred requests must really meet, or the limit was never tested."""

    def one_in_three(seen: Seen) -> Script:
        refusal = b'{"error": {"code": "total_pool_full"}}'
        number = int(seen.json()["user"])
        return Stream(hold_after=1) if number % 3 == 0 else Whole(status=429, body=refusal)

    u.choose = one_in_three
    fired = await burst(300, [u.url, u.url], key=["a", "b"], body=lambda n: chat_body(user=str(n)))
    with fired:
        assert fired.statuses == {200: 100, 429: 200}
        assert fired.codes == {"total_pool_full": 200}
        assert fired.span_s < 0.1
        keys = Counter(seen.header("authorization") for seen in u.requests)
        assert keys == {"Bearer a": 150, "Bearer b": 150}
        assert u.open == 100
        await wait_until(lambda: u.held == 100, "all have said their token")
        assert u.finish_all() == 100
        assert all(body.endswith(b"[DONE]\n\n") for body in await fired.drain())


async def test_a_burst_that_is_left_is_gone_from_the_engine(u: ScriptedEngine) -> None:
    u.answer = Stream(hold_after=0)
    fired = await burst(10, [u.url], key="k")
    assert u.open == 10
    fired.end()
    await wait_until(lambda: u.open == 0, "all left")
    assert {seen.closed_by for seen in u.requests} == {"client"}


async def test_a_call_that_is_not_read_takes_no_more_than_its_buffer(u: ScriptedEngine) -> None:
    u.answer = Flood(total_bytes=64 << 20)
    call = await Call.start(u.url, receive_buffer=16384, body=chat_body())
    assert await call.head() == 200
    assert await call.next_event() is not None
    before = -1
    while before != (now := u.requests[0].bytes_accepted):
        before = now
        time.sleep(0.1)
    assert now < 2 << 20
    call.close()


async def test_a_call_that_vanished_takes_in_nothing_and_says_nothing(u: ScriptedEngine) -> None:
    u.answer = Stream(hold_after=1)
    with await Call.start(u.url, body=chat_body()) as call:
        assert await call.first_token() is not None
        call.vanish()
        u.finish_all()
        await wait_until(lambda: u.open == 0, "all was sent")
        with pytest.raises(TimeoutError):
            await call.next_event(0.3)
        call.reset()


async def test_bodies_of_every_framing_are_read_to_their_end(u: ScriptedEngine) -> None:
    u.answer = failure(503, retry_after="3", delay_s=0.01)
    call = await Call.start(u.url, body=chat_body())
    assert (await call.head(), await call.error_code()) == (503, "503")
    assert call.headers["retry-after"] == "3"
    call.close()
    u.answer = Whole(status=204)
    assert await fetch(u.url, "/v1/x", method="DELETE") is not None
    assert u.requests[-1].method == "DELETE"


def test_our_framing_gives_way_to_the_one_asked_for() -> None:
    raw = request_bytes(
        "http://h:1", key="k", body=b"abc", headers=[("Content-Length", "9"), ("X-A", "1"), ("x-a", "2")]
    )
    head, _, body = raw.partition(b"\r\n\r\n")
    assert body == b"abc"
    assert head.lower().count(b"content-length") == 1
    assert b"X-A: 1\r\nx-a: 2" in head
    assert b"authorization: Bearer k" in head


async def test_a_server_that_hangs_up_without_a_word_is_told_from_an_empty_reply() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def hang_up() -> None:
            server.accept()[0].close()

        threading.Thread(target=hang_up).start()
        call = await Call.connect(f"http://127.0.0.1:{server.getsockname()[1]}")
        with pytest.raises(HungUpError):
            await call.head()
        call.close()
