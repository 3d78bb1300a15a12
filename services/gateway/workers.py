"""Several processes behind one port. Each is a gateway of its own: own holder, own permits, own metrics.

The parent binds the port, forks, passes signals on and waits; it serves nothing and restarts nobody, which is
left to whoever restarts the whole.
"""

import os
import signal
import sys
import threading
from collections.abc import Callable
from functools import partial
from typing import Final

_STOPPING: Final = (signal.SIGTERM, signal.SIGINT)


def run_workers(count: int, serve: Callable[[int], None]) -> int:
    """Fork `count` workers that each run `serve(number)`; return 0 when all of them ended well, else 1.

    Must be called before any thread or event loop exists.
    """
    watched = {*_STOPPING, signal.SIGCHLD}
    signal.pthread_sigmask(signal.SIG_BLOCK, watched)
    parent_lives, parent_end = os.pipe()
    workers: set[int] = set()
    for number in range(1, count + 1):
        pid = os.fork()
        if pid == 0:
            os.close(parent_end)
            _be_worker(partial(serve, number), watched, parent_lives)
        workers.add(pid)
    os.close(parent_lives)
    failed = False
    while workers:
        received = signal.sigwait(watched)
        if received in _STOPPING:
            for pid in workers:
                os.kill(pid, received)
        failed |= _reap(workers)
    return int(failed)


def _be_worker(serve: Callable[[], None], watched: set[signal.Signals], parent_lives: int) -> None:
    """Serve and exit; never returns."""
    code = 1
    try:
        # A Ctrl-C reaches the parent alone, which passes it on once: a second one would mean "hurry".
        os.setpgid(0, 0)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, watched)
        threading.Thread(target=_end_with_parent, args=(parent_lives,), daemon=True).start()
        serve()
        code = 0
    except Exception as error:  # noqa: BLE001  (the parent has no way to see it; the line must come from here)
        sys.stderr.write(f"tenure gateway: {error}\n")
    finally:
        sys.stderr.flush()
        os._exit(code)


def _end_with_parent(parent_lives: int) -> None:
    """Drain when the parent has died without a word: its end of the pipe closes with it."""
    os.read(parent_lives, 1)
    os.kill(os.getpid(), signal.SIGTERM)


def _reap(workers: set[int]) -> bool:
    """Take leave of workers that have ended; say whether any of them ended badly."""
    failed = False
    for pid in tuple(workers):
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            workers.discard(pid)
            failed |= os.waitstatus_to_exitcode(status) != 0
    return failed
