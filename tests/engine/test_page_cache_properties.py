"""Any order of opening, computing and closing conserves the pages and never invents a hit."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, multiple, rule

from services.engine.pages import Chain, PageCache

if TYPE_CHECKING:
    from hypothesis.stateful import MultipleResults

# Few words, so that prompts share prefixes.
prompts = st.lists(st.sampled_from(["x", "y"]), min_size=1, max_size=14)


class _Request:
    """A chain with what is still to be computed."""

    def __init__(self, chain: Chain, prompt: list[str], more: int) -> None:
        self.chain = chain
        self.tokens = [*prompt, *("z" for _ in range(more))]
        self.done = chain.cached_tokens


class Cache(RuleBasedStateMachine):
    """The real cache beside a model of it: the set of all token sequences ever computed."""

    requests = Bundle("requests")

    def __init__(self) -> None:
        super().__init__()
        self.live: set[_Request] = set()
        self.computed: set[tuple[str, ...]] = set()

    @initialize(pages=st.integers(1, 12), page_tokens=st.integers(1, 4))
    def build(self, pages: int, page_tokens: int) -> None:
        self.cache = PageCache(pages, page_tokens)

    @rule(target=requests, prompt=prompts, more=st.integers(0, 8))
    def open(self, prompt: list[str], more: int) -> _Request | MultipleResults[_Request]:
        """A chain is opened exactly when its room is free or idle and promised to nobody."""
        chain = self.cache.open(prompt, more)
        if chain is None:
            needed = self.cache.pages_for(len(prompt) + more)
            assert self.live or needed > self.cache.size, "an empty engine refused what fits"
            return multiple()
        assert chain.cached_tokens < len(prompt)
        assert not chain.cached_tokens or tuple(prompt[: chain.cached_tokens]) in self.computed
        request = _Request(chain, prompt, more)
        self.live.add(request)
        return request

    @rule(request=requests, count=st.integers(1, 9))
    def compute(self, request: _Request, count: int) -> None:
        """An admitted request always gets the pages it was promised."""
        tokens = request.tokens[request.done : request.done + count]
        if request in self.live and tokens:
            request.chain.append(tokens)
            request.done += len(tokens)
            for end in range(request.done + 1):
                self.computed.add(tuple(request.tokens[:end]))

    @rule(request=consumes(requests), times=st.integers(1, 3))
    def close(self, request: _Request, times: int) -> None:
        for _ in range(times):
            request.chain.close()
        self.live.discard(request)

    @invariant()
    def pages_are_conserved(self) -> None:
        cache = self.cache
        assert cache.pages_free + cache.pages_idle + cache.pages_in_use == cache.size
        assert cache.leaked(request.chain for request in self.live) == 0

    @invariant()
    def references_are_chains(self) -> None:
        held = Counter(page for request in self.live for page in request.chain.pages)
        assert all(page.refs == count for page, count in held.items())
        assert len(held) == self.cache.pages_in_use

    @invariant()
    def promises_are_covered(self) -> None:
        cache = self.cache
        assert cache.pages_promised == sum(request.chain.promised for request in self.live)
        assert cache.pages_promised <= cache.pages_free + cache.pages_idle


TestCache = Cache.TestCase
TestCache.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)
