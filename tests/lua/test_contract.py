"""Headers, scripts, the store and the replies say the same: whoever changes one changes them all."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest

from services.permits.connect import connect
from services.permits.errors import Unusable
from services.permits.keys import FleetKeys
from services.permits.model import Demand, Ended, Gone, Held
from services.permits.replies import REPLIES
from services.permits.scripts import LUA_DIR, Header, Script, compose, load
from services.permits.store import Store
from tests.lua.fleet import HOLDER, RawFleet

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

SCRIPTS: Final = load()
INCLUDES: Final = {path.stem: path.read_text() for path in (LUA_DIR / "includes").glob("*.lua")}
SNAPSHOTS: Final = Path(__file__).parent / "snapshots"
FOR_PEOPLE: Final = {"inspect", "line"}
REWRITE: Final = "python -m services.permits --compose tests/lua/snapshots"

every_script = pytest.mark.parametrize("verb", sorted(SCRIPTS))
every_include = pytest.mark.parametrize("name", sorted(INCLUDES))


def source(verb: str) -> str:
    return (LUA_DIR / f"{verb}.lua").read_text()


def header_lines(verb: str) -> list[str]:
    return source(verb).partition("--[[\n")[2].partition("]]")[0].splitlines()


def body(verb: str) -> str:
    return source(verb).partition("]]\n")[2]


# --- the header's form


@every_script
def test_the_first_line_says_what_the_script_may_do(verb: str) -> None:
    """What takes capacity is refused at maxmemory, what keeps or gives back is not; looks write nothing."""
    flags = {
        "acquire": "#!lua",
        "move": "#!lua",
        "witness": "#!lua",
        "ended": "#!lua",
        "inspect": "#!lua flags=no-writes",
        "count": "#!lua flags=no-writes",
        "line": "#!lua flags=no-writes",
    }
    assert source(verb).splitlines()[:2] == [flags.get(verb, "#!lua flags=allow-oom"), "--[["]


@every_script
def test_a_header_has_its_five_sections_in_order(verb: str) -> None:
    lines = header_lines(verb)
    assert lines[0].startswith(f"  {verb}: ")
    titles = [line.strip() for line in lines if re.fullmatch(r"  [A-Z]+", line)]
    assert titles == ["KEYS", "ARGV", "RETURNS"]
    notes = "\n".join(lines[1 : lines.index("  KEYS")])
    assert "Cost: O(" in notes
    assert all(line == "" or line.startswith("  ") for line in lines)


@every_script
def test_keys_and_arguments_are_numbered_without_a_gap(verb: str) -> None:
    for section in ("KEYS", "ARGV"):
        rows = [row[0].rstrip("+") for row in rows_of(verb, section)]
        assert rows == [str(n + 1) for n in range(len(rows))]


def rows_of(verb: str, section: str) -> list[tuple[str, str, str]]:
    """Return (number, name, type) of each row of a header's section."""
    lines = header_lines(verb)
    start = lines.index(f"  {section}") + 1
    rows = []
    for line in lines[start:]:
        if re.fullmatch(r"  [A-Z]+", line):
            break
        if match := re.match(r" {4}(\d+\+?) +(\w+) +(hash|zset|stream|set|string|integer)\b", line):
            rows.append((match[1], match[2], match[3]))
    return rows


# --- the header and the script


@every_script
def test_the_locals_are_those_of_the_header(verb: str) -> None:
    header = SCRIPTS[verb].header
    assert tuple(names_of(verb, "KEYS")) == header.keys
    fixed = header.args[:-1] if header.variadic else header.args
    assert tuple(names_of(verb, "ARGV")) == fixed
    if header.variadic:
        assert rest_of(verb, first=len(fixed) + 1) == header.args[-1]


def statements(verb: str) -> Iterator[tuple[list[str], list[str]]]:
    """Yield the names and the values of every `local a, b = x, y`, joined over line ends."""
    text = re.sub(r"(=|,)\n +", r"\1 ", body(verb))
    for match in re.finditer(r"^local ([\w, ]+) = (.+)$", text, re.MULTILINE):
        yield match[1].split(", "), re.split(r", (?![^({]*[)}])", match[2])


def names_of(verb: str, table: str) -> list[str]:
    """Return the names of the locals that take `table[1]`, `table[2]` and so on."""
    names: dict[int, str] = {}
    for left, right in statements(verb):
        for name, value in zip(left, right, strict=False):
            if match := re.search(rf"(?<!#)\b{table}\[(\d+)\]", value):
                assert int(match[1]) not in names, f"{table}[{match[1]}] is read twice"
                names[int(match[1])] = name
    assert sorted(names) == list(range(1, len(names) + 1))
    return [names[n] for n in sorted(names)]


def rest_of(verb: str, first: int) -> str:
    """Return the name of the local that stands for ARGV from `first` on: its items or its first index."""
    for left, right in statements(verb):
        for name, value in zip(left, right, strict=False):
            if (
                value == str(first)
                or value == f"{{ unpack(ARGV, {first}) }}"
                or (first, value) == (1, "ARGV")
            ):
                return name
    raise AssertionError(f"{verb} has no local for ARGV from {first} on")


@every_script
def test_keys_and_arguments_by_number_appear_in_the_locals_only(verb: str) -> None:
    for line in body(verb).splitlines():
        if re.search(r"\b(KEYS|ARGV)\[\d", line):
            assert re.match(r"local |  KEYS\[", line), line


@every_script
def test_the_words_returned_are_those_of_the_header(verb: str) -> None:
    returned = set(re.findall(r"(?:return|reply =) \{\s*'([A-Z]+)'", body(verb)))
    assert returned == set(SCRIPTS[verb].header.replies)


@every_script
def test_the_replies_are_those_that_python_reads(verb: str) -> None:
    if verb in FOR_PEOPLE:
        assert SCRIPTS[verb].header.replies == (), "its reply is lines for people"
    else:
        assert set(SCRIPTS[verb].header.replies) == set(REPLIES[verb])


def test_python_reads_no_reply_that_no_script_gives() -> None:
    assert set(REPLIES) == set(SCRIPTS) - FOR_PEOPLE


# --- the header and the store

HELD: Final = Held(
    lease="g1~a1~1",
    request_id="r",
    tenant="acme",
    class_="cold",
    engine="e1",
    phase="decode",
    acquired_at=1,
    cold=True,
)
CALLS: Final[dict[str, Callable[[Store], Awaitable[Any]]]] = {
    "acquire": lambda store: store.acquire(
        Demand(fleet="f", tenant="acme", request_id="r", engines=("e1",)), lease="g1~a1~1", holder=HOLDER
    ),
    "tick": lambda store: store.tick("f", holder=HOLDER, leases=[HELD], news=frozenset()),
    "downgrade": lambda store: store.downgrade("f", ["g1~a1~1"]),
    "move": lambda store: store.move("f", "g1~a1~1", ["e2"]),
    "witness": lambda store: store.witness("f", "e1", {"p": True}),
    "reap": lambda store: store.reap("f", ["tenant:acme"], ["g1~a1~1"]),
    "inspect": lambda store: store.inspect("f"),
    "count": lambda store: store.count("f", ["acme"], ["e1"]),
    "set_limits": lambda store: store.set_limits("f", {"total": 1}, who="test"),
    "seed_keys": lambda store: store.seed_keys({"aa": "acme"}),
    "revoke": lambda store: store.revoke("f", lease="g1~a1~1", reason="revoked", who="test"),
    "line": lambda store: store.line("f"),
    "ended": lambda store: store.ended("f", [Ended("g1~a1~1", "acme", "completed")]),
    "drain": lambda store: store.drain("f", HOLDER, who="test"),
    "set_tenant": lambda store: store.set_tenant("acme", who="test", mode="add"),
    "set_key": lambda store: store.set_key("acme", "a" * 64, who="test", last4="wxyz"),
    "release": lambda store: store.release("f", [Gone(lease="g1~a1~1", tenant="acme", engine="e1")]),
}


@every_script
async def test_the_store_has_a_method_for_every_script_and_knows_every_name(
    verb: str, fleet: RawFleet, redis_url: str
) -> None:
    """A name in a header that the store cannot fill would be found by the first user, not by us."""
    client = connect(redis_url)
    try:
        await CALLS[verb](Store(client))
    finally:
        await client.aclose()
    called = fleet.client.info("commandstats")
    assert "cmdstat_evalsha" in called


async def test_the_store_reads_what_a_script_wrote_in_the_order_of_its_header(
    fleet: RawFleet, redis_url: str
) -> None:
    client = connect(redis_url)
    try:
        store = Store(client, times=fleet.times)
        demand = Demand(fleet="f", tenant="acme", request_id="req-7", engines=("e1",))
        await store.acquire(demand, lease="g1~a1~7", holder=HOLDER)
        rows = await store.inspect("f")
        assert [(row.lease, row.request_id, row.tenant, row.engine, row.holder) for row in rows] == [
            ("g1~a1~7", "req-7", "acme", "e1", HOLDER)
        ]
        counts = await store.count("f", ["acme", "other"], ["e1"])
        assert (counts.total, counts.cold) == (1, 1)
        assert (counts.tenants, counts.engines) == ({"acme": 1, "other": 0}, {"e1": 1})
        assert counts.limits == {"total": 100, "cold": 100, "tenant_default": 100}
        assert counts.epoch == fleet.meta("epoch")
        await store.release("f", [Gone(lease="g1~a1~7", tenant="acme", engine="")])
    finally:
        await client.aclose()
    assert fleet.no_trace_of("g1~a1~7")


def test_an_argument_that_the_header_does_not_have_cannot_be_sent() -> None:
    script = SCRIPTS["downgrade"]
    with pytest.raises(KeyError):
        script.arrange({"meta": "m"}, {"nonce": "n"}, ())


# --- includes and composition


@every_include
def test_an_include_begins_with_its_signature_and_its_reason(name: str) -> None:
    first = INCLUDES[name].splitlines()[0]
    assert re.fullmatch(rf"-- {name}\([\w, ]*\) -> [\w, ]+\. \S.*", first), first
    assert len(re.findall(rf"^local function {name}\(", INCLUDES[name], re.MULTILINE)) == 1


@every_include
def test_an_include_is_used_by_some_script(name: str) -> None:
    assert any(f"-- @include {name}\n" in source(verb) for verb in SCRIPTS)


@every_script
def test_a_script_calls_what_it_includes(verb: str) -> None:
    text = SCRIPTS[verb].text
    for name in re.findall(r"^-- @include (\w+)$", source(verb), re.MULTILINE):
        calls = len(re.findall(rf"\b{name}\(", text)) - len(re.findall(rf"(?:function|--) {name}\(", text))
        assert calls > 0, name


def test_an_unknown_or_repeated_include_is_refused() -> None:
    with pytest.raises(Unusable, match="'nope' does not exist"):
        compose("-- @include nope\n", {})
    with pytest.raises(Unusable, match="'a' is included twice"):
        compose("-- @include a\n-- @include a\n", {"a": "-- a"})


def test_a_directory_without_scripts_is_an_incomplete_installation(tmp_path: Path) -> None:
    with pytest.raises(Unusable, match="incomplete"):
        load(tmp_path)


def test_a_header_is_read_as_it_stands() -> None:
    header = Header.parse(
        "#!lua\n--[[\n  x: y.\n\n  KEYS\n    1  meta  hash  z\n\n  ARGV\n    1+ names  string\n]]\n"
    )
    assert header == Header(keys=("meta",), args=("names",), variadic=True, replies=())


# --- the page beside the scripts


def test_the_page_lists_every_reply_and_every_key() -> None:
    page = (LUA_DIR / "README.md").read_text()
    replies: dict[str, set[str]] = {}
    verb = ""
    for named, word in re.findall(r"^\| (\w*) ?\| `([A-Z]+)` \|", page, re.MULTILINE):
        verb = named or verb
        replies.setdefault(verb, set()).add(word)
    assert replies == {verb: set(words) for verb, words in REPLIES.items()}
    keys = FleetKeys("tenure", "F")
    for name, value in vars(FleetKeys).items():
        if isinstance(value, property):
            assert f"| `{getattr(keys, name)}` |" in page, name
    for key in (keys.tenant_pool("T"), keys.pool("engine:E"), keys.lease("ID"), keys.evidence("E")):
        assert f"| `{key}` |" in page


# --- what is really sent


@every_script
def test_what_is_sent_to_redis_is_what_was_reviewed(verb: str) -> None:
    snapshot = SNAPSHOTS / f"{verb}.lua"
    assert snapshot.exists(), f"no snapshot of {verb}; write it: {REWRITE}"
    assert snapshot.read_text() == SCRIPTS[verb].text, f"{verb} changed; if that was meant: {REWRITE}"


def test_there_is_no_snapshot_of_a_script_that_is_gone() -> None:
    assert {path.stem for path in SNAPSHOTS.iterdir()} == set(SCRIPTS)


@every_script
def test_redis_knows_a_script_by_the_hash_of_its_text(verb: str, fleet: RawFleet) -> None:
    script: Script = SCRIPTS[verb]
    assert fleet.client.script_load(script.text) == script.sha
