"""A wrong configuration stops the start with one line that names the field and the cure."""

from pathlib import Path

import pytest

from services.settings.load import SettingsError, load

FLEET = '[fleets.demo]\nmodels = ["demo"]\nengines = [{ name = "e1", url = "http://127.0.0.1:8710" }]\n'
HASH = "ab" * 32


def refusal(tmp_path: Path, text: str, environ: dict[str, str] | None = None) -> str:
    """Return the line with which a file (and variables) is refused, without the name of the file."""
    path = tmp_path / "tenure.toml"
    path.write_text(text)
    with pytest.raises(SettingsError) as caught:
        load(path, environ or {})
    line = str(caught.value)
    assert line.isprintable(), "one line, and nothing that could disturb a terminal"
    assert len(line) < 500
    return line.removeprefix(f"{path}: ")


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("[redsi]", "redsi: unknown key; did you mean redis?"),
        ("[gateway]\nprot = 1", "gateway.prot: unknown key; did you mean port?"),
        ("[lease]\nx = 1", "lease.x: unknown key; known are: learning_ms, provisional_ms, tick_ms, ttl_ms"),
        (FLEET + "zzz = 1", "fleets.demo.zzz: unknown key; known are: "),
        (FLEET + "budgets = { idle = 1 }", "fleets.demo.budgets.idle: unknown key; did you mean idle_ms?"),
        (
            FLEET.replace("name =", "label ="),
            "fleets.demo.engines[0].label: unknown key; known are: api_key, ",
        ),
        ("[tenants.a]\nquota = {}", "tenants.a.quota: unknown key; did you mean quotas?"),
    ],
)
def test_an_unknown_key_is_refused_with_the_nearest_one(tmp_path: Path, text: str, line: str) -> None:
    assert refusal(tmp_path, text).startswith(line)


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (
            "[lease]\ntick_ms = 2501",
            "lease: ttl_ms is 15000, less than 6 ticks of 2501 ms; set ttl_ms to 15006",
        ),
        ("[lease]\nttl_ms = 14999", "lease: ttl_ms is 14999, less than 6 ticks"),
        ("[lease]\nprovisional_ms = 5999", "lease: provisional_ms is 5999, less than 2 ticks of 2500 ms"),
        ("[lease]\nlearning_ms = 4999", "lease: learning_ms is 4999, less than 2 ticks of 2500 ms"),
        (FLEET + "total = 4\ncold = 5", "fleets.demo: cold is 5, more than total (4); set cold to 4 or less"),
        (
            FLEET + FLEET.replace("fleets.demo", "fleets.two"),
            "fleets.two.models names 'demo', which fleets.demo.models has; a model belongs to one fleet",
        ),
        (
            FLEET.replace('= [{ name = "e1"', '= [{ name = "e1", url = "http://h" }, { name = "e1"'),
            "fleets.demo: engines has two named e1; give each engine a name of its own",
        ),
        (
            f'[tenants.a]\nkeys_sha256 = ["{HASH}"]\n[tenants.b]\nkeys_sha256 = ["{HASH.upper()}"]',
            "tenants.b.keys_sha256 has abababababab..., which tenants.a.keys_sha256 has",
        ),
        (
            FLEET + "[tenants.a]\nquotas = { dmeo = 1 }",
            "tenants.a.quotas: there is no fleet 'dmeo'; the fleets are: demo",
        ),
        (
            "[tenants.a]\nquotas = { demo = 1 }",
            "tenants.a.quotas: there is no fleet 'demo'; the fleets are: none",
        ),
    ],
)
def test_values_that_contradict_each_other_are_refused(tmp_path: Path, text: str, line: str) -> None:
    assert refusal(tmp_path, text).startswith(line)


@pytest.mark.parametrize(
    "url",
    [
        "",
        "127.0.0.1:6379",
        "http://127.0.0.1:6379",
        "redis://",
        "redis://127.0.0.1:port/0",
        "redis://127.0.0.1:99999/0",
        "redis://127.0.0.1:0/0",
        "redis://127.0.0.1:6379/zero",
        "redis://[::1",
        "unix://run/redis.sock",
        "redis://:pass word\n@",
        "redis+sentinel://h1:26379",
        "redis+sentinel:///mymaster/0",
        "redis+sentinel://h1:26379,/mymaster/0",
        "redis+sentinel://h1:26379/mymaster/zero",
        "redis+sentinel://h1:port,h2:26379/mymaster",
        "redis+cluster://",
        "redis+cluster://h1:7000,h2:0",
        "redis+cluster://h1:7000/1",
        "redis+cluster://h1:7000/mymaster",
    ],
)
def test_a_bad_redis_address_is_refused(tmp_path: Path, url: str) -> None:
    assert refusal(tmp_path, "", {"TENURE_REDIS__URL": url}).startswith("redis.url: ")


@pytest.mark.parametrize(
    "url",
    [
        "redis://127.0.0.1:6379/0",
        "rediss://user:pw@redis.example:6380/1",
        "redis://h",
        "unix:///run/redis.sock",
        "redis+sentinel://h1:26379,h2:26379/mymaster/0",
        "rediss+sentinel://user:p%40w@h1,[::1]:26379/mymaster?sentinel_password=pw",
        "redis+cluster://h1:7000,h2:7000",
        "rediss+cluster://user:pw@h1:7000?ssl_ca_certs=/etc/ca.pem",
    ],
)
def test_a_good_redis_address_is_taken_as_it_is(url: str) -> None:
    assert load(None, {}, redis={"url": url}).redis.url == url


@pytest.mark.parametrize(
    "url",
    [
        "",
        "127.0.0.1:8710",
        "ftp://h",
        "http://",
        "http:///path",
        "http://h:port",
        "http://h:0",
        "http://h:70000",
        "http://user:pw@h",
        "http://h/?a=b",
        "http://h/#",
        "http://h/v1",
        "http://h/base/v1/",
        "http://[::1",
        "http://a b",
        "http://h\u00f6st",
    ],
)
def test_a_bad_engine_address_is_refused(tmp_path: Path, url: str) -> None:
    line = refusal(tmp_path, FLEET.replace("http://127.0.0.1:8710", url))
    assert line.startswith("fleets.demo.engines[0].url: ")


@pytest.mark.parametrize("name", ["*", "a}:b", "a\nb", "a\0b", "", "a" * 65, "a" * 65_536, "a b", "ä", "a/b"])
def test_names_that_could_reach_a_key_are_refused(tmp_path: Path, name: str) -> None:
    def quoted(text: str) -> str:
        return "".join(f"\\u{ord(char):04x}" for char in text)

    tenant = refusal(tmp_path, f'[tenants."{quoted(name)}"]\nweight = 1')
    assert tenant.startswith("tenants")
    assert "tenant name" in tenant
    assert "fleet name" in refusal(tmp_path, FLEET.replace("fleets.demo", f'fleets."{quoted(name)}"'))
    if name:  # an empty name is the default one for an engine and a gateway
        engine = refusal(tmp_path, FLEET.replace('"e1"', f'"{quoted(name)}"'))
        assert engine.startswith("fleets.demo.engines[0]: engine name")
        assert refusal(tmp_path, f'[gateway]\nname = "{quoted(name)}"').startswith(
            "gateway.name: gateway name"
        )


@pytest.mark.parametrize("name", ["total", "cold", "tenant", "engine", "default"])
def test_a_tenant_is_not_named_like_a_pool(tmp_path: Path, name: str) -> None:
    assert refusal(tmp_path, f"[tenants.{name}]").startswith(f"tenants.{name}: tenant name")


@pytest.mark.parametrize(
    ("text", "field"),
    [
        ("[lease]\nttl_ms = 0", "lease.ttl_ms"),
        ("[lease]\nttl_ms = true", "lease.ttl_ms"),
        ("[lease]\nttl_ms = 15000.5", "lease.ttl_ms"),
        ("[lease]\nttl_ms = 3600001", "lease.ttl_ms"),
        ("[budgets]\nidle_ms = 0", "budgets.idle_ms"),
        ("[budgets]\nqueue_ms = -1", "budgets.queue_ms"),
        ("[gateway]\nport = 65536", "gateway.port"),
        ("[gateway]\nworkers = 0", "gateway.workers"),
        ("[gateway]\nmax_body_bytes = 0", "gateway.max_body_bytes"),
        ('[gateway]\nhost = ""', "gateway.host"),
        ("[reaper]\nevery_ms = 1", "reaper.every_ms"),
        ('[redis]\nprefix = "a:{b}"', "redis.prefix"),
        ('[admin]\ntoken = "two words"', "admin.token"),
        (FLEET + "total = -1", "fleets.demo.total"),
        (FLEET + 'cold_until = "later"', "fleets.demo.cold_until"),
        (FLEET + 'redis_loss = "open"', "fleets.demo.redis_loss"),
        (FLEET + 'lost_lease = "kill"', "fleets.demo.lost_lease"),
        (FLEET + 'release_when = "done"', "fleets.demo.release_when"),
        (FLEET + 'release_when = "engine_idle"', "fleets.demo.release_when"),
        (FLEET.replace('["demo"]', "[]"), "fleets.demo.models"),
        (FLEET.replace('["demo"]', '[""]'), "fleets.demo.models[0]"),
        ('[fleets.demo]\nmodels = ["demo"]', "fleets.demo.engines"),
        ('[fleets.demo]\nmodels = ["demo"]\nengines = []', "fleets.demo.engines"),
        ('[fleets.demo]\nmodels = ["demo"]\nengines = [{}]', "fleets.demo.engines[0].url"),
        (FLEET.replace('"e1",', '"e1", slots = 0,'), "fleets.demo.engines[0].slots"),
        (FLEET.replace('"e1",', '"e1", kind = "tgi",'), "fleets.demo.engines[0].kind"),
        ('[tenants.a]\nkeys_sha256 = ["abc"]', "tenants.a.keys_sha256[0]"),
        ("[tenants.a]\nweight = 0", "tenants.a.weight"),
        (FLEET + "[tenants.a]\nquotas = { demo = -1 }", "tenants.a.quotas.demo"),
        ("fleets = 3", "fleets"),
        ("[fleets]\ndemo = 3", "fleets.demo"),
        ("budgets = 3", "budgets"),
    ],
)
def test_a_value_out_of_bounds_is_refused_by_its_field(tmp_path: Path, text: str, field: str) -> None:
    assert refusal(tmp_path, text).startswith(f"{field}: ")


@pytest.mark.parametrize(
    ("variable", "value", "part"),
    [
        ("TENURE_LEASE__TICK_MS", "soon", "lease.tick_ms: must be a valid integer"),
        ("TENURE_LAESE__TICK_MS", "1", "laese: unknown key; did you mean lease?"),
        ("TENURE_FLEETS__DMEO__TOTAL", "1", "fleets.dmeo.models: is missing"),
        ("TENURE_FLEETS__DEMO__MODELS", "demo", "models must be JSON"),
        ("TENURE_LEASE__", "1", "an empty part"),
    ],
)
def test_a_wrong_variable_is_named_in_the_refusal(
    tmp_path: Path, variable: str, value: str, part: str
) -> None:
    line = refusal(tmp_path, FLEET, {variable: value})
    assert part in line
    assert variable in line


def test_a_variable_for_a_value_and_one_for_its_part_are_refused(tmp_path: Path) -> None:
    environ = {"TENURE_GATEWAY__PORT": "1", "TENURE_GATEWAY__PORT__NUMBER": "2"}
    assert "keep one" in refusal(tmp_path, "", environ)


def test_a_refusal_shows_no_secret(tmp_path: Path) -> None:
    assert "pass" not in refusal(tmp_path, '[redis]\nurl = "http://:pass@h"')
    assert "se cret" not in refusal(tmp_path, '[admin]\ntoken = "se cret"')
    assert "se cret" not in refusal(tmp_path, FLEET.replace('"e1",', '"e1", api_key = "se cret",'))


def test_a_file_that_cannot_be_read_is_named_with_the_cure(tmp_path: Path) -> None:
    missing = tmp_path / "none.toml"
    with pytest.raises(
        SettingsError, match=r"none\.toml: cannot be read: No such file or directory; .*--config"
    ):
        load(missing, {})
    with pytest.raises(SettingsError, match="cannot be read"):
        load(tmp_path, {})


@pytest.mark.parametrize("content", [b"[lease", b"a = 1\na = 2", b"\xff\xfe", b"\0"])
def test_a_file_that_is_no_toml_is_refused_in_one_line(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "tenure.toml"
    path.write_bytes(content)
    with pytest.raises(SettingsError, match="no TOML") as caught:
        load(path, {})
    assert "\n" not in str(caught.value)
