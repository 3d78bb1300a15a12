"""What a request asks for, read from its head and body. Pure: no I/O, no clock.

The body is parsed once, for the few fields below; the engine gets the bytes as they came.
"""

import hashlib
import re
from functools import lru_cache
from typing import Final
from urllib.parse import unquote, unquote_plus

import msgspec

from services.gateway.headers import Head
from services.gateway.prefixes import Boundary, begun, framed, of_parts, of_text
from services.gateway.refusals import NotServed

MODEL_CHARS_MAX: Final = 256
# A model name sits in the first form fields; a whole upload is not searched for it. Each repetition has an
# end: a form made for it would otherwise keep the search busy for seconds.
_FORM_SCAN_BYTES: Final = 64 * 1024
_FORM_TAIL_BYTES: Final = 4 * 1024
_FORM_MODEL: Final = re.compile(
    rb'content-disposition:[^\r\n]{0,64}?;[ \t]{0,8}name="?model"?[ \t]{0,8}(?:;[^\r\n]{0,64})?\r?\n'
    rb"(?:[^\r\n]{1,128}\r?\n){0,4}+\r?\n([^\r\n]*)\r?\n",
    re.IGNORECASE,
)
# Parts of a prompt have a comma between them; a text has some too. A prompt with more of them than any text
# that fits a context is not taken apart: that would take seconds, and a hundred times its size in memory.
_COMMAS_MAX: Final = 100_000
# Of how many paths and models the beginning of a chain is kept; a path is no longer than a head.
KEPT_BEGINNINGS_MAX: Final = 64
_NOTHING: Final = msgspec.Raw(b"")
_TRUE: Final = msgspec.Raw(b"true")


class _Fields(msgspec.Struct):
    """The fields that decide anything. Everything else is the engine's business."""

    model: msgspec.Raw = _NOTHING
    stream: msgspec.Raw = _NOTHING
    messages: msgspec.Raw = _NOTHING
    input: msgspec.Raw = _NOTHING
    prompt: msgspec.Raw = _NOTHING
    # What an engine's template puts in front of the prompt or around it.
    tools: msgspec.Raw = _NOTHING
    functions: msgspec.Raw = _NOTHING
    system: msgspec.Raw = _NOTHING
    instructions: msgspec.Raw = _NOTHING
    documents: msgspec.Raw = _NOTHING
    suffix: msgspec.Raw = _NOTHING
    chat_template: msgspec.Raw = _NOTHING
    chat_template_kwargs: msgspec.Raw = _NOTHING


class Ask(msgspec.Struct, frozen=True):
    """What a request asks for. `model` is "" when it names none and the only fleet must do."""

    model: str
    stream: bool = False
    boundaries: tuple[Boundary, ...] = ()


# Of a request's fields: the prompt in its three forms, what stands around it, and all but `messages`.
_PROMPTS: Final = slice(2, 5)
_AROUND: Final = slice(5, None)
_BESIDE: Final = slice(3, None)
_NOTHING_BESIDE: Final = msgspec.structs.astuple(_Fields())[_BESIDE]
_FRAMED_NOTHING: Final = framed(b"" for _ in _NOTHING_BESIDE)
_fields = msgspec.json.Decoder(_Fields)
_text = msgspec.json.Decoder(str)
_parts = msgspec.json.Decoder(list[msgspec.Raw])


def classify(head: Head, body: bytes) -> Ask:
    """Say what `head` and `body` ask for; raise NotServed("bad_request") when that cannot be told."""
    if head.method == "TRACE":
        # The answer would be the request as the engine got it, its own key included.
        raise NotServed("bad_request", "TRACE is not passed on to engines")
    if "." in head.path or "%" in head.path:
        _refuse_dot_segments(head.path)
    if not body:
        return Ask(_model_of_query(head))
    if head.content_type == b"application/json":
        return _ask_of_json(head, body)
    if head.content_type.startswith(b"multipart/"):
        return Ask(_checked_model(_model_of_form(body)))
    if b"json" in head.content_type or body.lstrip()[:1] in (b"{", b"["):
        return _ask_of_json(head, body)
    return Ask(_model_of_query(head))


def _ask_of_json(head: Head, body: bytes) -> Ask:
    if head.content_encoding not in (b"", b"identity"):
        raise NotServed("bad_request", "send JSON bodies without Content-Encoding")
    try:
        fields = _fields.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise NotServed("bad_request", f"the body is not a JSON object: {_brief(error)}") from None
    model = _checked_model(_string(fields.model))
    if not model:
        raise NotServed("bad_request", "the body names no model: set the string field `model`")
    return Ask(model, fields.stream == _TRUE, () if head.colder else _boundaries(head.path, model, fields))


def _boundaries(path: str, model: str, fields: _Fields) -> tuple[Boundary, ...]:
    """Cut the prompt; a shape that is not understood has no boundaries and so stays cold."""
    values = msgspec.structs.astuple(fields)
    if values[_BESIDE] == _NOTHING_BESIDE:
        # Most requests: what follows would come to the same.
        return _cut(_usual_beginning(path, model), bytes(fields.messages)) or ()
    prompts = [bytes(raw) for raw in values[_PROMPTS]]
    seed = framed((path.encode(), model.encode())) + framed(map(bytes, values[_AROUND]))
    for view in filter(None, prompts):
        # Which of several the engine reads is not known here: a long one must not hide behind a cached one.
        seed += framed(other for other in prompts if other is not view)
        boundaries = _cut(begun(seed), view)
        if boundaries is not None:
            return boundaries
    return ()


@lru_cache(maxsize=KEPT_BEGINNINGS_MAX)
def _usual_beginning(path: str, model: str) -> hashlib.blake2b:
    """Return the beginning of the prompts of a model that come with nothing beside `messages`."""
    return begun(framed((path.encode(), model.encode())) + _FRAMED_NOTHING)


def _cut(beginning: hashlib.blake2b, prompt: bytes) -> tuple[Boundary, ...] | None:
    """Cut one form of the prompt; None when it is neither a list nor a text."""
    try:
        if prompt[:1] == b"[":
            few = len(prompt) <= _COMMAS_MAX or prompt.count(b",") <= _COMMAS_MAX
            return of_parts(beginning, [bytes(part) for part in _parts.decode(prompt)]) if few else ()
        if prompt[:1] == b'"':
            return of_text(beginning, _text.decode(prompt))
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return ()
    return None


def _string(raw: msgspec.Raw) -> str:
    """Decode the model's name; absent reads as "", anything but a string is refused."""
    if raw is _NOTHING:
        return ""
    try:
        return _text.decode(raw)
    except (msgspec.MsgspecError, UnicodeError):
        raise NotServed("bad_request", "the field `model` must be a string") from None


def _model_of_query(head: Head) -> str:
    for part in head.query.split("&") if "model" in head.query else ():
        name, _, value = part.partition("=")
        if value and unquote_plus(name) == "model":
            return _checked_model(unquote_plus(value))
    return ""


def _model_of_form(body: bytes) -> str:
    """Find the form field `model`, at the front or at the very end of an upload."""
    found = _FORM_MODEL.search(body[:_FORM_SCAN_BYTES]) or _FORM_MODEL.search(body[-_FORM_TAIL_BYTES:])
    return found[1].decode("utf-8", "replace") if found else ""


def _checked_model(model: str) -> str:
    if len(model) > MODEL_CHARS_MAX:
        raise NotServed(
            "bad_request",
            f"the model name has {len(model)} characters; at most {MODEL_CHARS_MAX} are allowed",
        )
    return model


def _refuse_dot_segments(path: str) -> None:
    """An engine must not be led out of /v1/ by a path that it resolves and we do not."""
    # Some servers take a backslash for a slash, and some leave out what follows a `;` in a segment.
    segments = re.split(r"[/\\]", unquote(path))
    if any(segment.partition(";")[0] in (".", "..") for segment in segments):
        raise NotServed("bad_request", "the path must not contain . or .. segments")


def _brief(error: Exception) -> str:
    """Shorten a parser's message, which may quote the caller's own bytes."""
    return str(error)[:120] or type(error).__name__
