"""`python -m services.reaper --config FILE [--host H] [--port P] [--once [--json]]`."""

import argparse
import os
import sys
from pathlib import Path

from services.reaper.run import complain, run, run_once
from services.settings.load import SettingsError, find_config, load


def main() -> int:
    """Read the command line and the configuration, then reap."""
    asked = _arguments()
    try:
        settings = load(find_config(asked.config, os.environ), os.environ)
    except SettingsError as error:
        complain(str(error))
        return 1
    if asked.once:
        return run_once(settings, as_json=asked.json)
    port = settings.reaper.port if asked.port is None else asked.port
    return run(settings, host=asked.host, port=port)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m services.reaper", description=__doc__)
    parser.add_argument("--config", type=Path, help="the TOML file")
    parser.add_argument("--host", default="127.0.0.1", help="address of the health port")
    parser.add_argument("--port", type=int, help="health port; default reaper.port")
    parser.add_argument("--once", action="store_true", help="make one whole pass and exit")
    parser.add_argument("--json", action="store_true", help="with --once: print JSON")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
