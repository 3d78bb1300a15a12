"""The scripted engine U: the ground truth of what reached an engine, when, and when it was let go.

It lives in a thread with an event loop of its own, on bare sockets, so neither a blocked test loop nor a
framework's buffering bends what it reports. `open` counts requests from the arrival of their headers to the
end of their reply or to the moment the other side leaves.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from typing import TYPE_CHECKING

from tests.support import answers, sockets
from tests.support.http_peer import MalformedError, Peer, PeerGoneError, RequestHead
from tests.support.loop_thread import Instrument, LoopThread
from tests.support.reply import Held, Reply, Script, Seen

if TYPE_CHECKING:
    from collections.abc import Callable

# Probes and aborts are no work: they are listed in `controls` and never counted as open.
CONTROLS = {
    "/health": b'{"status": "ok"}',
    "/slots": b"[]",
    "/metrics": b"",
    "/load": b"{}",
    "/v1/models": b'{"object": "list", "data": [{"id": "scripted", "object": "model"}]}',
    "/abort_request": b"{}",
    "/inference/v1/abort_requests": b"{}",
    "/v1/stream": b"{}",
}

# Small, so that a reader that stops is felt after kilobytes and not after what the kernel's autotuning likes.
SEND_BUFFER_BYTES = 65536


class ScriptedEngine(Instrument):
    """An engine that answers as told; every method may be called from any thread.

    answer      the script for every request that `choose` does not decide
    choose      called in the engine's thread with each Seen; returns a Script, or None to use `answer`
    requests    what came, in order of arrival; controls: probes and aborts; malformed: first bytes of what
                was no HTTP
    open, max_open    requests open now, and the most there ever were since `reset`
    connections       TCP connections accepted since `reset`
    tapes             the bytes that came in on each of them, in order of acceptance; the first MiB of each
    """

    def __init__(self, *, port: int = 0, host: str = sockets.LOOPBACK) -> None:
        """Prepare; the port is taken at `start`."""
        self.requests: list[Seen] = []
        self.controls: list[Seen] = []
        self.malformed: list[str] = []
        self.answer: Script = answers.as_asked
        self.choose: Callable[[Seen], Script | None] | None = None
        self._open = 0
        self.max_open = 0
        self.connections = 0
        self.tapes: list[bytearray] = []
        self.port = port
        self._host = host
        self._numbered = 0
        self._held = Held()
        self._peers: set[Peer] = set()
        self._thread = LoopThread("scripted-engine")
        self._server: asyncio.Server | None = None

    @property
    def url(self) -> str:
        """Return the base URL, without a path."""
        return f"http://{self._host}:{self.port}"

    @property
    def open(self) -> int:
        """Return how many requests are open now.

        Asked of the engine's own thread: a reply whose last byte the client has is never counted any more.
        """
        return self._thread.do(lambda: self._open) if self._thread.running else self._open

    @property
    def sockets(self) -> int:
        """Return how many connections are open now, idle ones included."""
        return self._thread.do(lambda: len(self._peers))

    @property
    def held(self) -> int:
        """Return how many replies wait for `finish` now."""
        return len(self._held.waiting)

    def finish(self, count: int | None = None) -> int:
        """Let the `count` longest waiting held replies go on (None: all); return how many there were."""
        return self._thread.do(lambda: self._held.finish(count))

    def finish_all(self) -> int:
        """Let every held reply go on; later requests are held again if their script says so."""
        return self.finish()

    def hang_up(self) -> None:
        """Cut every connection with RST, as a dying engine does; it goes on listening."""
        self._thread.call(self._cut_all())

    def refuse(self) -> None:
        """Stop listening: connecting is refused until `listen`. Live connections stay."""
        self._thread.call(self._close_server())

    def listen(self) -> None:
        """Listen again on the same port."""
        self._thread.call(self._open_server())

    def reset(self) -> None:
        """Forget everything: cut what is live, clear the records, answer by default."""
        self.answer, self.choose = answers.as_asked, None
        self._thread.call(self._clear())

    def take_ended(self) -> list[Seen]:
        """Return the requests that have ended, in order of arrival, and forget them."""

        def take() -> list[Seen]:
            ended = [seen for seen in self.requests if seen.closed_at is not None]
            self.requests[:] = [seen for seen in self.requests if seen.closed_at is None]
            self.controls.clear()
            return ended

        return self._thread.do(take)

    def most_together(self, which: Callable[[Seen], bool]) -> int:
        """Return the largest number of requests that satisfy `which` and were open at one instant."""
        moments: list[tuple[float, int]] = []
        for seen in list(self.requests):
            if which(seen):
                moments.append((seen.opened_at, 1))
                moments.append((seen.closed_at if seen.closed_at is not None else float("inf"), -1))
        level = most = 0
        # At one and the same instant an end goes before a start: the place was free.
        for _, step in sorted(moments):
            level += step
            most = max(most, level)
        return most

    # Life.

    def start(self) -> None:
        """Listen and answer."""
        self._thread.start()
        self._thread.call(self._open_server())

    def stop(self) -> None:
        """Cut everything, close the port, end the thread."""
        self._thread.call(self._close_server())
        self._thread.call(self._clear())
        self._thread.stop()

    async def _open_server(self) -> None:
        if self._server is None:
            sock = sockets.listen(self.port, host=self._host, send_buffer=SEND_BUFFER_BYTES)
            self.port = int(sock.getsockname()[1])
            self._server = await self._thread.loop.create_server(self._new_peer, sock=sock, backlog=2048)

    async def _close_server(self) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None

    async def _clear(self) -> None:
        await self._cut_all()
        for record in (self.requests, self.controls, self.malformed, self.tapes):
            record.clear()
        self.max_open = self._open
        self.connections = 0

    async def _cut_all(self) -> None:
        peers = list(self._peers)
        for peer in peers:
            peer.reset()
        await asyncio.gather(*(peer.task for peer in peers), return_exceptions=True)

    def _new_peer(self) -> Peer:
        self.connections += 1
        self._numbered += 1
        peer = Peer(self._serve, self._numbered)
        self.tapes.append(peer.tape)
        return peer

    # One connection.

    async def _serve(self, peer: Peer) -> None:
        self._peers.add(peer)
        try:
            while (head := await peer.read_head()) is not None:
                if not await self._one(peer, head):
                    break
        except PeerGoneError:
            pass
        except (MalformedError, ValueError) as wrong:
            self.malformed.append(str(wrong))
            with contextlib.suppress(PeerGoneError):
                await peer.send(b"HTTP/1.1 400 Malformed\r\ncontent-length: 0\r\nconnection: close\r\n\r\n")
        finally:
            self._peers.discard(peer)
            peer.close()

    async def _one(self, peer: Peer, head: RequestHead) -> bool:
        """Answer one request; say whether another may follow on the connection."""
        seen = Seen(head.method, head.path, head.version, head.headers, peer.number, time.monotonic())
        control = CONTROLS.get(head.path.split("?")[0])
        if control is not None:
            self.controls.append(seen)
            seen.body = await peer.read_body(head)
            reply = Reply(seen, peer, self._held)
            await answers.Whole(body=control)(reply)
        else:
            reply = await self._work(peer, head, seen)
        return reply.reusable and head.keep_alive

    async def _work(self, peer: Peer, head: RequestHead, seen: Seen) -> Reply:
        self.requests.append(seen)
        self._open += 1
        self.max_open = max(self.max_open, self._open)
        seen.count_bytes(lambda: peer.accepted)
        reply = Reply(seen, peer, self._held)
        left = False
        try:
            seen.body = await peer.read_body(head)
            script = self.choose(seen) if self.choose is not None else None
            await (script or self.answer)(reply)
        except PeerGoneError:
            left = not peer.cut
            raise
        finally:
            at = peer.gone_at if left and peer.gone_at is not None else time.monotonic()
            seen.close("client" if left else "engine", at)
            self._open -= 1
        return reply
