"""Runs every check of the doctor and shows what they found."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from services.cli.doctor import examine_redis
from services.cli.engine_checks import examine_engines
from services.cli.findings import Finding, fine, note, problem
from services.cli.shown import print_json, print_line
from services.settings.load import SettingsError, find_config, load
from services.settings.schema import Settings

_MARKS: Final = {"ok": "ok     ", "info": "info   ", "problem": "PROBLEM"}


async def diagnose(
    config: Path | None, environ: Mapping[str, str], *, redis_url: str | None, as_json: bool
) -> bool:
    """Check everything that can be checked, print it, and return whether there is no problem."""
    settings, findings = _examine_config(find_config(config, environ), environ, redis_url)
    if settings:
        findings += await examine_redis(settings)
        findings += await examine_engines(settings)
    problems = sum(finding.level == "problem" for finding in findings)
    if as_json:
        print_json({"healthy": not problems, "findings": [asdict(finding) for finding in findings]})
    else:
        _print(findings, problems)
    return not problems


def _examine_config(
    path: Path | None, environ: Mapping[str, str], redis_url: str | None
) -> tuple[Settings | None, list[Finding]]:
    """Return the settings, or as much of them as can be used to look further, and what is wrong with them."""
    overrides: dict[str, Any] = {"redis": {"url": redis_url}} if redis_url else {}
    try:
        settings = load(path, environ, **overrides)
    except SettingsError as error:
        # Where the settings list all that is wrong, all of it is shown.
        lines = getattr(error, "problems", None) or (str(error),)
        findings = [_config_problem(line) for line in lines]
        # Redis can still be looked at when somebody says where it is.
        return (load(None, {}, **overrides) if redis_url else None), findings
    if path is None:
        return settings, [note("config", "no file: no $TENURE_CONFIG, tenure.toml or .tenure/tenure.toml")]
    if not settings.fleets:
        return settings, [problem("config", f"{path} names no fleet", "add [fleets.NAME]")]
    names = ", ".join(sorted(settings.fleets))
    return settings, [fine("config", f"{path}: fleets {names}; {len(settings.tenants)} tenants")]


def _config_problem(line: str) -> Finding:
    """Tell what is wrong from what to do: the settings write both into one line."""
    detail, _, cure = line.rpartition("; ")
    return problem("config", detail, cure) if detail else problem("config", line, "correct it")


def _print(findings: Sequence[Finding], problems: int) -> None:
    for finding in findings:
        print_line(f"{_MARKS[finding.level]}  {finding.check:<20}  {finding.detail}")
        if finding.cure:
            print_line(f"{'':<9}{'':<22}-> {finding.cure}")
    print_line("")
    print_line(f"{problems} problem{'' if problems == 1 else 's'}" if problems else "nothing to fix")
