"""What a configuration means: defaults, the environment over the file, and what seeds Redis."""

import hashlib
from pathlib import Path

import pytest

from services.permits.model import FleetPolicy, LeaseTimes
from services.settings.load import find_config, load
from services.settings.schema import Engine, Fleet, Settings
from services.settings.seed import fleet_policies, lease_times, seed_keys, seed_limits

KEY_HASH = hashlib.sha256(b"a key").hexdigest()

CONTRACT = f"""
[redis]
url = "redis://127.0.0.1:6379/0"
prefix = "tenure"

[lease]
ttl_ms = 15000
tick_ms = 2500
provisional_ms = 6000
learning_ms = 6000

[budgets]
queue_ms = 20000
connect_ms = 5000
first_token_ms = 60000
idle_ms = 60000
stall_ms = 30000
total_ms = 600000
drain_ms = 30000

[gateway]
host = "127.0.0.1"
port = 8700
max_body_bytes = 10485760
workers = 1

[reaper]
every_ms = 1000
port = 8790

[admin]
token = ""

[fleets.demo]
models = ["demo"]
engines = [{{ name = "e1", url = "http://127.0.0.1:8710", kind = "openai", slots = 8, api_key = "" }}]
total = 8
cold = 2
tenant_default = 4
line_max = 200
line_max_per_tenant = 50
cold_until = "end"
redis_loss = "share"
lost_lease = "run_on"
release_when = "closed"

[tenants.acme]
keys_sha256 = ["{KEY_HASH}"]
weight = 1
quotas = {{ demo = 3 }}
"""

SMALL = """
[fleets.demo]
models = ["demo"]
engines = [{ url = "http://127.0.0.1:8710" }, { url = "https://engine.example/base/", slots = 4 }]
"""


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "tenure.toml"
    path.write_text(SMALL)
    return path


def test_the_documented_file_says_what_is_true_without_it(tmp_path: Path) -> None:
    """The documentation shows the defaults, so that nobody has to look for them."""
    path = tmp_path / "tenure.toml"
    path.write_text(CONTRACT)
    full, bare = load(path, {}), load(None, {})
    for section in ("redis", "lease", "budgets", "gateway", "reaper", "admin"):
        assert getattr(full, section) == getattr(bare, section)
    assert full.fleets["demo"] == Fleet(
        models=("demo",), engines=(Engine(name="e1", url="http://127.0.0.1:8710"),)
    )
    assert full.tenants["acme"].quotas == {"demo": 3}


def test_a_small_file_gets_its_defaults_from_the_engines(config: Path) -> None:
    fleet = load(config, {}).fleets["demo"]
    assert (fleet.total, fleet.cold, fleet.tenant_default) == (12, 3, 4)
    assert [engine.name for engine in fleet.engines] == ["127.0.0.1:8710", "engine.example:443"]
    assert [engine.url for engine in fleet.engines] == [
        "http://127.0.0.1:8710",
        "https://engine.example/base",
    ]


@pytest.mark.parametrize(("total", "cold"), [(0, 0), (1, 1), (3, 1), (4, 1), (9, 2), (100, 25)])
def test_a_quarter_of_the_places_are_cold_but_at_least_one(config: Path, total: int, cold: int) -> None:
    config.write_text(f"{SMALL}total = {total}\n")
    assert load(config, {}).fleets["demo"].cold == cold


def test_a_fleets_own_budgets_lie_over_the_common_ones(config: Path) -> None:
    config.write_text(f"[budgets]\nidle_ms = 1\nstall_ms = 2\n{SMALL}[fleets.demo.budgets]\nstall_ms = 3\n")
    settings = load(config, {})
    budgets = settings.fleets["demo"].budgets
    assert (budgets.idle_ms, budgets.stall_ms, budgets.total_ms) == (1, 3, 600_000)
    assert settings.budgets.stall_ms == 2


def test_the_environment_wins_over_the_file_and_the_command_line_over_both(config: Path) -> None:
    environ = {
        "TENURE_GATEWAY__PORT": "1234",
        "TENURE_GATEWAY__HOST": "::1",
        "TENURE_FLEETS__DEMO__TOTAL": "5",
    }
    settings = load(config, environ, gateway={"port": 4321})
    assert (settings.gateway.port, settings.gateway.host, settings.fleets["demo"].total) == (4321, "::1", 5)


def test_every_value_can_come_from_the_environment() -> None:
    """A container may have no file at all."""
    environ = {
        "TENURE_FLEETS__DEMO__MODELS": '["demo", "demo-*"]',
        "TENURE_FLEETS__DEMO__ENGINES": '[{"url": "http://engine:8000", "slots": 2, "api_key": "k"}]',
        "TENURE_FLEETS__DEMO__BUDGETS__IDLE_MS": "7",
        "TENURE_TENANTS__ACME__KEYS_SHA256": f'["{KEY_HASH.upper()}"]',
        "TENURE_TENANTS__ACME__QUOTAS__DEMO": "1",
        "TENURE_ADMIN__TOKEN": "secret",
        "TENURE_CONFIG": "is no value",
        "TENURE_HOME": "is none of ours",
        "PATH": "/bin",
    }
    settings = load(None, environ)
    assert settings.fleets["demo"].models == ("demo", "demo-*")
    assert settings.fleets["demo"].engines[0].slots == 2
    assert settings.fleets["demo"].budgets.idle_ms == 7
    assert settings.tenants["acme"].keys_sha256 == (KEY_HASH,)
    assert settings.tenants["acme"].quotas == {"demo": 1}


def test_a_variable_finds_names_with_capitals_dots_and_dashes(tmp_path: Path) -> None:
    path = tmp_path / "tenure.toml"
    path.write_text(SMALL.replace("fleets.demo", 'fleets."Qwen-2.5"') + '[tenants."Big-Corp"]\nweight = 2\n')
    environ = {
        "TENURE_FLEETS__QWEN_2_5__COLD": "1",
        "TENURE_TENANTS__BIG_CORP__QUOTAS": '{"Qwen-2.5": 2}',
        "TENURE_TENANTS__BIG_CORP__WEIGHT": "3",
    }
    settings = load(path, environ)
    assert settings.fleets["Qwen-2.5"].cold == 1
    assert settings.tenants["Big-Corp"].quotas == {"Qwen-2.5": 2}
    assert settings.tenants["Big-Corp"].weight == 3


def test_building_settings_in_code_reads_no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GATEWAY", '{"port": 1}')
    monkeypatch.setenv("TENURE_GATEWAY__PORT", "1")
    fleet = Fleet(models=("m",), engines=(Engine(url="http://e"),))
    settings = Settings(fleets={"demo": fleet})
    assert settings.gateway.port == 8700
    assert settings.fleets["demo"] == fleet


def test_secrets_do_not_show_when_settings_are_printed(config: Path) -> None:
    config.write_text(
        '[redis]\nurl = "redis://:hidden1@h/0"\n[admin]\ntoken = "hidden2"\n'
        + SMALL.replace("slots = 4", 'slots = 4, api_key = "hidden3"')
    )
    assert "hidden" not in repr(load(config, {}))


def test_the_named_file_comes_first_then_the_variable_then_the_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert find_config(None, {}) is None
    (tmp_path / ".tenure").mkdir()
    (tmp_path / ".tenure/tenure.toml").touch()
    assert find_config(None, {}) == Path(".tenure/tenure.toml")
    (tmp_path / "tenure.toml").touch()
    assert find_config(None, {}) == Path("tenure.toml")
    assert find_config(None, {"TENURE_CONFIG": "a.toml"}) == Path("a.toml")
    assert find_config(Path("b.toml"), {"TENURE_CONFIG": "a.toml"}) == Path("b.toml")


def test_the_file_seeds_limits_keys_and_policies(tmp_path: Path) -> None:
    path = tmp_path / "tenure.toml"
    path.write_text(CONTRACT + "[tenants.beta]\nweight = 3\n")
    settings = load(path, {})
    limits = {
        "total": 8,
        "cold": 2,
        "tenant_default": 4,
        "line_max": 200,
        "line_max_per_tenant": 50,
        "engine:e1": 8,
        "tenant:acme": 3,
        "weight:acme": 1,
        "weight:beta": 3,
    }
    assert seed_limits(settings, "demo") == limits
    assert seed_keys(settings) == {KEY_HASH: "acme"}
    assert fleet_policies(settings) == {"demo": FleetPolicy(limits=limits)}
    assert lease_times(settings) == LeaseTimes(
        ttl_ms=15_000, tick_ms=2_500, provisional_ms=6_000, learning_ms=6_000
    )
