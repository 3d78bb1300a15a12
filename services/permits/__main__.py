"""`python -m services.permits --compose DIR` writes the composed Lua scripts, for linters and for eyes."""

import argparse
from pathlib import Path

from services.permits.scripts import load


def main() -> None:
    """Write every composed script into a directory."""
    parser = argparse.ArgumentParser(prog="python -m services.permits", description=__doc__)
    parser.add_argument("--compose", type=Path, required=True, metavar="DIR")
    target: Path = parser.parse_args().compose
    target.mkdir(parents=True, exist_ok=True)
    for script in load().values():
        (target / f"{script.verb}.lua").write_text(script.text)


if __name__ == "__main__":
    main()
