"""The floor of the language: a relay on uvloop without HTTP framework and parser, which admits everybody.

It passes bytes on as they come, and looks at them only as far as it must to see where a message ends, so that
both connections can be kept. No back-pressure, no budgets, no errors but a closed connection.

`python -m bench.uvloop_relay --port 8700 --engine 127.0.0.1:8710`
"""

import argparse
import asyncio
from functools import partial
from typing import Final, cast

import uvloop

from bench.wires import ReplyEnd, message_bytes

_CONNECT_S: Final = 5.0


class Engine(asyncio.Protocol):
    """A connection to the engine, and the client whose request it has; None while it is idle."""

    def __init__(self, relay: "Relay") -> None:
        """Belong to a relay."""
        self._relay = relay
        self._client: Client | None = None
        self._end = ReplyEnd()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)

    def ask(self, request: bytes, client: "Client") -> None:
        """Send a request of this client."""
        self._client, self._end = client, ReplyEnd()
        self.transport.write(request)

    def data_received(self, data: bytes) -> None:
        client = self._client
        if client is None:
            self.transport.abort()
            return
        client.transport.write(data)
        if self._end.feed(data):
            self._client = None
            self._relay.idle.append(self)
            client.answered()

    def connection_lost(self, error: Exception | None) -> None:
        del error
        if self._client is not None:
            self._client.transport.abort()
        elif self in self._relay.idle:
            self._relay.idle.remove(self)


class Client(asyncio.Protocol):
    """A client's connection: one request at a time, further ones wait in the buffer."""

    def __init__(self, relay: "Relay") -> None:
        """Belong to a relay."""
        self._relay = relay
        self._data = bytearray()
        self._engine: Engine | None = None
        self._is_asking = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        self._data += data
        self._ask_next()

    def answered(self) -> None:
        """Note that the whole reply has been passed on."""
        self._engine = None
        self._is_asking = False
        self._ask_next()

    def connection_lost(self, error: Exception | None) -> None:
        del error
        if self._engine is not None:
            self._engine.transport.abort()

    def _ask_next(self) -> None:
        if self._is_asking or not self._data:
            return
        size = message_bytes(self._data)
        if size is None or len(self._data) < size:
            return
        request = bytes(self._data[:size])
        del self._data[:size]
        self._is_asking = True
        if self._relay.idle:
            self._engine = self._relay.idle.pop()
            self._engine.ask(request, self)
        else:
            self._relay.connect(request, self)

    def begun(self, engine: Engine) -> None:
        """Note which connection has the request."""
        self._engine = engine


class Relay:
    """All connections of one process."""

    def __init__(self, host: str, port: int) -> None:
        """Know where the engine is."""
        self.idle: list[Engine] = []
        self._at = (host, port)
        self._connecting: set[asyncio.Task[None]] = set()

    def connect(self, request: bytes, client: Client) -> None:
        """Send a request on a new connection as soon as there is one."""
        task = asyncio.create_task(self._connect(request, client))
        self._connecting.add(task)
        task.add_done_callback(self._connecting.discard)

    async def _connect(self, request: bytes, client: Client) -> None:
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(_CONNECT_S):
                _, engine = await loop.create_connection(partial(Engine, self), *self._at)
        except (OSError, TimeoutError):
            client.transport.abort()
            return
        if client.transport.is_closing():
            engine.transport.abort()
            return
        client.begun(engine)
        engine.ask(request, client)


async def serve(port: int, engine_host: str, engine_port: int) -> asyncio.Server:
    """Listen on a port of 127.0.0.1 (0: any free one) and return the running server."""
    relay = Relay(engine_host, engine_port)
    return await asyncio.get_running_loop().create_server(
        partial(Client, relay), "127.0.0.1", port, backlog=4096
    )


async def _serve_forever(port: int, engine_host: str, engine_port: int) -> None:
    server = await serve(port, engine_host, engine_port)
    await server.serve_forever()


def main() -> None:
    """Serve until ended by a signal."""
    parser = argparse.ArgumentParser(prog="bench.uvloop_relay", description=__doc__)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--engine", required=True, help="HOST:PORT")
    options = parser.parse_args()
    host, _, port = options.engine.rpartition(":")
    uvloop.run(_serve_forever(options.port, host, int(port)))


if __name__ == "__main__":
    main()
