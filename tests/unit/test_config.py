"""Settings: read from Celery's configuration or the environment, checked at once, wrong ones named."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import fields
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from celery import Celery

from celery_sched.config import DEFAULTS, SETTINGS, Config, load
from celery_sched.errors import InvalidConfig
from celery_sched.notify_settings import Rate, Wanted
from celery_sched.store.engine import Database

SECOND = timedelta(seconds=1)


def problems(
    conf: Mapping[str, Any], environ: Mapping[str, str] | None = None, main: str = "proj"
) -> list[str]:
    """What is wrong with these settings."""
    try:
        load(conf, main, environ or {})
    except InvalidConfig as error:
        assert all(problem in str(error) for problem in error.problems)
        return list(error.problems)
    return []


def test_the_defaults() -> None:
    """Without any setting everything lies under `.celery_sched` in the current folder."""
    home = Path.cwd() / ".celery_sched"
    assert Config(
        app="proj",
        database_url=f"sqlite:///{home / 'sched.sqlite3'}",
        redis_url=None,
        home=home,
        enabled=True,
        max_concurrent_jobs=5,
        lease=60 * SECOND,
        max_runtime=600 * SECOND,
        start_timeout=600 * SECOND,
        poll_interval=SECOND,
        heartbeat_timeout=120 * SECOND,
        kill_grace=3 * SECOND,
        exclusive_margin=10 * SECOND,
        keep_runs=timedelta(days=30),
        keep_events=timedelta(days=7),
        max_hops=16,
        secrets_dir=None,
        allow_shell=False,
        http_allowed_hosts=None,
        http_allow_private=False,
        connections={},
        sql_folder=None,
        notify_targets={},
        notify=Wanted(),
        notify_rate=Rate(20, timedelta(hours=1)),
        notify_dedupe=timedelta(minutes=10),
        notify_gather=timedelta(seconds=30),
        notify_templates={},
        keep_notifications=timedelta(days=30),
    ) == load({}, "proj", {})
    assert "celery" == load({}, None, {}).app


def test_every_setting_is_in_the_config() -> None:
    """The list of settings and the fields of Config are the same, in the same order."""
    assert [field.name for field in fields(Config)] == [setting.name for setting in SETTINGS]


@pytest.mark.parametrize(
    ("name", "given", "expected"),
    [
        ("app", " billing ", "billing"),
        ("database_url", "postgresql+psycopg://u:p@h/d", "postgresql+psycopg://u:p@h/d"),
        ("database_url", "mariadb+pymysql://h/d", "mariadb+pymysql://h/d"),
        ("database_url", "sqlite:///jobs.db", "sqlite:///jobs.db"),
        ("redis_url", "rediss://h:6379/1", "rediss://h:6379/1"),
        ("redis_url", "unix:///run/redis.sock", "unix:///run/redis.sock"),
        ("redis_url", "", None),
        ("home", "/var/lib/sched", Path("/var/lib/sched")),
        ("home", Path("/var/lib/sched"), Path("/var/lib/sched")),
        ("home", "sched", Path.cwd() / "sched"),
        ("enabled", False, False),
        ("enabled", "off", False),
        ("enabled", " Yes ", True),
        ("enabled", "0", False),
        ("max_concurrent_jobs", 1, 1),
        ("max_concurrent_jobs", " 100000 ", 100_000),
        ("lease", 3, 3 * SECOND),
        ("lease", "1m", 60 * SECOND),
        ("lease", "90", 90 * SECOND),
        ("lease", timedelta(minutes=5), 300 * SECOND),
        ("lease", 7.5, 7.5 * SECOND),
        ("max_runtime", "1h30m", 5400 * SECOND),
        ("start_timeout", "PT5M", 300 * SECOND),
        ("poll_interval", "250ms", 0.25 * SECOND),
        ("heartbeat_timeout", "90s", 90 * SECOND),
        ("heartbeat_timeout", 1, SECOND),
        ("kill_grace", "0", 0 * SECOND),
        ("kill_grace", "19.9s", 19.9 * SECOND),
        ("keep_runs", "2w", timedelta(days=14)),
    ],
)
def test_each_setting_is_read(name: str, given: Any, expected: Any) -> None:
    """Every form that is allowed, from the app's configuration and, where it is a text, from a variable."""
    extra = {"sched_poll_interval": "100ms"} if name == "lease" else {}
    assert expected == getattr(load({**extra, f"sched_{name}": given}, "proj", {}), name)
    if isinstance(given, str):
        assert expected == getattr(load(extra, "proj", {f"CELERY_SCHED_{name.upper()}": given}), name)


NAN, INFINITY = float("nan"), float("inf")
DURATIONS = (
    *("lease", "max_runtime", "start_timeout", "poll_interval", "heartbeat_timeout", "kill_grace"),
    "keep_runs",
)


@pytest.mark.parametrize(
    ("name", "value", "allowed"),
    [
        *(("app", value, "a text that is not empty") for value in ("", "  ", 5, True, b"app")),
        ("app", "x" * 101, "at most 100 printable characters"),
        ("app", "a\nb", "at most 100 printable characters"),
        *(
            ("database_url", value, "an SQLAlchemy URL of postgresql, mariadb, mysql or sqlite")
            for value in ("jobs.db", "postgresql", "oracle://h/d", "postgresql:h/d", "redis://h")
        ),
        ("database_url", "postgres://h/d", "Write postgresql:// for postgres://."),
        *(
            ("database_url", value, "not in memory")
            for value in (
                "sqlite://",
                "sqlite:///",
                "sqlite:///:memory:",
                "sqlite:///file:x?mode=memory&uri=true",
            )
        ),
        *(("database_url", value, "a text that is not empty") for value in ("", 5)),
        *(("redis_url", value, "a redis://, rediss:// or unix:// URL") for value in ("h:6379", "http://h")),
        ("redis_url", 6379, "a text that is not empty"),
        *(("home", value, "a text that is not empty") for value in ("", 5, True)),
        *(("enabled", value, "true or false") for value in ("maybe", "", 1, 0, 2.5, [], "truee")),
        *(
            ("max_concurrent_jobs", value, "a whole number from 1 to 100000")
            for value in (0, -1, 100_001, 5.0, NAN, True, "five", "", "5.5", "-3", "9" * 5000, [5], "٣")
        ),
        *(
            (name, value, 'a duration is written "90s"')
            for name in DURATIONS
            for value in (True, False, NAN, INFINITY, "soon", "", [], "-5m")
        ),
        *(
            (name, value, "a duration is not negative")
            for name in DURATIONS
            for value in (-1, -0.5, timedelta(seconds=-1), -1e9)
        ),
        ("lease", 0, "longer than zero"),
        *(("heartbeat_timeout", value, "at least 1 s") for value in (0.999, "500ms")),
        ("keep_runs", "200000d", "at most 100 years"),
    ],
)
def test_a_wrong_value_is_named(name: str, value: Any, allowed: str) -> None:
    """One line says which setting, which value and what is allowed, and nothing else is reported."""
    (problem,) = problems({f"sched_{name}": value})
    shown = repr(value)
    assert problem.startswith(f"sched_{name} {shown[:200]}"), problem
    assert allowed in problem


def test_a_wrong_variable_is_named_as_it_was_given() -> None:
    """A value from the environment is named by its variable, not by the setting."""
    (problem,) = problems({}, {"CELERY_SCHED_LEASE": "soon"})
    assert problem.startswith("CELERY_SCHED_LEASE 'soon' is refused"), problem


@pytest.mark.parametrize(
    "url", ["postgres://sched:secret@db/x", "ftp://:secret@db", "ftp://db/x?password=secret"]
)
def test_no_password_is_shown(url: str) -> None:
    """A refused URL is shown without its user and password."""
    for name in ("database_url", "redis_url"):
        (problem,) = problems({f"sched_{name}": url})
        assert "secret" not in problem and "db" in problem


@pytest.mark.parametrize("url", ["ftp://db/x?password=sec@ret", "ftp://sched:sec?ret@db/x"])
def test_no_part_of_a_password_is_shown(url: str) -> None:
    """Where it cannot be told what is the password, nothing of the URL is shown."""
    for name in ("database_url", "redis_url"):
        (problem,) = problems({f"sched_{name}": url})
        assert "sec" not in problem.replace(f"sched_{name}", "") and "ret" not in problem


def test_the_database_is_shown_without_its_passwords() -> None:
    """Neither the one before the host nor one of the query, which drivers take as well; the rest stays."""
    url = "postgresql+psycopg://u:secret@db/x?sslmode=require&password=secret&sslpassword=secret"
    shown = Database(url).shown
    assert "postgresql+psycopg://u:***@db/x?password=...&sslmode=require&sslpassword=..." == shown


def test_all_that_is_wrong_is_said_at_once() -> None:
    """Wrong values, unknown names and contradictions, from all sources, in one error."""
    conf = {
        "sched_lease": 2,
        "sched_max_concurrent_jobs": -1,
        "sched_leese": 1,
        "sched_keep_runs": NAN,
        "sched_database_url": "jobs.db",
    }
    found = problems(conf, {"CELERY_SCHED_ENABLED": "maybe", "CELERY_SCHED_HOUSE": "x"})
    expected = [
        "sched_database_url 'jobs.db' is refused",
        "CELERY_SCHED_ENABLED 'maybe' is refused",
        "sched_max_concurrent_jobs -1 is refused",
        "sched_keep_runs nan is refused",
        "sched_leese is not a setting. Did you mean sched_lease?",
        "CELERY_SCHED_HOUSE is not a setting. Did you mean CELERY_SCHED_HOME?",
        "sched_lease 2 s is too short: at least 3 s.",
        "sched_poll_interval 1 s is more than a sixth of sched_lease (2 s): at most 0.333333 s.",
    ]
    assert len(expected) == len(found)
    for start, line in zip(expected, found, strict=True):
        assert line.startswith(start), line
    with pytest.raises(InvalidConfig, match=r"^wrong settings:\n  - sched_database_url .*\n  - CELERY_"):
        load(conf, "proj", {"CELERY_SCHED_ENABLED": "maybe"})


@pytest.mark.parametrize(
    ("lease", "poll_interval", "said"),
    [
        ("3s", "0.5s", []),
        ("2.999s", "0.1s", ["sched_lease 2.999 s is too short: at least 3 s."]),
        ("60s", "10s", []),
        (
            "60s",
            "10.001s",
            ["sched_poll_interval 10.001 s is more than a sixth of sched_lease (60 s): at most 10 s."],
        ),
    ],
)
def test_lease_and_poll_interval_fit_together(lease: str, poll_interval: str, said: list[str]) -> None:
    """A lease has a floor, and a poll comes at least six times in it, or live workers would be swept."""
    assert said == problems({"sched_lease": lease, "sched_poll_interval": poll_interval})


@pytest.mark.parametrize(
    ("lease", "given", "expected"),
    [("60s", None, 3.0), ("12s", None, 2.0), ("3s", None, 0.5), ("12s", "3.9s", 3.9), ("3s", 0, 0.0)],
)
def test_the_grace_before_a_kill_fits_into_the_lease(lease: str, given: object, expected: float) -> None:
    """Where it is not given it is 3 s or a sixth of the lease; what is given must be below a third of it."""
    conf = {"sched_lease": lease, "sched_poll_interval": "0.1s", "sched_kill_grace": given}
    assert expected == load(conf, "proj", {}).kill_grace.total_seconds()
    (problem,) = problems({**conf, "sched_kill_grace": load(conf, "proj", {}).lease / 3})
    assert "is too long for sched_lease" in problem and "less than" in problem


def test_the_configuration_wins_over_the_environment() -> None:
    """A variable counts where the configuration is silent or says None; an empty one counts as absent."""
    environ = {"CELERY_SCHED_LEASE": "20s", "CELERY_SCHED_KEEP_RUNS": "1d", "CELERY_SCHED_APP": ""}
    config = load({"sched_lease": "30s", "sched_keep_runs": None}, "proj", environ)
    assert (30 * SECOND, timedelta(days=1), "proj") == (config.lease, config.keep_runs, config.app)


def test_the_process_environment_is_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a given environment the process's own is read; the failpoints' variable is no setting."""
    monkeypatch.setitem(os.environ, "CELERY_SCHED_LEASE", "20s")
    monkeypatch.setitem(os.environ, "CELERY_SCHED_FAILPOINTS", "")
    assert 20 * SECOND == load({}, "proj").lease


def test_an_unlike_name_lists_what_there_is() -> None:
    """Where no setting is near, all are listed."""
    (problem,) = problems({"sched_zzz": 1})
    assert problem.startswith("sched_zzz is not a setting. There are: sched_app, sched_database_url, ")


def test_the_apps_own_name_is_checked_too() -> None:
    """A main name that the column cannot hold is refused, unless `sched_app` is given."""
    (problem,) = problems({}, main="x" * 101)
    assert "at most 100" in problem and "sched_app" in problem
    assert [] == problems({"sched_app": "short"}, main="x" * 101)


# -- real Celery apps ----------------------------------------------------------------------------------------


def celery_app(source: Mapping[str, Any] | None, namespace: str | None = None, **later: Any) -> Celery:
    """An app configured as people do it: from a module or class, from a dict, or setting by setting."""
    made = Celery("proj", set_as_current=False)
    if source is not None:
        made.config_from_object(SimpleNamespace(**source), namespace=namespace)
    made.conf.update(later)
    return made


@pytest.mark.parametrize(
    ("source", "namespace"),
    [
        ({"sched_database_url": "postgresql://h/d", "sched_lease": "1m"}, None),
        ({"CELERY_SCHED_DATABASE_URL": "postgresql://h/d", "CELERY_SCHED_LEASE": "1m"}, "CELERY"),
        (
            {
                "CELERY_SCHED_DATABASE_URL": "postgresql://h/d",
                "SECRET_KEY": "x",
                "CELERY_BROKER_URL": "memory://",
            },
            "CELERY",
        ),
        ({"celery_sched_database_url": "postgresql://h/d"}, "celery"),
        ({"PROJ_SCHED_DATABASE_URL": "postgresql://h/d"}, "PROJ"),
    ],
)
def test_a_real_app_with_any_namespace(source: dict[str, Any], namespace: str | None) -> None:
    """Settings reach us through `app.conf`, whatever namespace the app keeps its configuration in."""
    config = load(celery_app(source, namespace).conf, "proj", {})
    assert ("postgresql://h/d", 60 * SECOND) == (config.database_url, config.lease)


def test_a_real_app_configured_in_other_ways() -> None:
    """From a dict, by attribute, by `update`, by keyword, and as defaults."""
    from_dict = Celery("proj", set_as_current=False)
    from_dict.config_from_object({"CELERY_SCHED_LEASE": "20s"}, namespace="CELERY")
    by_attribute = celery_app(None)
    by_attribute.conf.sched_lease = "20s"
    by_default = celery_app(None)
    by_default.add_defaults({"sched_lease": "20s"})
    by_keyword = Celery("proj", set_as_current=False, sched_lease="20s")
    later = celery_app({"CELERY_SCHED_LEASE": "50s"}, "CELERY", sched_lease="20s")
    for made in (from_dict, by_attribute, by_default, by_keyword, later):
        assert 20 * SECOND == load(made.conf, "proj", {}).lease


@pytest.mark.parametrize(
    ("source", "namespace", "said"),
    [
        ({"sched_leese": 1}, None, "sched_leese is not a setting. Did you mean sched_lease?"),
        (
            {"CELERY_SCHED_LEESE": 1},
            "CELERY",
            "CELERY_SCHED_LEESE is not a setting. Did you mean CELERY_SCHED_LEASE?",
        ),
        (
            {"PROJ_SCHED_LEESE": 1},
            "PROJ",
            "PROJ_SCHED_LEESE is not a setting. Did you mean PROJ_SCHED_LEASE?",
        ),
        # spellings that Celery would never look up
        ({"SCHED_LEASE": 9}, None, "SCHED_LEASE is not a setting. Did you mean sched_lease?"),
        ({"CELERY_SCHED_LEASE": 9}, None, "CELERY_SCHED_LEASE is not a setting. Did you mean sched_lease?"),
        ({"SCHED_LEASE": 9}, "CELERY", "SCHED_LEASE is not a setting. Did you mean CELERY_SCHED_LEASE?"),
        (
            {"celery_sched_lease": 9},
            "CELERY",
            "celery_sched_lease is not a setting. Did you mean CELERY_SCHED_LEASE?",
        ),
    ],
)
def test_what_a_real_app_would_ignore_is_named(
    source: dict[str, Any], namespace: str | None, said: str
) -> None:
    """A misspelt setting is found in the app's keys, also behind a namespace; the hint is in its form."""
    assert [said] == problems(celery_app(source, namespace).conf)


def test_a_real_app_may_have_names_like_ours() -> None:
    """Celery's own settings and other programs' names are none of our business."""
    source = {"SCHED_THINGS": 1, "SCHEDULE": 2, "CELERY_BEAT_SCHEDULE": {}, "MY_SCHED_LEASE": 3}
    assert [] == problems(celery_app(source, "CELERY").conf)
    assert [] == problems(celery_app({"schedule": 1, "scheduler": 2, "beat_schedule": {}}).conf)


def test_every_default_is_allowed() -> None:
    """The defaults pass their own checks."""
    given = {f"sched_{name}": value for name, value in DEFAULTS.items() if value is not None}
    assert load({}, "proj", {}) == load(given, "proj", {})
