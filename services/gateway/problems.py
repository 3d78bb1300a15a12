"""The control plane's errors in the same envelope as the data plane's, from whatever raised them."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route

from services.gateway.refusals import STATUS, Code, NotServed, spread
from services.permits.errors import BadLimits, BadName, NotFound, Unavailable

_WAIT_S: Final = 2.0
_METHOD_NOT_ALLOWED: Final = 405
_NOT_FOUND: Final = 404
_TYPES: Final = {401: "authentication_error", 403: "permission_error"}
_SERVER_ERROR: Final = 500


def problem(
    code: Code, message: str, headers: Mapping[str, str] | None = None, *, close: bool = False
) -> Response:
    """Return OpenAI's error object for one of our codes."""
    more = {"Retry-After": str(spread(_WAIT_S))} if code == "admission_unavailable" else {}
    if close:
        more["Connection"] = "close"
    return _envelope(STATUS[code], code, message, {**more, **(headers or {})})


def _envelope(status: int, code: str, message: str, headers: Mapping[str, str]) -> Response:
    kind = _TYPES.get(status, "server_error" if status >= _SERVER_ERROR else "invalid_request_error")
    body = {"error": {"message": message, "type": kind, "param": None, "code": code}}
    return JSONResponse(body, status, {"Tenure-Refused": code, **headers})


class ControlApp(FastAPI):
    """A FastAPI application whose schema leaves out 422: what is invalid is a `bad_request` here."""

    def openapi(self) -> dict[str, Any]:
        """Return the schema."""
        schema = super().openapi()
        for calls in schema["paths"].values():
            for call in calls.values():
                call["responses"].pop("422", None)
        for name in ("HTTPValidationError", "ValidationError"):
            schema["components"]["schemas"].pop(name, None)
        return schema


def answer_problems(app: FastAPI, routes: Sequence[BaseRoute]) -> None:
    """Let `app`, which has these routes, answer every expected error in one sentence."""
    app.state.routes = [route for route in routes if isinstance(route, Route)]
    app.add_exception_handler(HTTPException, _unserved)
    app.add_exception_handler(RequestValidationError, _invalid)
    for kind in (NotServed, NotFound, BadLimits, BadName, Unavailable):
        app.add_exception_handler(kind, _expected)


async def _unserved(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)  # noqa: S101  (registered for it)
    if error.status_code == _NOT_FOUND:
        return problem("not_found", "there is nothing here; engines are served under /v1/")
    if error.status_code == _METHOD_NOT_ALLOWED:
        allow = ", ".join(_methods_of(request))
        message = f"this path has {allow}"
        return _envelope(_METHOD_NOT_ALLOWED, "method_not_allowed", message, {"Allow": allow})
    return problem("bad_request", "the body is no JSON that can be read")


def _methods_of(request: Request) -> list[str]:
    """Return what the path of the request supports; a router's own error names the first route's only."""
    routes: list[Route] = request.app.state.routes
    here = [route for route in routes if route.path_regex.match(request.url.path)]
    return sorted({method for route in here for method in route.methods or ()})


async def _invalid(request: Request, error: Exception) -> Response:
    """Say of the first thing that is wrong where it is and what is right; quote nothing that was sent."""
    del request
    assert isinstance(error, RequestValidationError)  # noqa: S101  (registered for it)
    first = error.errors()[0]
    where, *path = (str(part)[:80].encode("ascii", "replace").decode() for part in first["loc"])
    name = ".".join(path) or where
    what = str(first["msg"]).removeprefix("Value error, ")
    if first["type"] == "json_invalid":
        return problem("bad_request", "the body is not valid JSON")
    if name == "body":
        return problem("bad_request", "send a JSON object, with `Content-Type: application/json`")
    return problem("bad_request", f"{name}: {what[:1].lower()}{what[1:]}")


async def _expected(request: Request, error: Exception) -> Response:
    del request
    match error:
        case NotServed(code=code, message=message):
            return problem(code, message)
        case NotFound():
            return problem("not_found", str(error))
        case Unavailable():
            return problem("admission_unavailable", "Redis cannot be reached; repeat the call, it is safe")
        case _:
            return problem("bad_request", str(error))
