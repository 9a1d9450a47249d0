"""The ``sched_*`` settings of a Celery app, checked once and frozen.

They come from the app's configuration (any Celery namespace), else from ``CELERY_SCHED_*`` environment
variables, else from the defaults below. All wrong values are reported at once.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from datetime import timedelta
from pathlib import Path
from typing import Any

from celery_sched.durations import parse_duration
from celery_sched.errors import InvalidConfig, InvalidValue

ENVIRONMENT_PREFIX = "CELERY_SCHED_"
SETTING_PREFIX = "sched_"


@dataclass(frozen=True)
class Config:
    """Every setting, checked. Durations are timedelta."""

    app: str
    """The app that jobs belong to; default the Celery app's main name."""
    database_url: str
    redis_url: str | None
    home: Path
    """The folder of the embedded default."""
    enabled: bool
    """Master switch: ``False`` plans, claims and sweeps nothing."""
    max_concurrent_jobs: int
    lease: timedelta
    max_runtime: timedelta
    start_timeout: timedelta
    poll_interval: timedelta
    keep_runs: timedelta

    @property
    def session_timeout(self) -> timedelta:
        """Longest any statement, lock wait or silent transaction may last: well below the lease."""
        return min(timedelta(seconds=10), self.lease / 3)

    @property
    def renew_interval(self) -> timedelta:
        return self.lease / 3


def _text(value: Any, what: str) -> str:
    if not isinstance(value, str) or not value.strip():
        raise InvalidValue(what, value, "a text that is not empty")
    return value.strip()


def _optional_text(value: Any, what: str) -> str | None:
    return None if value in (None, "") else _text(value, what)


def _folder(value: Any, what: str) -> Path:
    return Path(_text(os.fspath(value) if isinstance(value, os.PathLike) else value, what)).absolute()


def _truth(value: Any, what: str) -> bool:
    if isinstance(value, bool):
        return value
    known = {
        "true": True,
        "1": True,
        "yes": True,
        "on": True,
        "false": False,
        "0": False,
        "no": False,
        "off": False,
    }
    if isinstance(value, str) and value.strip().lower() in known:
        return known[value.strip().lower()]
    raise InvalidValue(what, value, "true or false")


def _count(value: Any, what: str) -> int:
    allowed = "a whole number from 1 to 100000"
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise InvalidValue(what, value, allowed)
    try:
        number = int(value)
    except ValueError:
        raise InvalidValue(what, value, allowed) from None
    if not 1 <= number <= 100_000:
        raise InvalidValue(what, value, allowed)
    return number


def _redis(value: Any, what: str) -> str | None:
    url = _optional_text(value, what)
    if url and not url.startswith(("redis://", "rediss://", "unix://")):
        raise InvalidValue(what, value, "a redis://, rediss:// or unix:// URL, or nothing")
    return url


def _database(value: Any, what: str) -> str:
    url = _text(value, what)
    if url.split(":", 1)[0].split("+", 1)[0] not in ("sqlite", "postgresql", "mysql", "mariadb"):
        raise InvalidValue(
            what, url.split("@")[-1], "an SQLAlchemy URL of postgresql, mariadb, mysql or sqlite"
        )
    return url


@dataclass(frozen=True)
class Setting:
    """One setting: how it is read, its default and what it means (the reference page is made of these)."""

    name: str
    read: Callable[[Any, str], Any]
    default: Any
    meaning: str


SETTINGS = (
    Setting(
        "app",
        _text,
        None,
        "app the jobs belong to; two apps may share one database (default: the Celery app's main name)",
    ),
    Setting(
        "database_url", _database, None, "where jobs and runs are kept (default: SQLite under sched_home)"
    ),
    Setting(
        "redis_url",
        _redis,
        None,
        "Redis with the in-flight counters; without it the database counts, exactly",
    ),
    Setting("home", _folder, ".celery_sched", "folder of the embedded default: SQLite file, broker, results"),
    Setting("enabled", _truth, True, "master switch of the schedulers"),
    Setting(
        "max_concurrent_jobs",
        _count,
        5,
        "slots of the pool `default` when it is first made; change later with `sched pools`",
    ),
    Setting("lease", parse_duration, "60s", "how long a claim is valid without proof of life; at least 3 s"),
    Setting(
        "max_runtime",
        parse_duration,
        "10m",
        "how long a body may run; a job's own `max_runtime` only extends it",
    ),
    Setting(
        "start_timeout",
        parse_duration,
        "10m",
        "how long a published run may wait for a worker before it is published again",
    ),
    Setting(
        "poll_interval",
        parse_duration,
        "1s",
        "longest pause between two looks at the database; at most a sixth of the lease",
    ),
    Setting("keep_runs", parse_duration, "30d", "age at which finished runs are pruned"),
)
DEFAULTS = {setting.name: setting.default for setting in SETTINGS}


def load(conf: Mapping[str, Any], main: str | None, environ: Mapping[str, str] | None = None) -> Config:
    """Read and check the settings.

    :param conf: the Celery app's configuration (keys ``sched_*``).
    :param main: the Celery app's main name.
    :raises InvalidConfig: naming every wrong setting, its value and what is allowed.
    """
    environ = os.environ if environ is None else environ
    problems: list[str] = []
    values: dict[str, Any] = {}
    for setting in SETTINGS:
        raw, shown = setting.default, f"{SETTING_PREFIX}{setting.name}"
        variable = ENVIRONMENT_PREFIX + setting.name.upper()
        given = conf.get(f"{SETTING_PREFIX}{setting.name}")
        if given is not None:
            raw = given
        elif environ.get(variable):
            raw, shown = environ[variable], variable
        if raw is None:
            values[setting.name] = None
            continue
        try:
            values[setting.name] = setting.read(raw, shown)
        except InvalidValue as error:
            values[setting.name] = None
            problems.append(str(error))
    problems += _unknown(conf, environ)
    if problems:
        raise InvalidConfig(problems)
    values["app"] = values["app"] or main or "celery"
    values["database_url"] = values["database_url"] or f"sqlite:///{values['home'] / 'sched.sqlite3'}"
    config = Config(**values)
    problems = _contradictions(config)
    if problems:
        raise InvalidConfig(problems)
    return config


def _unknown(conf: Mapping[str, Any], environ: Mapping[str, str]) -> list[str]:
    known = [field.name for field in fields(Config)]
    problems = []
    given = [(key, key[len(SETTING_PREFIX) :]) for key in conf if str(key).startswith(SETTING_PREFIX)]
    given += [
        (key, key[len(ENVIRONMENT_PREFIX) :].lower())
        for key in environ
        if key.startswith(ENVIRONMENT_PREFIX) and key != "CELERY_SCHED_FAILPOINTS"
    ]
    for shown, name in given:
        if name not in known:
            near = difflib.get_close_matches(name, known, 1)
            hint = ""
            if near:
                right = near[0] if shown.islower() else near[0].upper()
                hint = f" Did you mean {shown[: -len(name)]}{right}?"
            problems.append(f"{shown} is not a setting.{hint}")
    return problems


def _contradictions(config: Config) -> list[str]:
    problems = []
    if config.lease < timedelta(seconds=3):
        problems.append(f"sched_lease {config.lease.total_seconds():g} s is too short: at least 3 s")
    if config.poll_interval > config.lease / 6:
        problems.append(
            f"sched_poll_interval {config.poll_interval.total_seconds():g} s is more than a sixth of "
            f"sched_lease ({config.lease.total_seconds():g} s): at most "
            f"{(config.lease / 6).total_seconds():g} s"
        )
    return problems


def reference() -> str:
    """The settings as a Markdown table (``docs/settings.md`` holds it; a test compares)."""
    lines = ["| setting | environment variable | default | meaning |", "| --- | --- | --- | --- |"]
    for setting in SETTINGS:
        default = "" if setting.default is None else f"`{setting.default}`"
        name = f"{SETTING_PREFIX}{setting.name}"
        variable = ENVIRONMENT_PREFIX + setting.name.upper()
        lines.append(f"| `{name}` | `{variable}` | {default} | {setting.meaning} |")
    return "\n".join(lines)
