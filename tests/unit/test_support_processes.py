"""Processes are started, heard, signalled and ended by pid, and their config says what was asked."""

import os
import sys
from pathlib import Path

import pytest

from services.settings.load import load
from tests.support import processes
from tests.support.config_file import FLEET, write_config
from tests.support.processes import Process
from tests.support.redis_server import free_port
from tests.support.waiting import wait_until

SERVER = """
import http.server, os, signal, sys
signal.signal(signal.SIGTERM, signal.SIG_IGN if "stubborn" in sys.argv else lambda *_: os._exit(3))
class Answer(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200 if self.path == "/readyz" else 404)
        self.end_headers()
    def log_message(self, *_): pass
print('{"request_id": "r1", "reason": "completed"}', flush=True)
print('{"event": "something else"}', flush=True)
print('plain text', os.environ.get("TENURE_LEASE__TTL_MS"), flush=True)
http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), Answer).serve_forever()
"""


def start(folder: Path, *words: str) -> Process:
    port = free_port()
    return Process(folder, "little", "-c", SERVER, str(port), *words, url=f"http://127.0.0.1:{port}")


async def test_a_process_is_awaited_heard_and_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TENURE_LEASE__TTL_MS", "1")
    process = start(tmp_path)
    await process.ready()
    assert process.log_lines() == [{"request_id": "r1", "reason": "completed"}]
    assert "plain text None" in process.log_text()
    process.sigterm()
    assert await process.wait() == 3
    await process.end()


async def test_a_stopped_and_stubborn_process_is_ended_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processes, "STOP_LIMIT_S", 0.2)
    process = start(tmp_path, "stubborn")
    await process.ready()
    process.sigstop()
    await wait_until(lambda: "T (stopped)" in status_of(process.pid), "stopped")
    with pytest.raises(AssertionError, match="ends"):
        await process.end()
    assert not process.alive
    with pytest.raises(ProcessLookupError):
        os.kill(process.pid, 0)


async def test_a_process_that_dies_at_start_says_why(tmp_path: Path) -> None:
    process = Process(tmp_path, "broken", "-c", "raise SystemExit('no such luck')", url="http://127.0.0.1:9")
    with pytest.raises(AssertionError, match="no such luck"):
        await process.ready()
    await process.end()


def test_a_config_is_read_back_as_asked(tmp_path: Path) -> None:
    path = write_config(
        tmp_path,
        "redis://127.0.0.1:1/0",
        ["http://127.0.0.1:9", {"url": "http://127.0.0.1:10", "name": "e2", "slots": 2}],
        fleet={"total": 7, "lost_lease": "stop", "budgets": {"idle_ms": 77}},
        tenants={"acme": 3, "bravo": None},
        lease={"learning_ms": 1200},
        admin={"token": 'a"b\\c'},
    )
    settings = load(path, {})
    fleet = settings.fleets[FLEET]
    assert [(engine.name, engine.slots) for engine in fleet.engines] == [("127.0.0.1:9", 64), ("e2", 2)]
    assert (fleet.total, fleet.lost_lease, fleet.budgets.idle_ms) == (7, "stop", 77)
    assert (settings.lease.ttl_ms, settings.lease.learning_ms) == (3000, 1200)
    assert settings.tenants["acme"].quotas == {FLEET: 3}
    assert settings.tenants["bravo"].quotas == {}
    assert settings.admin.token == 'a"b\\c'


def status_of(pid: int) -> str:
    if sys.platform != "linux":
        return "T (stopped)"
    return Path(f"/proc/{pid}/status").read_text()
