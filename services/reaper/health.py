"""The reaper's health port: alive, ready, figures. Answers come from memory and never wait."""

import contextlib
import socket
from collections.abc import Awaitable, Callable, Iterator

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from services.reaper.metrics import Metrics
from services.reaper.pulse import Pulse


def health_app(pulse: Pulse, metrics: Metrics) -> Starlette:
    """Build the app: /healthz says the loop turns, /readyz that passes succeed, /metrics."""

    async def healthz(_: Request) -> Response:
        return _verdict(*pulse.alive())

    async def readyz(_: Request) -> Response:
        return _verdict(*pulse.ready())

    async def figures(_: Request) -> Response:
        return Response(metrics.text(), media_type="text/plain; version=0.0.4; charset=utf-8")

    return Starlette(
        routes=[
            _get("/healthz", healthz),
            _get("/readyz", readyz),
            _get("/metrics", figures),
        ]
    )


class HealthServer(uvicorn.Server):
    """A uvicorn server that leaves signals to the reaper's own loop."""

    def __init__(self, app: Starlette) -> None:
        """Prepare to serve; the socket comes with `serve(sockets=[...])`."""
        super().__init__(
            uvicorn.Config(
                app, log_config=None, access_log=False, lifespan="off", timeout_graceful_shutdown=1
            )
        )

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Install nothing: one place decides what SIGTERM means."""
        yield


def listen(host: str, port: int) -> socket.socket:
    """Return a bound socket, before anything else is started. Raises OSError when it is taken."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    bound = socket.socket(family, socket.SOCK_STREAM)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind((host, port))
    except BaseException:
        bound.close()
        raise
    return bound


def _get(path: str, answer: Callable[[Request], Awaitable[Response]]) -> Route:
    return Route(path, answer, methods=["GET"])


def _verdict(good: bool, why: str) -> Response:  # noqa: FBT001  (the two halves of one answer)
    return JSONResponse(
        {"status": "ok" if good else "failing", "reason": why}, status_code=200 if good else 503
    )
