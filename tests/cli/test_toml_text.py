"""The file that `tenure up` leaves reads back to what it was written from."""

from pathlib import Path

from services.cli.toml_text import toml_text
from services.settings.load import load
from services.settings.schema import Settings


def test_settings_survive_being_written_and_read(tmp_path: Path) -> None:
    """Names and texts that TOML would read as something else included."""
    written = Settings.model_validate(
        {
            "redis": {"url": 'unix:///run/a "quoted" path/\\x.sock'},
            "lease": {"ttl_ms": 60_000},
            "budgets": {"drain_ms": 1234},
            "fleets": {
                "qwen-2.5": {
                    "models": ["qwen/qwen-2.5:*", 'a "b" \\ c', "é漢"],
                    "engines": [{"url": "https://e.example:8443", "api_key": "s'k\"1", "slots": 3}],
                    "budgets": {"total_ms": 9},
                },
                "other": {"models": ["x"], "engines": [{"name": "n.1", "url": "http://h", "kind": "vllm"}]},
            },
            "tenants": {"a.b": {"keys_sha256": ["ab" * 32], "quotas": {"qwen-2.5": 0}}, "plain": {}},
        }
    )
    path = tmp_path / "tenure.toml"
    path.write_text(toml_text(written))
    assert load(path, {}).model_dump() == written.model_dump()
