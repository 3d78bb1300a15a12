"""What the simulated engine is told at start: checked once, never changed."""

from __future__ import annotations

from dataclasses import dataclass

# Enough that the cache, by default, is never what a request waits for.
PAGES_PER_SLOT = 128
FEWEST_DEFAULT_PAGES = 4096
MOST_PAGES = 1_000_000
MOST_SLOTS = 100_000


class EngineError(Exception):
    """The engine cannot start: the message is one line that names the option and the cure."""


class BadOptionError(EngineError):
    """An option is out of its range."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineOptions:
    """How the engine answers and how much it can do at once. Raises BadOptionError.

    tokens      how many tokens a request gets that does not say `max_tokens`
    token_ms    the gap between two tokens of one stream
    prefill_ms  the time to compute one prompt token that is not in the cache; 0 for none
    slots       requests that compute at the same time; the others wait in order of arrival
    pages       size of the KV cache in pages; 0: 128 pages per slot and at least 4096
    page_tokens tokens in a page: prefixes are reused in whole pages
    """

    host: str = "127.0.0.1"
    port: int = 8710
    model: str = "demo"
    tokens: int = 64
    token_ms: float = 20.0
    prefill_ms: float = 0.2
    slots: int = 8
    pages: int = 0
    page_tokens: int = 16

    def __post_init__(self) -> None:
        _check_range("port", self.port, 0, 65535)
        _check_range("tokens", self.tokens, 1, 1_000_000)
        _check_range("token-ms", self.token_ms, 0, 3_600_000)
        _check_range("prefill-ms", self.prefill_ms, 0, 3_600_000)
        _check_range("slots", self.slots, 1, MOST_SLOTS)
        _check_range("pages", self.pages, 0, MOST_PAGES)
        _check_range("page-tokens", self.page_tokens, 1, 4096)
        if not self.model or len(self.model) > 256:  # noqa: PLR2004 - the gateway takes no longer name
            raise BadOptionError("--model: give a name of 1 to 256 characters")

    @property
    def page_count(self) -> int:
        """The size of the cache, with the default worked out."""
        wanted = max(FEWEST_DEFAULT_PAGES, PAGES_PER_SLOT * self.slots)
        return self.pages or min(MOST_PAGES, wanted)


def _check_range(name: str, value: float, least: float, most: float) -> None:
    if not least <= value <= most:
        raise BadOptionError(f"--{name}: {value:g} is out of range; give {least:g} to {most:g}")
