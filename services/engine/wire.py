"""The answers' bytes: JSON bodies and stream chunks whose fixed parts are encoded once per request.

A token costs one concatenation: the words of the engine need no escape, so they go between two prepared
halves.
"""

from __future__ import annotations

import base64
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec

from services.engine.tokens import START, page_digest

if TYPE_CHECKING:
    from collections.abc import Sequence

    from services.engine.asks import Ask, Kind

DONE = b"data: [DONE]\n\n"
VECTOR_SIZE = 16

_ID_PREFIX: dict[Kind, str] = {"chat": "chatcmpl-", "text": "cmpl-", "embedding": "embd-"}
_OBJECT: dict[Kind, str] = {"chat": "chat.completion", "text": "text_completion", "embedding": "list"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What a request cost: the engine's own evidence of what it had in its cache."""

    prompt_tokens: int
    cached_tokens: int
    generated_tokens: int
    reason: str = "stop"

    @property
    def usage(self) -> dict[str, object]:
        """OpenAI's form, in the body or in the last chunk before the end of a stream."""
        return {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.generated_tokens,
            "total_tokens": self.prompt_tokens + self.generated_tokens,
            "prompt_tokens_details": {"cached_tokens": self.cached_tokens},
        }

    @property
    def timings(self) -> dict[str, int]:
        """llama.cpp's form, in the body or the finish chunk, never asked for; `prompt_n` was computed."""
        return {
            "cache_n": self.cached_tokens,
            "prompt_n": self.prompt_tokens - self.cached_tokens,
            "predicted_n": self.generated_tokens,
        }


class Wire:
    """Encodes one request's answer. `tail_id` is what tells it from others, safe to stand in JSON."""

    def __init__(self, ask: Ask, *, model: str, tail_id: str, created: int) -> None:
        self._kind = ask.kind
        self._ask = ask
        suffix = ".chunk" if ask.kind == "chat" and ask.stream else ""
        self._common: dict[str, object] = {
            "id": _ID_PREFIX[ask.kind] + tail_id,
            "object": _OBJECT[ask.kind] + suffix,
            "created": created,
            "model": model,
        }
        # With include_usage each chunk says `"usage": null` until the last one, as OpenAI's do.
        self._usage_null: dict[str, object] = {"usage": None} if ask.include_usage else {}
        whole = self._event({**self._common, "choices": [self._choice("\t")], **self._usage_null})
        # From the right: a model's name may hold anything, what follows the word is ours.
        self._before, _, self._after = whole.rpartition(rb"\t")

    def token(self, word: str) -> bytes:
        """A content chunk."""
        return self._before + word.encode() + self._after

    def role(self) -> bytes:
        """The chunk that opens a chat stream: it names the role and says nothing. Empty for other kinds."""
        if self._kind != "chat":
            return b""
        choice = {
            "index": 0,
            "delta": {"role": "assistant", "content": None},
            "logprobs": None,
            "finish_reason": None,
        }
        return self._event({**self._common, "choices": [choice], **self._usage_null})

    def progress(self, *, total: int, cached: int, done: int, time_ms: int) -> bytes:
        """How far the prefill is, for a request with `return_progress`; `done` counts cached tokens too."""
        progress = {"total": total, "cache": cached, "processed": done, "time_ms": time_ms}
        return self._event({**self._common, "choices": [], **self._usage_null, "prompt_progress": progress})

    def ending(self, report: Report) -> bytes:
        """The last bytes of a stream: the finish chunk, the usage chunk if it was asked for, and `[DONE]`."""
        empty: dict[str, object] = {"delta": {}} if self._kind == "chat" else {"text": ""}
        choice = {"index": 0, **empty, "logprobs": None, "finish_reason": report.reason}
        finish = {**self._common, "choices": [choice], **self._usage_null, "timings": report.timings}
        events = [self._event(finish)]
        if self._ask.include_usage:
            events.append(self._event({**self._common, "choices": [], "usage": report.usage}))
        return b"".join([*events, DONE])

    def body(self, text: str, report: Report) -> bytes:
        """A whole answer, not streamed."""
        said: dict[str, object] = {"text": text}
        if self._kind == "chat":
            said = {"message": {"role": "assistant", "content": text}}
        choice = {"index": 0, **said, "logprobs": None, "finish_reason": report.reason}
        return msgspec.json.encode(
            {**self._common, "choices": [choice], "usage": report.usage, "timings": report.timings}
        )

    def embeddings(self, vectors: Sequence[Sequence[float]], report: Report) -> bytes:
        """The answer to an embedding request, in the encoding asked for."""
        rows = [
            {
                "object": "embedding",
                "index": index,
                "embedding": _packed(vector) if self._ask.base64 else vector,
            }
            for index, vector in enumerate(vectors)
        ]
        usage = {key: value for key, value in report.usage.items() if key != "completion_tokens"}
        return msgspec.json.encode(
            {"object": "list", "model": self._common["model"], "data": rows, "usage": usage}
        )

    def _choice(self, text: str) -> dict[str, object]:
        said: dict[str, object] = {"delta": {"content": text}} if self._kind == "chat" else {"text": text}
        return {"index": 0, **said, "logprobs": None, "finish_reason": None}

    def _event(self, chunk: dict[str, object]) -> bytes:
        return b"data: " + msgspec.json.encode(chunk) + b"\n\n"


def error_body(message: str, *, kind: str, code: str) -> bytes:
    """OpenAI's error envelope."""
    return msgspec.json.encode({"error": {"message": message, "type": kind, "param": None, "code": code}})


def vectors_of(prompt: Sequence[str], inputs: int) -> list[list[float]]:
    """Deterministic vectors, one for each input: the inputs of a prompt begin with START."""
    starts = [index for index, token in enumerate(prompt) if token == START][:inputs]
    ends = [*starts[1:], len(prompt)]
    return [_vector(prompt[start:end]) for start, end in zip(starts, ends, strict=True)]


def _vector(tokens: Sequence[str]) -> list[float]:
    digests = (page_digest(bytes([part]), tokens) for part in range(VECTOR_SIZE))
    return [int.from_bytes(digest[:2], "big") / 65535 * 2 - 1 for digest in digests]


def _packed(vector: Sequence[float]) -> str:
    return base64.b64encode(struct.pack(f"<{len(vector)}f", *vector)).decode()
