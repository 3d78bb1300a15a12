"""The paged KV cache: pages of tokens, shared by prefix, counted by reference, evicted oldest first.

A page is in exactly one of three places: *free* (holds nothing), *in use* (in the chain of at least one
request) or *idle* (holds a known page of some prefix, in nobody's chain, and may be evicted). A full page is
*known* by the digest of its tokens and of all tokens before it; a request whose prompt begins with known
pages takes them instead of computing.

Everything here is synchronous and has no await: between two awaits of the engine the cache is always whole.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING

from services.engine.tokens import Digest, page_digest

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


class Page:
    """Room for `page_tokens` tokens. `digest` is set while the page is known under it."""

    __slots__ = ("digest", "refs")

    def __init__(self) -> None:
        self.refs = 0
        self.digest: Digest | None = None


class Chain:
    """The pages of one request, in order: a prefix found in the cache, then what the request computes itself.

    Owned by one guard. It may take as many pages as were promised when it was opened, so `append` never
    fails.
    """

    __slots__ = ("_before", "_cache", "_closed", "_tail", "cached_tokens", "pages", "promised")

    def __init__(self, cache: PageCache, found: list[Page], before: Digest, promised: int) -> None:
        self._cache = cache
        self._tail: list[str] = []
        self._before = before
        self._closed = False
        self.pages = found
        self.promised = promised
        self.cached_tokens = len(found) * cache.page_tokens

    def append(self, tokens: Sequence[str]) -> None:
        """Store computed tokens; each page that they fill becomes known."""
        size = self._cache.page_tokens
        start = 0
        while start < len(tokens):
            if not self._tail:
                self.pages.append(self._cache.take(self))
            part = tokens[start : start + size - len(self._tail)]
            self._tail.extend(part)
            start += len(part)
            if len(self._tail) == size:
                self._before = page_digest(self._before, self._tail)
                self._cache.publish(self.pages[-1], self._before)
                self._tail.clear()

    def close(self) -> None:
        """Give every page back, once; closing again does nothing."""
        if not self._closed:
            self._closed = True
            self._cache.give_back(self)


class PageCache:
    """A bounded number of pages and the one place that moves them."""

    def __init__(self, pages: int, page_tokens: int) -> None:
        self.size = pages
        self.page_tokens = page_tokens
        self.hits = 0
        self.lookups = 0
        self._free = [Page() for _ in range(pages)]
        self._known: dict[Digest, Page] = {}
        self._idle: OrderedDict[Page, None] = OrderedDict()  # unused for longest first
        self._in_use: set[Page] = set()
        # Promised to open chains and not yet taken: always covered by free and idle pages.
        self._promised = 0

    @property
    def pages_in_use(self) -> int:
        return len(self._in_use)

    @property
    def pages_idle(self) -> int:
        return len(self._idle)

    @property
    def pages_free(self) -> int:
        return len(self._free)

    @property
    def pages_promised(self) -> int:
        return self._promised

    def pages_for(self, tokens: int) -> int:
        """How many pages hold so many tokens."""
        return -(-tokens // self.page_tokens)

    def open(self, prompt: Sequence[str], more_tokens: int) -> Chain | None:
        """Open a chain for a prompt and the tokens to come, or None while there is no room for all of it.

        The prefix found in the cache is in the chain at once and cannot be evicted any more. At least one
        token of the prompt is always left to compute, as in a real engine: the first answer token comes out
        of it.
        """
        looked_for = (len(prompt) - 1) // self.page_tokens
        found, before = self._prefix(prompt, looked_for)
        needed = self.pages_for(len(prompt) + more_tokens) - len(found)
        idle_found = sum(1 for page in found if not page.refs)
        if needed > len(self._free) + len(self._idle) - idle_found - self._promised:
            return None
        self.lookups += looked_for
        self.hits += len(found)
        for page in found:
            self._use(page)
        self._promised += needed
        return Chain(self, found, before, needed)

    def take(self, chain: Chain) -> Page:
        """Redeem one promised page: a free one, else the idle one that was unused for longest."""
        if not chain.promised:
            raise AssertionError("a chain takes more pages than it was promised")
        chain.promised -= 1
        self._promised -= 1
        page = self._free.pop() if self._free else self._evict()
        self._use(page)
        return page

    def publish(self, page: Page, digest: Digest) -> None:
        """Make a full page known. When two requests computed the same page the first one is kept."""
        if digest not in self._known:
            self._known[digest] = page
            page.digest = digest

    def give_back(self, chain: Chain) -> None:
        """Drop the references of a chain and what it was still promised. Called by the chain, once."""
        self._promised -= chain.promised
        chain.promised = 0
        # Last page first, so that of one prefix the tail is evicted before the head that leads to it.
        for page in reversed(chain.pages):
            page.refs -= 1
            if page.refs:
                continue
            self._in_use.remove(page)
            if page.digest is None:
                self._free.append(page)
            else:
                self._idle[page] = None
        chain.pages = []

    def leaked(self, live: Iterable[Chain]) -> int:
        """Pages lost: in use though in no live chain, or in none of the three places."""
        owned = {page for chain in live for page in chain.pages}
        lost = self.size - len(self._free) - len(self._idle) - len(self._in_use)
        return len(self._in_use - owned) + lost

    def _prefix(self, prompt: Sequence[str], most: int) -> tuple[list[Page], Digest]:
        found: list[Page] = []
        before: Digest = b""
        for number in range(most):
            start = number * self.page_tokens
            digest = page_digest(before, prompt[start : start + self.page_tokens])
            page = self._known.get(digest)
            if page is None:
                break
            found.append(page)
            before = digest
        return found, before

    def _use(self, page: Page) -> None:
        page.refs += 1
        if page.refs == 1:
            self._idle.pop(page, None)
            self._in_use.add(page)

    def _evict(self) -> Page:
        page, _ = self._idle.popitem(last=False)
        if page.digest is not None:
            del self._known[page.digest]
            page.digest = None
        return page
