"""The ``sched_*`` settings of a Celery app, checked once and frozen.

They come from the app's configuration (any Celery namespace), else from ``CELERY_SCHED_*`` environment
variables, else from the defaults below. All wrong values are reported at once.
"""

from __future__ import annotations

import difflib
import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from ipaddress import ip_network
from pathlib import Path
from typing import Any

from celery_sched import notify_settings
from celery_sched.durations import parse_duration
from celery_sched.errors import InvalidConfig, InvalidValue

ENVIRONMENT_PREFIX = "CELERY_SCHED_"
SETTING_PREFIX = "sched_"
SECRET_PREFIX = "CELERY_SCHED_SECRET_"
"""Environment variables that are secrets (`celery_sched.secrets`), and no settings."""
LONGEST_APP = 100
SHORTEST_LEASE = timedelta(seconds=3)
SHORTEST_HEARTBEAT = timedelta(seconds=1)
KILL_GRACE = timedelta(seconds=3)
EXCLUSIVE_MARGIN = timedelta(seconds=10)
SHORTEST_MARGIN = timedelta(seconds=0.5)
"""What a kill without SIGTERM takes, with room."""


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
    heartbeat_timeout: timedelta
    kill_grace: timedelta
    exclusive_margin: timedelta
    keep_runs: timedelta
    keep_events: timedelta
    max_hops: int
    secrets_dir: Path | None
    """The folder with a file per secret."""
    allow_shell: bool
    http_allowed_hosts: tuple[str, ...] | None
    """Patterns of hosts, and networks; ``None``: every public one."""
    http_allow_private: bool
    connections: Mapping[str, str] = field(repr=False)
    """Databases for jobs, by name: a URL (which may hold a password), or a reference to a secret."""
    sql_folder: Path | None
    notify_targets: Mapping[str, Sequence[str]] = field(repr=False)
    """Name -> Apprise URLs, which hold passwords."""
    notify: notify_settings.Wanted
    notify_rate: notify_settings.Rate
    notify_dedupe: timedelta
    notify_gather: timedelta
    notify_templates: Mapping[str, notify_settings.Template]
    keep_notifications: timedelta

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


def _app(value: Any, what: str) -> str:
    name = _text(value, what)
    if len(name) > LONGEST_APP or not name.isprintable():
        raise InvalidValue(what, value, f"at most {LONGEST_APP} printable characters")
    return name


def _folder(value: Any, what: str) -> Path:
    return Path(_text(os.fspath(value) if isinstance(value, os.PathLike) else value, what)).absolute()


def _texts(value: Any, what: str) -> tuple[str, ...]:
    """A list; in the environment ``a, b`` or JSON."""
    if isinstance(value, str):
        value = _json(value, what) if value.lstrip().startswith("[") else value.split(",")
    if not isinstance(value, list | tuple | set | frozenset):
        raise InvalidValue(what, value, "a list of texts")
    return tuple(_text(part, what) for part in value)


def _hosts(value: Any, what: str) -> tuple[str, ...]:
    hosts = tuple(host.lower() for host in _texts(value, what))
    for host in hosts:
        if "://" in host or ("/" in host and not _is_network(host)):
            raise InvalidValue(what, host, 'a host ("api.example.com", "*.example.com") or a network')
    return hosts


def _is_network(text: str) -> bool:
    try:
        ip_network(text)
    except ValueError:
        return False
    return True


def _connections(value: Any, what: str) -> Mapping[str, str]:
    if isinstance(value, str):
        value = _json(value, what)
    if not isinstance(value, Mapping):
        raise InvalidValue(what, value, 'a mapping of names to URLs: {"shop": "postgresql+psycopg://..."}')
    return {_text(name, f"a name in {what}"): _text(url, f"{what}[{name!r}]") for name, url in value.items()}


def _json(text: str, what: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise InvalidValue(what, unsecret(text), "JSON", f"It cannot be read: {error}.") from error


def _truth(value: Any, what: str) -> bool:
    words = {"true": True, "1": True, "yes": True, "on": True}
    words |= {"false": False, "0": False, "no": False, "off": False}
    found = value if isinstance(value, bool) else words.get(str(value).strip().lower())
    if found is None or not isinstance(value, bool | str):
        raise InvalidValue(what, value, "true or false")
    return found


def _count(value: Any, what: str) -> int:
    number = None
    if isinstance(value, int) and not isinstance(value, bool):
        number = value
    elif isinstance(value, str) and value.strip().isascii() and value.strip().isdigit():
        number = int(value) if len(value.strip()) < 10 else None
    if number is None or not 1 <= number <= 100_000:
        raise InvalidValue(what, value, "a whole number from 1 to 100000")
    return number


def _heartbeat(value: Any, what: str) -> timedelta:
    found = parse_duration(value, what)
    if found < SHORTEST_HEARTBEAT:
        raise InvalidValue(what, value, "at least 1 s: workers look for heartbeats twice a second")
    return found


def _grace(value: Any, what: str) -> timedelta:
    return parse_duration(value, what, allow_zero=True)


def _redis(value: Any, what: str) -> str | None:
    if value == "":
        return None
    url = _text(value, what)
    if not url.startswith(("redis://", "rediss://", "unix://")):
        raise InvalidValue(what, unsecret(url), "a redis://, rediss:// or unix:// URL, or nothing")
    return url


def _database(value: Any, what: str) -> str:
    url = _text(value, what)
    scheme, separator, rest = url.partition("://")
    kind = scheme.partition("+")[0]
    allowed = (
        "an SQLAlchemy URL of postgresql, mariadb, mysql or sqlite, such as postgresql+psycopg://host/name"
    )
    if not separator or kind not in ("sqlite", "postgresql", "mysql", "mariadb"):
        hint = "Write postgresql:// for postgres://." if kind == "postgres" else ""
        raise InvalidValue(what, unsecret(url), allowed, hint)
    if kind == "sqlite" and (rest.strip("/") in ("", ":memory:") or "mode=memory" in rest):
        hint = "Name a file: sqlite:////var/lib/sched.sqlite3."
        raise InvalidValue(what, url, "schedulers and workers share it, so it is not in memory", hint)
    return url


def unsecret(url: str) -> str:
    """A URL that cannot be read, without user, password and query (which may hold one too), for messages."""
    before, _, rest = url.rpartition("@")
    # a password with a question mark in it, or a query with an @: which one, nobody knows
    return "..." if "?" in before else rest.partition("?")[0]


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
        _app,
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
    Setting(
        "heartbeat_timeout",
        _heartbeat,
        "2m",
        "once a run has sent a heartbeat, how long it may go without another one; at least 1 s",
    ),
    Setting(
        "kill_grace",
        _grace,
        None,
        "time between SIGTERM and SIGKILL for a run that shall end; 0: SIGKILL at once; below a third of the "
        "lease (default: 3 s, or a sixth of the lease where that is shorter)",
    ),
    Setting(
        "exclusive_margin",
        parse_duration,
        None,
        "how long before its lease ends a worker that cannot renew it kills an exclusive job; the whole kill "
        "has to fit; 0.5 s to half of the lease (default: 10 s, or a sixth of the lease if that is shorter)",
    ),
    Setting("keep_runs", parse_duration, "30d", "age at which finished runs are pruned"),
    Setting(
        "keep_events",
        parse_duration,
        "7d",
        "age at which events are pruned, with their deliveries, when none of these is open any more",
    ),
    Setting(
        "max_hops",
        _count,
        16,
        "how many jobs in a row may be run for an event that the one before published: ends circles",
    ),
    Setting(
        "secrets_dir",
        _folder,
        None,
        "folder with a file per secret, on workers: for those not in a `CELERY_SCHED_SECRET_<NAME>`",
    ),
    Setting("allow_shell", _truth, False, "whether this worker carries out jobs of the type `shell`"),
    Setting(
        "http_allowed_hosts",
        _hosts,
        None,
        "hosts (`api.example.com`, `*.example.com`) and networks (`10.0.0.0/8`) that jobs of the type `http` "
        "may call, private ones too (default: every public one)",
    ),
    Setting("http_allow_private", _truth, False, "whether those jobs may call private addresses"),
    Setting(
        "connections",
        _connections,
        {},
        "databases for jobs of the types `sql` and `task`, by name: a URL, or `secret:NAME`",
    ),
    Setting("sql_folder", _folder, None, "folder of the files that jobs of the type `sql` name, on workers"),
    Setting(
        "notify_targets",
        notify_settings.read_targets,
        "{}",
        'where notifications can go: `{"ops": "mailto://..."}`, name -> Apprise URL, `secret:NAME` or a list'
        " of them",
    ),
    Setting(
        "notify",
        notify_settings.read_wanted,
        "{}",
        "who is told of what, for jobs whose `notify` does not say (default: failure, lost, recovery,"
        " deadline and paused are listed, and sent nowhere)",
    ),
    Setting(
        "notify_rate",
        notify_settings.read_rate,
        "20/h",
        "most messages to one target in a second, minute, hour or day (s, m, h, d); what is more goes"
        " together in the next one",
    ),
    Setting(
        "notify_dedupe",
        notify_settings.read_pause,
        "10m",
        "how long a job's failures after the first are listed as repeats and not sent; 0: never",
    ),
    Setting(
        "notify_gather",
        notify_settings.read_pause,
        "30s",
        "how long after a message to a target the next one gathers what there is to tell",
    ),
    Setting(
        "notify_templates",
        notify_settings.read_templates,
        "{}",
        "texts of your own: kind, task, job type or `TYPE/KIND` -> text, or `title` and `text`",
    ),
    Setting("keep_notifications", parse_duration, "30d", "age at which notifications are pruned"),
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
    problems += _contradictions(values["lease"], values["poll_interval"], values["kill_grace"])
    problems += _wrong_margin(values["lease"], values["exclusive_margin"])
    problems += notify_settings.contradictions(values["notify_targets"], values["notify"])
    if values["app"] is None and main:
        try:
            values["app"] = _app(main, "the Celery app's name")
        except InvalidValue as error:
            problems.append(f"{error} Or set {SETTING_PREFIX}app.")
    if problems:
        raise InvalidConfig(problems)
    values["app"] = values["app"] or "celery"
    values["database_url"] = values["database_url"] or f"sqlite:///{values['home'] / 'sched.sqlite3'}"
    if values["kill_grace"] is None:
        values["kill_grace"] = min(KILL_GRACE, values["lease"] / 6)
    if values["exclusive_margin"] is None:
        values["exclusive_margin"] = min(EXCLUSIVE_MARGIN, values["lease"] / 6)
    return Config(**values)


def _unknown(conf: Mapping[str, Any], environ: Mapping[str, str]) -> list[str]:
    """Settings that nobody reads: unknown ones, and known ones in a spelling that Celery does not look up."""
    namespace = getattr(conf, "prefix", None) or ""  # with its underscore: "CELERY_"
    prefix = namespace + (SETTING_PREFIX.upper() if namespace.isupper() else SETTING_PREFIX)
    read = {_spelled(form, name) for form in (prefix, SETTING_PREFIX) for name in DEFAULTS}
    problems = []
    for key in sorted(map(str, conf)):
        form = next((form for form in (prefix, SETTING_PREFIX) if key.startswith(form)), None)
        known = key.lower().removeprefix(ENVIRONMENT_PREFIX.lower()).removeprefix(SETTING_PREFIX)
        if key in read or (form is None and (known == key.lower() or known not in DEFAULTS)):
            continue
        problems.append(_no_setting(key, known if form is None else key[len(form) :].lower(), prefix))
    for variable in sorted(environ):
        name = variable[len(ENVIRONMENT_PREFIX) :].lower()
        ours = variable.startswith(ENVIRONMENT_PREFIX) and not variable.startswith(SECRET_PREFIX)
        if ours and name not in (*DEFAULTS, "failpoints"):
            problems.append(_no_setting(variable, name, ENVIRONMENT_PREFIX))
    return problems


def _spelled(form: str, name: str) -> str:
    return form + (name.upper() if form.isupper() else name)


def _no_setting(shown: str, name: str, form: str) -> str:
    near = difflib.get_close_matches(name, DEFAULTS, 1)
    if near:
        return f"{shown} is not a setting. Did you mean {_spelled(form, near[0])}?"
    return f"{shown} is not a setting. There are: {', '.join(_spelled(form, known) for known in DEFAULTS)}."


def _contradictions(
    lease: timedelta | None, poll_interval: timedelta | None, kill_grace: timedelta | None
) -> list[str]:
    problems = []
    if lease is not None and lease < SHORTEST_LEASE:
        problems.append(f"sched_lease {lease.total_seconds():g} s is too short: at least 3 s.")
    if lease is not None and poll_interval is not None and poll_interval > lease / 6:
        problems.append(
            f"sched_poll_interval {poll_interval.total_seconds():g} s is more than a sixth of sched_lease "
            f"({lease.total_seconds():g} s): at most {(lease / 6).total_seconds():g} s."
        )
    if lease is not None and kill_grace is not None and kill_grace >= lease / 3:
        problems.append(
            f"sched_kill_grace {kill_grace.total_seconds():g} s is too long for sched_lease "
            f"({lease.total_seconds():g} s): less than {(lease / 3).total_seconds():g} s, so that a run that "
            "is asked to stop is gone before its lease ends."
        )
    return problems


def _wrong_margin(lease: timedelta | None, margin: timedelta | None) -> list[str]:
    if margin is None:
        return []
    shown = f"sched_exclusive_margin {margin.total_seconds():g} s"
    if margin < SHORTEST_MARGIN:
        shortest = f"{SHORTEST_MARGIN.total_seconds():g} s"
        return [f"{shown} is too short: at least {shortest}, in which a job's process is killed."]
    if lease is not None and margin > lease / 2:
        return [
            f"{shown} is too long for sched_lease ({lease.total_seconds():g} s): at most "
            f"{(lease / 2).total_seconds():g} s. A renewal comes every third of the lease and has to be "
            "answered before exclusive jobs are killed."
        ]
    return []


def reference() -> str:
    """The settings as a Markdown table (``docs/settings.md`` holds it; a test compares)."""
    lines = ["| setting | environment variable | default | meaning |", "| --- | --- | --- | --- |"]
    for setting in SETTINGS:
        default = "" if setting.default is None else f"`{setting.default}`"
        name = f"{SETTING_PREFIX}{setting.name}"
        variable = ENVIRONMENT_PREFIX + setting.name.upper()
        lines.append(f"| `{name}` | `{variable}` | {default} | {setting.meaning} |")
    return "\n".join(lines)
