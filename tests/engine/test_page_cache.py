"""The paged cache by itself: what is reused, what is evicted, what is never lost."""

from __future__ import annotations

import pytest

from services.engine.pages import Chain, PageCache
from services.engine.tokens import Speech, split


def opened(cache: PageCache, prompt: list[str], more_tokens: int = 0) -> Chain:
    chain = cache.open(prompt, more_tokens)
    assert chain is not None
    return chain


def computed(cache: PageCache, prompt: list[str]) -> None:
    """A request that was served: its prompt is computed and its pages are given back."""
    chain = opened(cache, prompt)
    chain.append(prompt[chain.cached_tokens :])
    chain.close()


def cached_of(cache: PageCache, prompt: list[str]) -> int:
    chain = opened(cache, prompt)
    chain.close()
    return chain.cached_tokens


def words(name: str, count: int) -> list[str]:
    return [f"{name}{number}" for number in range(count)]


def test_a_prompt_seen_before_is_cached_in_whole_pages_but_for_its_last_token() -> None:
    """The first answer token comes out of computing the prompt's last one, so that is never cached."""
    cache = PageCache(16, 4)
    computed(cache, words("a", 10))
    assert opened(cache, words("a", 10)).cached_tokens == 8
    assert opened(cache, words("a", 8)).cached_tokens == 4
    assert opened(cache, words("a", 3)).cached_tokens == 0


def test_the_same_page_after_another_beginning_is_another_page() -> None:
    cache = PageCache(16, 4)
    computed(cache, [*words("a", 4), *words("same", 5)])
    assert opened(cache, [*words("b", 4), *words("same", 5)]).cached_tokens == 0


def test_two_who_compute_the_same_prompt_at_once_keep_one_copy() -> None:
    cache = PageCache(8, 4)
    first, second = opened(cache, words("a", 9)), opened(cache, words("a", 9))
    for chain in (first, second):
        chain.append(words("a", 9))
        chain.close()
    assert (cache.pages_idle, cache.pages_free) == (2, 6)


def test_the_page_that_was_unused_for_longest_is_evicted_first() -> None:
    cache = PageCache(3, 4)
    for name in ("old", "kept", "new"):
        computed(cache, words(name, 4))
    assert cached_of(cache, words("old", 5)) == 4
    computed(cache, words("more", 4))
    cached = {name: cached_of(cache, words(name, 5)) for name in ("old", "kept", "new", "more")}
    assert cached == {"old": 4, "kept": 0, "new": 4, "more": 4}


def test_the_tail_of_a_prefix_is_evicted_before_its_head() -> None:
    cache = PageCache(4, 4)
    computed(cache, words("a", 16))
    computed(cache, words("b", 4))
    assert opened(cache, words("a", 17)[:14]).cached_tokens == 12


def test_a_page_in_use_is_never_evicted() -> None:
    cache = PageCache(4, 4)
    computed(cache, words("a", 8))
    reader = opened(cache, words("a", 9))
    assert cache.open(words("b", 8), 0) is None
    reader.close()
    assert cache.open(words("b", 8), 0) is not None


def test_a_chain_is_promised_room_for_its_answer_too() -> None:
    cache = PageCache(4, 4)
    chain = opened(cache, words("a", 6), more_tokens=6)
    assert cache.open(words("b", 5), 0) is None, "three of the four pages are promised"
    chain.append(words("a", 12))
    assert cache.pages_in_use == 3
    with pytest.raises(AssertionError, match="promised"):
        chain.append(["one too many"])
    chain.close()


def test_closing_twice_frees_a_page_once() -> None:
    cache = PageCache(4, 4)
    computed(cache, words("a", 4))
    first, second = opened(cache, words("a", 5)), opened(cache, words("a", 5))
    first.close()
    first.close()
    assert (cache.pages_in_use, cache.pages_idle) == (1, 0)
    second.close()
    assert (cache.pages_in_use, cache.pages_idle) == (0, 1)


def test_a_page_that_no_live_chain_accounts_for_is_reported_as_leaked() -> None:
    """The alarm itself must work, or its silence means nothing."""
    cache = PageCache(4, 4)
    forgotten = opened(cache, words("a", 8))
    forgotten.append(words("a", 8))
    assert cache.leaked([forgotten]) == 0
    assert cache.leaked([]) == 2


def test_the_split_loses_nothing_and_knows_its_own_words() -> None:
    text = 'An "odd" text,\twith\n  Привет, 世界 and internationalization 🙂\0'
    assert "".join(split(text)) == text
    speech = Speech(["p"])
    said = [speech.word(first=not number) for number in range(200)]
    assert split("".join(said)) == said
    assert len(set(said)) > 50
