"""What a request asks for, read from head and body."""

import json
from typing import Any

import pytest

from services.gateway.classify import classify
from services.gateway.headers import Head
from services.gateway.prefixes import BOUNDARIES_MAX, begun, candidates, of_text
from services.gateway.refusals import NotServed

JSON = b"application/json"


def head(content_type: bytes = JSON, *, query: str = "", path: str = "/v1/x", **fields: Any) -> Head:
    facts: dict[str, Any] = {
        "method": "POST", "path": path, "query": query, "forward": [], "credentials": [],
        "api_keys": [], "content_type": content_type, "content_encoding": b"", "content_length": None,
        "chunked": False, "client_request_id": "", "colder": False,
        "patience_ms": 0,
    }  # fmt: skip
    return Head(**facts | fields)


def body(**fields: Any) -> bytes:
    return json.dumps({"model": "m", **fields}).encode()


def messages(*texts: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": text} for text in texts]


@pytest.mark.parametrize(
    "sent",
    [
        b"{", b"[]", b'["model"]', b"null", b"3", b'"model"', b"{}", b'{"model": null}', b'{"model": 7}',
        b'{"model": ["m"]}', b'{"model": ""}', b'{"model": "m"', b'{"model": "\xff"}', b"\x00\x01\x02",
        b'{"model": "' + b"m" * 257 + b'"}', b"[" * 100_000, b'{"model": "m", "x": ' + b"[" * 100_000,
        '{"model": "m"}'.encode("utf-16"),
    ],
)  # fmt: skip
def test_a_body_that_cannot_be_understood_is_refused(sent: bytes) -> None:
    with pytest.raises(NotServed) as no:
        classify(head(), sent)
    assert no.value.code == "bad_request"


def test_a_long_model_name_is_not_quoted_back() -> None:
    with pytest.raises(NotServed) as no:
        classify(head(), body(model="m" * 65_536))
    assert "65536" in no.value.message
    assert "mmmm" not in no.value.message


@pytest.mark.parametrize(
    "content_type", [b"application/json", b"text/plain", b"", b"application/x-www-form-urlencoded"]
)
def test_json_is_read_whatever_it_is_called(content_type: bytes) -> None:
    """`curl -d` calls everything a form."""
    assert classify(head(content_type), body(stream=True)).model == "m"


def test_a_compressed_json_body_is_refused() -> None:
    with pytest.raises(NotServed):
        classify(head(content_encoding=b"gzip"), body())


@pytest.mark.parametrize(("value", "stream"), [(True, True), (False, False), ("yes", False), (None, False)])
def test_only_true_asks_for_a_stream(value: object, stream: bool) -> None:
    assert classify(head(), body(stream=value)).stream is stream


FORM = b'--b\r\nContent-Disposition: form-data; name="model"\r\n\r\nwhisper\r\n--b--\r\n'
UPLOAD = (
    b'--b\r\nContent-Disposition: form-data; name="file"; filename="a"\r\n\r\n\x00\xff'
    + b"\x00" * 90_000
    + b"\r\n"
)


@pytest.mark.parametrize(
    ("sent", "model"),
    [
        (FORM, "whisper"),
        (UPLOAD + FORM, "whisper"),
        (FORM.removesuffix(b"--b--\r\n") + UPLOAD, "whisper"),
        (FORM.replace(b'"model"', b"model"), "whisper"),
        (FORM.replace(b'"model"', b'"model_x"'), ""),
        (UPLOAD, ""),
        (b"", ""),
    ],
)
def test_the_model_of_an_upload_is_found_in_its_form(sent: bytes, model: str) -> None:
    assert classify(head(b"multipart/form-data; boundary=b"), sent).model == model


def test_without_a_body_the_query_may_name_the_model() -> None:
    assert classify(head(b"", query="model=m%2Fx&a=1"), b"").model == "m/x"
    assert classify(head(b""), b"").model == ""


@pytest.mark.parametrize(
    "path", ["/v1/../admin", "/v1/./x", "/v1/%2e%2e/admin", "/v1/.%2E/x", "/v1/a%2f..%5Cx"]
)
def test_a_path_cannot_climb_out(path: str) -> None:
    with pytest.raises(NotServed):
        classify(head(path=path), body())


def test_dots_in_a_name_are_fine() -> None:
    assert classify(head(path="/v1/files/a..b.txt"), body()).model == "m"


def test_a_conversation_that_grew_shares_its_earlier_boundaries() -> None:
    before = classify(head(), body(messages=messages("a", "b"))).boundaries
    after = classify(head(), body(messages=messages("a", "b", "c"))).boundaries
    assert [boundary.hash for boundary in after[:2]] == [boundary.hash for boundary in before]
    assert after[-1].share == 1.0


@pytest.mark.parametrize("change", [{"model": "n"}, {"tools": [{"type": "function"}]}, {"instructions": "x"}])
def test_what_stands_before_the_messages_changes_every_boundary(change: dict[str, Any]) -> None:
    plain = classify(head(), body(messages=messages("a"))).boundaries
    other = classify(head(), body(messages=messages("a"), **change)).boundaries
    assert plain[0].hash != other[0].hash


def test_a_short_shared_beginning_cannot_make_a_request_warm() -> None:
    """Everybody has the system prompt; being cached for it saves next to nothing."""
    asked = classify(head(), body(messages=messages("short", "x" * 1000)))
    assert candidates(asked.boundaries) == (asked.boundaries[-1].hash,)


def test_the_longest_prefix_is_the_first_candidate() -> None:
    asked = classify(head(), body(messages=messages("a" * 100, "b", "c")))
    assert candidates(asked.boundaries)[0] == asked.boundaries[-1].hash


def test_a_client_may_ask_to_be_cold() -> None:
    assert classify(head(colder=True), body(messages=messages("a"))).boundaries == ()


@pytest.mark.parametrize(
    "fields", [{"messages": "text"}, {"messages": 3}, {"prompt": 3}, {"messages": []}, {}]
)
def test_a_prompt_of_unknown_shape_is_the_engines_business_and_cold(fields: dict[str, Any]) -> None:
    asked = classify(head(), body(**fields))
    assert candidates(asked.boundaries) == () or fields == {"messages": "text"}


def test_long_prompts_with_a_common_beginning_meet_at_common_boundaries() -> None:
    text = "".join(chr(97 + n % 26) * 7 for n in range(40_000))
    first = of_text(begun(b""), text)
    second = of_text(begun(b""), text[:200_000] + "!" + text[200_000:])
    assert len(first) <= BOUNDARIES_MAX
    shared = {boundary.hash for boundary in first} & {boundary.hash for boundary in second}
    assert max(boundary.share for boundary in second if boundary.hash in shared) > 0.6
