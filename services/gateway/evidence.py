"""The engine's own report of what its cache held, turned into facts about prefixes.

Read from the last bytes of a reply, by structure, so text that a model generates cannot pose as a report.
"""

import re
from collections.abc import Iterable
from typing import Final

import msgspec

from services.gateway.prefixes import Boundary

# A template adds tokens that no message contains, and engines cache whole blocks only.
COVER_MARGIN: Final = 0.9


class _Details(msgspec.Struct):
    cached_tokens: int | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: int | None = None
    input_tokens: int | None = None
    completion_tokens: int | None = None
    output_tokens: int | None = None
    prompt_tokens_details: _Details | msgspec.UnsetType | None = msgspec.UNSET
    input_tokens_details: _Details | msgspec.UnsetType | None = msgspec.UNSET


class _Timings(msgspec.Struct):
    cache_n: int | None = None
    prompt_n: int | None = None
    predicted_n: int | None = None


class _Inner(msgspec.Struct):
    usage: _Usage | None = None


class _Reply(msgspec.Struct):
    """A whole JSON reply or the data of one event. The Responses API nests it in `response`."""

    usage: _Usage | None = None
    timings: _Timings | None = None
    response: _Inner | None = None


class Report(msgspec.Struct, frozen=True):
    """What an engine said about one request, in tokens; None is "said nothing"."""

    prompt: int | None = None
    cached: int | None = None
    generated: int | None = None


_reply = msgspec.json.Decoder(_Reply)
_usage = msgspec.json.Decoder(_Usage)
_LOOSE_USAGE: Final = re.compile(rb'(?<!\\)"usage"\s*:\s*(\{(?:[^{}"]|"[^"\\]*"|\{[^{}]*\})*\})')


def read_report(data: bytes) -> Report | None:
    """Read one JSON document; None when it is none or reports nothing."""
    try:
        reply = _reply.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
    usage = reply.usage or (reply.response.usage if reply.response else None)
    return _of(usage, reply.timings)


def may_report(data: bytes) -> bool:
    """Whether it is worth parsing: cheap, and never wrong where the answer is no."""
    # Not `in`: for bytes it costs three times as much.
    return data.find(b"usage") >= 0 or data.find(b"timings") >= 0


def read_events(events: Iterable[bytes]) -> Report | None:
    """Merge the reports of those events at the end of a stream that have one; later fields win."""
    merged: Report | None = None
    for data in events:
        found = read_report(data)
        if found is not None:
            merged = found if merged is None else _merge(merged, found)
    return merged


def read_tail(tail: bytes) -> Report | None:
    """Find the usage in the end of a JSON reply too long to be kept whole."""
    found = _LOOSE_USAGE.findall(tail)
    try:
        return _of(_usage.decode(found[-1]), None) if found else None
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return None


def covered(report: Report | None, boundaries: tuple[Boundary, ...]) -> dict[str, bool]:
    """Say of each boundary whether the engine's cache held the prompt up to it; empty if it did not say.

    A null count in a report is a report of none: it can only make later requests colder.
    """
    if report is None or report.cached is None or not report.prompt:
        return {}
    cached, prompt = report.cached, report.prompt
    return {
        boundary.hash: cached > 0 and cached >= COVER_MARGIN * boundary.share * prompt
        for boundary in boundaries
    }


def _of(usage: _Usage | None, timings: _Timings | None) -> Report | None:
    if usage is None and timings is None:
        return None
    prompt = cached = generated = None
    if timings is not None and timings.cache_n is not None and timings.prompt_n is not None:
        prompt, cached = timings.cache_n + timings.prompt_n, timings.cache_n
        generated = timings.predicted_n
    if usage is not None:
        prompt = _first(usage.prompt_tokens, _first(usage.input_tokens, prompt))
        generated = _first(usage.completion_tokens, _first(usage.output_tokens, generated))
        for details in (usage.prompt_tokens_details, usage.input_tokens_details):
            if details is not msgspec.UNSET:
                cached = (details.cached_tokens if details else None) or cached or 0
    return Report(prompt, cached, generated)


def _first(value: int | None, other: int | None) -> int | None:
    return other if value is None else value


def _merge(old: Report, new: Report) -> Report:
    return Report(
        _first(new.prompt, old.prompt), _first(new.cached, old.cached), _first(new.generated, old.generated)
    )
