"""What a request names is what it gets: no spelling of a path leads out of /v1/ or past a check."""

from __future__ import annotations

import json
from typing import Final

import pytest

from tests.security.strict_http import replies_in
from tests.security.target import CHAT, KEY, Target, code_of, exchange, good
from tests.support.admin_client import ADMIN, TOKEN

pytestmark = pytest.mark.timeout(90)


@pytest.fixture(scope="module")
def settings() -> dict[str, object]:
    return {"admin": ADMIN}


# What is asked for, and the path that the engine gets.
SERVED: Final = {
    "plain": (CHAT, CHAT),
    "absolute_form": (f"http://gateway{CHAT}", CHAT),
    "absolute_form_of_another_host": (f"http://elsewhere:1{CHAT}?a=1", f"{CHAT}?a=1"),
    "absolute_form_with_user": (f"http://user:{KEY}@elsewhere{CHAT}", CHAT),
    "encoded_letters": ("/v1/ch%61t/completions", "/v1/ch%61t/completions"),
    "encoded_v": ("/%761/chat/completions", "/%761/chat/completions"),
    "encoded_slash": ("/v1/chat%2Fcompletions", "/v1/chat%2Fcompletions"),
    "encoded_twice": ("/v1/%252e%252e/x", "/v1/%252e%252e/x"),
    "two_slashes_within": ("/v1//chat/completions", "/v1//chat/completions"),
    "dots_in_a_name": ("/v1/files/a..b/.well/...", "/v1/files/a..b/.well/..."),
    "encoded_question_mark": ("/v1/x%3fapi_key=1", "/v1/x%3fapi_key=1"),
    "encoded_line_end": ("/v1/x%0d%0aX-Injected:%201", "/v1/x%0d%0aX-Injected:%201"),
    "fragment": ("/v1/x#/../metrics", "/v1/x"),
    "8_kb": ("/v1/" + "a" * 8192, "/v1/" + "a" * 8192),
    "8_kb_of_query": (f"{CHAT}?q=" + "a" * 8192, f"{CHAT}?q=" + "a" * 8192),
    "many_parameters": (f"{CHAT}?" + "a&" * 2000, f"{CHAT}?" + "a&" * 2000),
    "keys_in_the_query": (f"{CHAT}?api_key={KEY}&a=1&%61pi-key={KEY}&KEY={KEY}", f"{CHAT}?a=1"),
}


@pytest.mark.parametrize("case", SERVED)
async def test_a_path_under_v1_goes_on_as_it_was_written(target: Target, case: str) -> None:
    asked, passed = SERVED[case]
    received, ended = await exchange(target.url, good(asked))
    assert [reply.start for reply in replies_in(received)] == ["200"]
    assert ended == "closed"
    (request,) = target.arrived()
    assert request.start == f"POST {passed}"
    assert request.values("host") == [target.engine.url.removeprefix("http://")]


# Refused by their form: status and code. The connection of those with 400 "as no HTTP" ends.
REFUSED: Final = {
    "dot_dot": ("/v1/../metrics", "400", "bad_request"),
    "dot_dot_at_the_end": ("/v1/..", "400", "bad_request"),
    "dot": ("/v1/./chat/completions", "400", "bad_request"),
    "dot_dot_encoded": ("/v1/%2e%2e/metrics", "400", "bad_request"),
    "dot_dot_half_encoded": ("/v1/.%2E/metrics", "400", "bad_request"),
    "dot_dot_and_slashes_encoded": ("/v1%2f..%2f..%2fmetrics", "400", "bad_request"),
    "dot_dot_behind_backslashes": ("/v1/x\\..\\..\\metrics", "400", "bad_request"),
    "dot_dot_behind_encoded_backslashes": ("/v1/x%5c..%5cmetrics", "400", "bad_request"),
    "dot_dot_with_parameters": ("/v1/..;/metrics", "400", "bad_request"),
    "dot_dot_with_parameters_encoded": ("/v1/%2e%2e%3bx/metrics", "400", "bad_request"),
    "two_slashes_before": ("//v1/chat/completions", "404", "not_found"),
    "upper_case": ("/V1/chat/completions", "404", "not_found"),
    "backslash": ("/v1\\chat\\completions", "404", "not_found"),
    "metrics_by_two_slashes": ("//metrics", "404", "not_found"),
    "admin_by_two_slashes": ("//admin/v1/fleets", "404", "not_found"),
    "admin_in_upper_case": ("/ADMIN/v1/fleets", "404", "not_found"),
    "admin_from_v1": ("/v1/../admin/v1/fleets", "400", "bad_request"),
    "admin_encoded": ("/%61dmin/v1/fleets", "401", "invalid_api_key"),
    "admin_with_an_encoded_slash": ("/admin%2fv1%2ffleets", "401", "invalid_api_key"),
    "admin_absolute": ("http://elsewhere/admin/v1/fleets", "401", "invalid_api_key"),
    "admin_with_dot_dot": ("/admin/../admin/v1/fleets", "401", "invalid_api_key"),
    "admin_with_a_slash_behind": ("/admin/v1/fleets/", "401", "invalid_api_key"),
    "no_path": ("http://gateway", "400", "bad_request"),
    "authority_form": ("gateway:80", "400", "bad_request"),
    "asterisk": ("*", "404", "not_found"),
    "relative": ("v1/chat/completions", "400", "bad_request"),
    "another_scheme": ("file:///v1/chat/completions", "400", "bad_request"),
    "nul": ("/v1/\x00", "400", "bad_request"),
    "control_character": ("/v1/\x01", "400", "bad_request"),
    "tab": ("/v1/a\tb", "400", "bad_request"),
    "raw_bytes_beyond_ascii": ("/v1/\xc3\xa9", "400", "bad_request"),
    "64_kb": ("/v1/" + "a" * 65_536, "400", "bad_request"),
    "64_kb_of_query": (f"{CHAT}?q=" + "a" * 65_536, "400", "bad_request"),
    "1_mb": ("/v1/" + "a" * 1_000_000, "400", "bad_request"),
}


@pytest.mark.parametrize("case", REFUSED)
async def test_what_could_mean_another_path_gets_one_clean_answer(target: Target, case: str) -> None:
    asked, status, code = REFUSED[case]
    received, ended = await exchange(target.url, good(asked))
    (reply,) = replies_in(received)
    assert (reply.start, code_of(reply)) == (status, code)
    assert ended == "closed"
    assert target.arrived() == []


@pytest.mark.parametrize("method", ["TRACE", "CONNECT"])
@pytest.mark.parametrize("asked", [CHAT, "/healthz", "/admin/v1/fleets", "gateway:80"])
async def test_methods_that_speak_to_proxies_go_nowhere(target: Target, method: str, asked: str) -> None:
    """TRACE makes a server say what it got: the engine's own key would come back to the caller."""
    sent = good(asked, method=method, body=None)
    received, ended = await exchange(target.url, sent)
    (reply,) = replies_in(received)
    assert reply.start in ("400", "401", "403", "404", "405"), reply
    assert ended == "closed"
    assert target.arrived() == []


@pytest.mark.parametrize("hosts", [["elsewhere"], ["127.0.0.1:1"], ["elsewhere", "gateway"], ["a b"], [""]])
async def test_the_host_that_a_caller_names_decides_nothing(target: Target, hosts: list[str]) -> None:
    sent = good().replace(b"host: gateway\r\n", b"".join(b"host: %s\r\n" % host.encode() for host in hosts))
    received, _ = await exchange(target.url, sent)
    (reply,) = replies_in(received)
    assert reply.start in ("200", "400")
    for request in target.arrived():
        assert request.values("host") == [target.engine.url.removeprefix("http://")]
        assert not [value for name, value in request.headers if "elsewhere" in value], request.headers


@pytest.mark.parametrize("more", [99, 101, 5000])
async def test_the_model_is_found_in_a_query_of_any_length(target: Target, more: int) -> None:
    path = "/v1/realtime?" + "a=1&" * more + "model=demo"
    received, _ = await exchange(target.url, good(path, body=b"x", headers=[("content-type", "text/plain")]))
    (reply,) = replies_in(received)
    assert reply.start in ("200", "400"), reply


async def test_admin_paths_are_open_to_the_token_alone_in_every_spelling(target: Target) -> None:
    for path in ("/admin/v1/fleets", "/%61dmin/v1/fleets", "/admin%2fv1/fleets", "http://x/admin/v1/fleets"):
        received, _ = await exchange(target.url, good(path, method="GET", key=TOKEN, body=None))
        (reply,) = replies_in(received)
        assert (reply.start, json.loads(reply.body)) == ("200", {"fleets": ["demo"]}), path
        received, _ = await exchange(target.url, good(path, method="GET", key=KEY, body=None))
        (reply,) = replies_in(received)
        assert (reply.start, code_of(reply)) == ("401", "invalid_api_key"), path
