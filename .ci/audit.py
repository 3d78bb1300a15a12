"""Look up known vulnerabilities of everything in .venv, by pip-audit, in an environment of its own.

Exit code 1 when there is one; 0 when there is none, or when it cannot be known here, which the last line then
says. An index that is away, or that keeps no such records, is no reason to fail.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
HOME = ROOT / ".cache" / "audit"
# One answer tells whether the index has such records at all; only then is it asked about all others.
PROBE = "fastapi"


class NotDone(Exception):
    """It cannot be known here; the message says why."""


def main() -> int:
    """Audit, and say in one line what came of it."""
    try:
        pins = _pins()
        _audit([pin for pin in pins if pin.startswith(f"{PROBE}==")])
        return _tell(_audit(pins))
    except NotDone as why:
        print(f"audit: NOT DONE: {why}")
        return 0


def _pins() -> list[str]:
    """Return what is installed, each as name==version."""
    listed = _run(sys.executable, "-m", "pip", "list", "--format=freeze", "--exclude-editable")
    return [line for line in listed.stdout.splitlines() if "==" in line]


def _audit(pins: list[str]) -> list[dict[str, Any]]:
    """Return what pip-audit says of each package; raise NotDone when the index told nothing of any."""
    if not pins:
        raise NotDone(f"{PROBE} is not installed: run `make test` first")
    wanted = HOME / "pins.txt"
    tool = _tool()
    wanted.write_text("\n".join(pins) + "\n")
    options = ("--no-deps", "--disable-pip", "--progress-spinner=off", "--format=json", "--timeout=10")
    done = _run(str(tool), "--requirement", str(wanted), *options)
    try:
        found: list[dict[str, Any]] = json.loads(done.stdout)["dependencies"]
    except (ValueError, KeyError):
        said = done.stderr.strip().splitlines() or ["pip-audit said nothing"]
        raise NotDone(f"the index cannot be asked: {said[-1][:200]}") from None
    if all("skip_reason" in package for package in found):
        raise NotDone("the index that is set up here keeps no records of vulnerabilities")
    return found


def _tool() -> Path:
    """Return the path of pip-audit, installed once."""
    tool = HOME / "bin" / "pip-audit"
    if not tool.exists():
        _run(sys.executable, "-m", "venv", "--without-pip", str(HOME))
        python = str(HOME / "bin" / "python")
        made = _run(sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "pip-audit>=2.10")
        if not tool.exists():
            said = made.stderr.strip().splitlines() or ["pip said nothing"]
            raise NotDone(f"pip-audit cannot be installed: {said[-1][:200]}")
    return tool


def _tell(found: list[dict[str, Any]]) -> int:
    known = [(package, hole) for package in found for hole in package.get("vulns", ())]
    for package, hole in known:
        mended = ", ".join(hole["fix_versions"]) or "no version yet"
        print(f"audit: {package['name']} {package['version']}: {hole['id']}, mended in {mended}")
    untold = sum("skip_reason" in package for package in found)
    told = len(found) - untold
    print(f"audit: {len(known)} known vulnerabilities in {told} packages; nothing told of {untold}")
    return int(bool(known))


def _run(*command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=600)


if __name__ == "__main__":
    sys.exit(main())
