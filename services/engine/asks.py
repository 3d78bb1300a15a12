"""Request bodies: checked against what the OpenAI API allows and turned into tokens."""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import blake2b
from typing import Annotated, Literal, TypeVar

import msgspec
from msgspec import Meta, Raw, Struct

from services.engine.errors import BadRequest
from services.engine.tokens import START, split

Kind = Literal["chat", "text", "embedding"]

SHOWN_NAME_CHARS = 64
Count = Annotated[int, Meta(ge=1)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """One request, ready to compute. `prompt` is never empty: it begins with a token of the engine's own."""

    kind: Kind
    prompt: list[str]
    max_tokens: int | None = None
    stream: bool = False
    include_usage: bool = False
    progress: bool = False
    inputs: int = 1
    base64: bool = False


class _StreamOptions(Struct):
    include_usage: bool = False


class _Message(Struct):
    role: Annotated[str, Meta(max_length=64)]
    content: str | list[Raw] | None = None
    tool_calls: Raw = Raw(b"")


class _Part(Struct):
    type: str
    text: str = ""


class _Common(Struct, kw_only=True):
    model: str
    max_tokens: Count | None = None
    max_completion_tokens: Count | None = None
    stream: bool | None = None
    stream_options: _StreamOptions | None = None
    return_progress: bool = False
    n: Annotated[int, Meta(ge=1, le=1)] | None = None


class _ChatBody(_Common, kw_only=True):
    messages: Annotated[list[_Message], Meta(min_length=1)]
    tools: Raw = Raw(b"")


class _TextBody(_Common, kw_only=True):
    prompt: str | list[int | str]


class _EmbeddingBody(Struct, kw_only=True):
    model: str
    input: str | list[int | str | list[int]]
    encoding_format: Literal["float", "base64"] = "float"


_Body = TypeVar("_Body", _ChatBody, _TextBody, _EmbeddingBody)


def parse(kind: Kind, body: bytes, model: str) -> Ask:
    """Turn a body into an ask. Raises BadRequest: 400 with the field that is wrong, 404 for another model."""
    if kind == "chat":
        chat = _decode(body, _ChatBody, model)
        return _generation("chat", chat, _chat_tokens(chat))
    if kind == "text":
        text = _decode(body, _TextBody, model)
        return _generation("text", text, [START, *_text_tokens(text.prompt)])
    embedding = _decode(body, _EmbeddingBody, model)
    inputs = _embedding_inputs(embedding.input)
    tokens = [token for part in inputs for token in (START, *part)]
    return Ask(
        kind="embedding", prompt=tokens, inputs=len(inputs), base64=embedding.encoding_format == "base64"
    )


def _decode(body: bytes, shape: type[_Body], model: str) -> _Body:
    try:
        decoded = msgspec.json.decode(body, type=shape)
    except (msgspec.DecodeError, RecursionError, UnicodeError) as error:
        raise BadRequest(f"the body is not a valid request: {error}") from error
    if decoded.model != model:
        shown = decoded.model[:SHOWN_NAME_CHARS]
        raise BadRequest(
            f"the model {shown!r} does not exist; this engine serves {model!r}",
            status=404,
            code="model_not_found",
        )
    return decoded


def _generation(kind: Kind, body: _Common, prompt: list[str]) -> Ask:
    return Ask(
        kind=kind,
        prompt=prompt,
        max_tokens=body.max_completion_tokens or body.max_tokens,
        stream=bool(body.stream),
        include_usage=body.stream_options is not None and body.stream_options.include_usage,
        progress=body.return_progress,
    )


def _chat_tokens(body: _ChatBody) -> list[str]:
    """The chat template: a marker before and after each message, and the assistant's turn begun."""
    tokens = [START]
    if body.tools:
        tokens += ["<|tools|>", *_opaque(body.tools)]
    for message in body.messages:
        tokens.append(f"<|{message.role}|>")
        tokens += _content_tokens(message.content)
        if message.tool_calls:
            tokens += _opaque(message.tool_calls)
        tokens.append("<|end|>")
    tokens.append("<|assistant|>")
    return tokens


def _content_tokens(content: str | list[Raw] | None) -> list[str]:
    if content is None or isinstance(content, str):
        return split(content or "")
    tokens: list[str] = []
    for raw in content:
        try:
            part = msgspec.json.decode(raw, type=_Part)
        except msgspec.DecodeError as error:
            raise BadRequest(f"a part of `content` is not valid: {error}") from error
        tokens += split(part.text) if part.type == "text" else _opaque(raw)
    return tokens


def _opaque(raw: Raw) -> list[str]:
    """Tokens for what is not read (pictures, tools): one for each four bytes; the first tells them apart."""
    content = bytes(raw)
    return [blake2b(content, digest_size=12).hexdigest(), *("<|data|>" for _ in range(len(content) // 4))]


def _text_tokens(prompt: str | list[int | str]) -> list[str]:
    if isinstance(prompt, str):
        return split(prompt)
    if len(prompt) == 1 and isinstance(prompt[0], str):
        return split(prompt[0])
    if any(isinstance(item, str) for item in prompt):
        raise BadRequest(f"`prompt` has {len(prompt)} items; send one prompt in a request")
    return [f"#{item}" for item in prompt]


def _embedding_inputs(given: str | list[int | str | list[int]]) -> list[list[str]]:
    if isinstance(given, str):
        return [split(given)]
    if not given:
        raise BadRequest("`input` is empty; send at least one text")
    if all(isinstance(item, int) for item in given):
        return [[f"#{item}" for item in given]]
    inputs: list[list[str]] = []
    for item in given:
        if isinstance(item, int):
            raise BadRequest("`input` mixes token ids with texts; send one or the other")
        inputs.append(split(item) if isinstance(item, str) else [f"#{token}" for token in item])
    return inputs
