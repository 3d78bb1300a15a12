"""`python -m services.gateway`: read the configuration, bind, serve until told to stop."""

import argparse
import asyncio
import gc
import re
import socket
import sys
from pathlib import Path
from typing import Final

import uvloop

from services.gateway.server import listen, serve
from services.gateway.workers import run_workers
from services.permits.errors import PermitError
from services.permits.names import NAME_CHARS_MAX
from services.settings.load import SettingsError, find_config, load
from services.settings.schema import Settings

# Objects made before a collection looks at the young ones; a few MiB at the most. Those that a collection
# meets alive (every open connection) are looked at again soon: a connection is a cycle, and would else stay
# as garbage until twenty collections later.
GC_THRESHOLDS: Final = (50_000, 2, 2)
# How long one thread may run while another waits for its turn.
SWITCH_S: Final = 0.001


def main(arguments: list[str] | None = None) -> int:
    """Run one replica and return the exit code: 0 after a drain, 1 with one line on stderr, 2 wrong usage."""
    options = _options(arguments)
    try:
        settings = load(find_config(options.config))
        return run(settings, host=options.host, port=options.port, name=options.name)
    except (SettingsError, PermitError, OSError) as error:
        sys.stderr.write(f"tenure gateway: {error}\n")
        return 1


def run(
    settings: Settings, *, host: str | None = None, port: int | None = None, name: str | None = None
) -> int:
    """Serve with `settings`, the arguments laid over its `gateway` section. Raises PermitError, OSError."""
    host = host or settings.gateway.host
    port = settings.gateway.port if port is None else port
    if not settings.fleets:
        raise SettingsError("fleets: there is none; write for example [fleets.demo] with models and engines")
    try:
        sock = listen(host, port, stall_ms=settings.budgets.stall_ms)
    except OSError as error:
        why = error.strerror or str(error)
        raise OSError(f"gateway.host, gateway.port: cannot listen on {host}:{port}: {why}") from None
    name = name or settings.gateway.name or _default_name(sock.getsockname()[1])
    if settings.gateway.workers == 1:
        _serve(settings, name, sock)
        return 0
    return run_workers(
        settings.gateway.workers, lambda number: _serve(settings, _worker_name(name, number), sock)
    )


def _serve(settings: Settings, name: str, sock: socket.socket) -> None:
    # What was imported lives as long as the process, and a request leaves few cycles behind: looking through
    # all of it every few requests was a quarter of a request's CPU.
    gc.collect()
    gc.freeze()
    gc.set_threshold(*GC_THRESHOLDS)
    # The ticker's thread puts a tick for hundreds of leases together: streams must not stand still meanwhile.
    sys.setswitchinterval(SWITCH_S)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(serve(settings, name=name, sock=sock))


def _worker_name(name: str, number: int) -> str:
    suffix = f"-w{number}"
    return name[: NAME_CHARS_MAX - len(suffix)] + suffix


def _default_name(port: int) -> str:
    """Return host and port as a legal name; the library adds what makes each start a holder of its own."""
    return re.sub(r"[^A-Za-z0-9._-]", "-", f"{socket.gethostname()}-{port}")[-NAME_CHARS_MAX:]


def _options(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m services.gateway", description="One gateway replica.")
    parser.add_argument("--config", type=Path, help="the TOML file; default: $TENURE_CONFIG, ./tenure.toml")
    parser.add_argument("--host", help="address to listen on, over the file's gateway.host")
    parser.add_argument("--port", type=int, help="port to listen on, over the file's gateway.port")
    parser.add_argument("--name", help="name of this replica, over the file's gateway.name")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
