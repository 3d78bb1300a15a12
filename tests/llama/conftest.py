"""A real llama.cpp server, once per worker."""

import asyncio
from collections.abc import Iterator

import pytest

from tests.support import llama_server as llama
from tests.support.llama_server import LlamaServer


@pytest.fixture(scope="session")
def llama_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LlamaServer]:
    """The server on a tiny random model; skips, with the reason, where its packages are not installed."""
    if why := llama.missing():
        pytest.skip(f"no llama.cpp server here: {why}")
    from tests.support import tiny_gguf  # noqa: PLC0415 - needs the packages

    folder = tmp_path_factory.mktemp("llama")
    tiny_gguf.write(folder / "tiny.gguf")
    server = LlamaServer(folder, folder / "tiny.gguf")
    try:
        asyncio.run(server.ready())
        yield server
    finally:
        asyncio.run(server.end())
