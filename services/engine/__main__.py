"""`python -m services.engine`: the same as `tenure engine`."""

from __future__ import annotations

import argparse
import sys
from dataclasses import asdict

from services.engine.options import EngineError, EngineOptions
from services.engine.server import serve


def main(arguments: list[str] | None = None) -> int:
    """Run the engine. Exit status: 0 stopped, 1 could not start (one line says why), 2 wrong usage."""
    try:
        serve(EngineOptions(**vars(_parser().parse_args(arguments))))
    except EngineError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m services.engine", description="The simulated engine.")
    meanings = {
        "host": "address to listen on",
        "port": "port to listen on; 0 for any free one",
        "model": "the one model it serves",
        "tokens": "tokens in an answer when the request has no max_tokens",
        "token-ms": "gap between two tokens of a stream",
        "prefill-ms": "time to compute one prompt token that is not in the cache",
        "slots": "requests that compute at the same time; others wait",
        "pages": "size of the KV cache; 0: 128 pages per slot, at least 4096",
        "page-tokens": "tokens in a page; prefixes are reused in whole pages",
    }
    for name, value in asdict(EngineOptions()).items():
        flag = name.replace("_", "-")
        text = f"{meanings[flag]} (default {value})"
        parser.add_argument(f"--{flag}", type=type(value), default=value, help=text)
    return parser


if __name__ == "__main__":
    sys.exit(main())
