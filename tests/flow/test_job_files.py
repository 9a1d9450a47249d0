"""Jobs in files: read as a whole, written all or none, and exported so that they can be read again."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from celery_sched.errors import AlreadyExists, InvalidValue
from celery_sched.job_files import read_jobs, shown
from celery_sched.model import JobDefinition, OnExcluded, Overlap, Source
from celery_sched.steps import define
from celery_sched.store import job_forms
from tests.flow.stage import Stage

NOON = datetime(2026, 3, 2, 12, tzinfo=UTC)
TOML = """
[jobs.nightly]
task = "app.nightly"
schedule = ["30 2 * * *", "0 12 * * 6"]
timezone = "Europe/Berlin"
start_at = 2026-04-01
end_at = 2026-12-31T12:00:00Z
overlap = "queue"
exclude = ["holidays:DE", "ics:closed.ics"]
on_excluded = "next_business_day"
jitter = "5m"
kwargs = {deep = true}

[jobs.probe]
task = "app.probe"
schedule = "after 10s"
"""
CLOSED = (
    "BEGIN:VCALENDAR\r\nVERSION:2.0\r\nPRODID:-//t//EN\r\nBEGIN:VEVENT\r\nUID:1\r\n"
    "DTSTART;VALUE=DATE:20260303\r\nSUMMARY:Stocktaking\r\nEND:VEVENT\r\nEND:VCALENDAR\r\n"
)


@pytest.fixture
def stage(make_stage: Callable[..., Stage]) -> Stage:
    """A stage at noon."""
    return make_stage(NOON)


def written(folder: Path, name: str, text: str) -> Path:
    (folder / "closed.ics").write_text(CLOSED)
    (folder / name).write_text(text)
    return folder / name


def as_json(text: str) -> str:
    """The same jobs as a JSON list."""
    import tomllib

    jobs = tomllib.loads(text)["jobs"]
    return json.dumps({"jobs": [{"name": name, **fields} for name, fields in jobs.items()]}, default=str)


def as_yaml(text: str) -> str:
    import tomllib

    import yaml

    return str(yaml.safe_dump(tomllib.loads(text)))


@pytest.mark.parametrize(
    ("name", "form"), [("jobs.toml", str), ("jobs.json", as_json), ("jobs.yaml", as_yaml)]
)
def test_every_form_says_the_same(tmp_path: Path, name: str, form: Callable[[str], str]) -> None:
    """TOML, JSON and YAML: lists of schedules, dates, durations, and calendar files beside the file."""
    nightly, probe = read_jobs(written(tmp_path, name, form(TOML)))
    assert ("30 2 * * * | 0 12 * * 6", "Europe/Berlin", Overlap.QUEUE) == (
        nightly.schedule,
        nightly.timezone,
        nightly.overlap,
    )
    # midnight of a day is that of the job's zone
    assert datetime(2026, 3, 31, 22, tzinfo=UTC) == nightly.start_at
    assert datetime(2026, 12, 31, 12, tzinfo=UTC) == nightly.end_at
    assert ("holidays:DE", OnExcluded.NEXT_BUSINESS_DAY) == (nightly.exclude[0], nightly.on_excluded)
    assert "closed.ics" == dict(nightly.exclude[1])["ics"]  # type: ignore[arg-type]
    assert (timedelta(minutes=5), {"deep": True}) == (nightly.jitter, nightly.kwargs)
    assert ("app.probe", "after 10s") == (probe.task, probe.schedule)


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("jobs.ini", "", r"its name ends in .toml, .json, .yaml, .yml"),
        ("jobs.toml", "[jobs", "it is no TOML"),
        ("jobs.json", "{", "it is no JSON"),
        ("jobs.yaml", "jobs: [", "it is no YAML"),
        ("jobs.json", "[]", 'has "jobs"'),
        ("jobs.json", '{"jobs": [1]}', 'has "jobs"'),
        ("jobs.json", '{"jobs": [], "job": 1}', "it also has job"),
        ("jobs.json", '{"jobs": [{"name": "a", "task": "t"}]}', "job 'a': schedule None"),
        ("jobs.json", '{"jobs": {"a": {"task": "t", "schedul": "@daily"}}}', "Did you mean schedule"),
        (
            "jobs.json",
            '{"jobs": [{"name": "a", "task": "t", "schedule": "@daily"},'
            ' {"name": "a", "task": "t", "schedule": "@daily"}]}',
            "'a' is there twice",
        ),
    ],
)
def test_what_is_wrong_is_named(tmp_path: Path, name: str, text: str, said: str) -> None:
    """A refusal names the file and what is wrong in it."""
    with pytest.raises(InvalidValue, match=said) as refused:
        read_jobs(written(tmp_path, name, text))
    assert name in str(refused.value)


def test_all_that_is_wrong_is_said_at_once(tmp_path: Path) -> None:
    """One run of the command shows every mistake of the file."""
    bad = {"a": {"task": "t", "schedule": "61 * * * *"}, "b": {"task": "", "schedule": "@daily"}}
    with pytest.raises(InvalidValue, match=r"(?s)job 'a'.*\n.*job 'b'"):
        read_jobs(written(tmp_path, "jobs.json", json.dumps({"jobs": bad})))


def definition(name: str, **fields: Any) -> JobDefinition:
    lists: dict[str, Any] = {field: [] for field in ("args", "exclude", "retry_on", "give_up_on")}
    return JobDefinition(name, **{"task": "t", "schedule": "every 1h", **lists, **fields})


def test_apply_adds_changes_and_leaves(stage: Stage) -> None:
    """A job is what the file says, the default where it says nothing; jobs that no file names stay."""
    stage.client.add("other", task="t", schedule="every 1h")
    stage.client.add("known", task="t", schedule="every 1h", description="goes away")
    stage.client.add("same", task="t", schedule="every 1h")
    before = stage.rows()
    wanted = [definition("known", priority=9), definition("new"), definition("same")]
    would = stage.client.apply(wanted, dry_run=True)
    assert before == stage.rows(), "a dry run writes nothing"
    done = stage.client.apply(wanted, by="ada")
    assert would == done
    assert (("new",), (("known", ("priority", "description")),), ("same",)) == (
        done.added,
        done.changed,
        done.unchanged,
    )
    known = stage.client.get("known").definition
    assert (9, "") == (known.priority, known.description)
    assert ["known", "new", "other", "same"] == [job.name for job in stage.client.list()]
    assert [("ada", "edit", "known", {"priority": 9, "description": ""})] == stage.audit("edit")
    assert ((), (), ("known", "new", "same")) == tuple(vars(stage.client.apply(wanted)).values())


def test_all_or_none(stage: Stage) -> None:
    """A job of code, or a pool that is not there, in the middle of the file: nothing is written."""
    code = definition("code")
    stage.database.run(lambda tx, now: define.create(tx, now, stage.config, code, Source.CODE))
    before = stage.rows()
    assert (("code",), ()) == (stage.client.apply([code]).unchanged, stage.client.apply([code]).changed)
    for second, error, said in (
        (definition("code", priority=1), AlreadyExists, "It comes from code"),
        (definition("z", pool="slow"), InvalidValue, "one of the pools there are"),
    ):
        with pytest.raises(error, match=said):
            stage.client.apply([definition("a"), second])
        assert before == stage.rows()


def test_the_commands(tmp_path: Path) -> None:
    """apply, export and apply again: nothing is changed by what was exported; a refusal has exit code 2."""
    file = written(tmp_path, "jobs.toml", TOML)
    environment = {
        "PATH": str(Path(sys.executable).parent),
        "CELERY_SCHED_HOME": str(tmp_path / "home"),
        "PYTHONPATH": str(Path(__file__).resolve().parents[2]),
    }

    def sched(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "celery", "-A", "celery_sched", "sched", *words],
            capture_output=True,
            text=True,
            env=environment,
            cwd=tmp_path,
            timeout=120,
            check=False,
        )

    sched("migrate")
    assert "would be added nightly\nwould be added probe\n2 added, 0 changed, 0 unchanged\n" == (
        sched("jobs", "apply", str(file), "--dry-run").stdout
    )
    applied = sched("jobs", "apply", str(file), "--json")
    assert {"added": ["nightly", "probe"], "changed": {}, "unchanged": []} == json.loads(applied.stdout)
    exported = sched("jobs", "export")
    (tmp_path / "again.json").write_text(exported.stdout)
    again = sched("jobs", "apply", "again.json")
    assert (0, "0 added, 0 changed, 2 unchanged\n") == (again.returncode, again.stdout), again.stderr
    assert (
        "will never run: the schedule has no"
        in sched(*("jobs", "add", "past", "--task", "t", "--schedule", "once 2020-01-01T00:00")).stderr
    )
    seconds = sched("jobs", "add", "noon", "--task", "t", "--schedule", "* * * * * *")
    assert (
        "noon is due again 1 s after its next run. The sixth field of cron is the seconds" in seconds.stderr
    )
    missing = sched("jobs", "apply", "nowhere.toml")
    assert (2, "") == (missing.returncode, missing.stdout)
    assert "there is no such file" in missing.stderr


def test_an_export_says_no_defaults() -> None:
    """What a file need not say, it does not say."""
    one = definition("a", priority=9)
    assert {"name": "a", "task": "t", "schedule": "every 1h", "priority": 9} == shown(
        one, job_forms.to_json(one)
    )
