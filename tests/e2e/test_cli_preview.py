"""`sched next` with all times of a job, and `sched jobs --calendar`: through the real command."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from celery import Celery
from celery.bin.celery import celery
from click.testing import CliRunner

from celery_sched import runtime
from celery_sched.client import Client
from tests.e2e.deployment import Answer, Deployment

BERLIN = ("--tz", "Europe/Berlin")


def test_a_preview_says_what_the_clocks_do(deployment: Deployment) -> None:
    """Local and UTC time, a row for the change of the clocks, a word at what stands in for a missing time."""
    answer = deployment.sched("next", "30 2 * * *", *BERLIN, "--from", "2026-03-28T01:00", "-n", "2")
    assert [
        "Europe/Berlin                  UTC",
        "Sat 2026-03-28 02:30:00 +0100  2026-03-28T01:30:00Z",
        "  ~ clocks go forward 1 h at 2026-03-29 02:00 CET -> 03:00 CEST",
        "Sun 2026-03-29 03:00:00 +0200  2026-03-29T01:00:00Z  02:30 does not exist",
    ] == answer.out.splitlines()
    assert (0, "", []) == (answer.code, answer.err, list(deployment.folder.iterdir()))


def test_details_are_json(deployment: Deployment) -> None:
    """--details gives objects, with --json or without; --json alone stays a list of texts."""
    asked = ("next", "30 2 * * *", *BERLIN, "--from", "2026-03-28T12:00", "-n", "1")
    plain = deployment.sched(*asked, "--json").json
    details = deployment.sched(*asked, "--details").json
    assert ["2026-03-29T01:00:00Z"] == plain
    assert details == deployment.sched(*asked, "--details", "--json").json
    assert [("2026-03-29T01:00:00Z", "2026-03-29T03:00:00+02:00", "CEST", 7200, "02:30 does not exist")] == [
        (one["utc"], one["local"], one["abbreviation"], one["offset_seconds"], one["note"]) for one in details
    ]
    assert ("2026-03-29T01:00:00Z", 3600, 7200) == tuple(
        details[0]["dst_change"][key] for key in ("at", "before", "after")
    )


def test_the_end_of_max_runs_is_no_end_of_the_schedule(migrated: Deployment) -> None:
    """Of a job that has few runs left nothing is looked for beyond them: its calendar may exclude no more."""
    made = migrated.sched(
        *("jobs", "add", "thrice", "--task", "celery_sched.ping", "--schedule", "* * * * *"),
        *("--max-runs", "3", "--exclude", "dates:2020-01-01"),
    )
    assert 0 == made.code, made.err
    answer = migrated.sched("next", "--job", "thrice")
    assert (4, "After that it has had its 3 runs.\n") == (len(answer.out.splitlines()), answer.err)


TIMES = (
    *("--tz", "Europe/Berlin", "--start-at", "2030-04-01T00:00", "--end-at", "2030-06-30", "--jitter", "10m"),
    *("--exclude", "holidays:DE", "--exclude", "weekly:sat,sun", "--on-excluded", "next_business_day"),
    *("--day-mode", "and", "--dst", "literal"),
)


def test_a_preview_means_what_a_job_means(migrated: Deployment) -> None:
    """With the same options a preview and a job have the same instants; so has the preview of that job."""
    schedule = "30 9 10-30 4-6 5,1"
    preview = migrated.sched(
        *("next", schedule, "--name", "monthly", *TIMES, "--from", "2030-01-01", "-n", "9", "--details")
    )
    added = migrated.sched(
        *("jobs", "add", "monthly", "--task", "celery_sched.ping", "--schedule", schedule, *TIMES)
    )
    assert (0, 0) == (preview.code, added.code), preview.err + added.err
    shown = migrated.sched("jobs", "show", "monthly", "--json").json["next"]
    assert shown == [one["run_at"] for one in preview.json][: len(shown)]
    assert shown[0] != preview.json[0]["utc"], "there is a jitter"
    job = migrated.sched("next", "--job", "monthly", "-n", "9", "--json").json
    assert job == [one["utc"] for one in preview.json]
    moved = [other for one in preview.json for other in one["excluded"]]
    assert ("holidays:DE", "2030-04-19T07:30:00Z", "2030-04-23T07:30:00Z") in [
        (other["by"], other["utc"], other["moved_to"]) for other in moved
    ]


def test_a_calendar_from_a_file(deployment: Deployment) -> None:
    """A preview reads an .ics file as `jobs add` does."""
    (deployment.folder / "off.ics").write_text(
        "BEGIN:VCALENDAR\r\nVERSION:2.0\r\nPRODID:-//x//y//EN\r\nBEGIN:VEVENT\r\nUID:1\r\n"
        "DTSTAMP:20290101T000000Z\r\nDTSTART;VALUE=DATE:20300402\r\nDTEND;VALUE=DATE:20300403\r\n"
        "SUMMARY:Stocktaking\r\nEND:VEVENT\r\nEND:VCALENDAR\r\n"
    )
    answer = deployment.sched("next", "@daily", "--exclude", "ics:off.ics", "--from", "2030-04-01", "-n", "2")
    assert 0 == answer.code, answer.err
    assert ["Tue 2030-04-02", "Wed 2030-04-03", "Thu 2030-04-04"] == [
        line[:14] for line in answer.out.splitlines()[1:]
    ]
    assert "excluded by ics:off.ics (Stocktaking)" in answer.out.splitlines()[1]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "SCHEDULE"),
        (["@daily", "--job", "x"], "--job"),
        (["--job", "x", "--tz", "UTC"], "--job"),
        (["@daily", "--jitter", "5m"], "--name"),
        (["@daily", "--exclude", "holidays:XX"], "XX"),
        (["@daily", "--on-excluded", "move"], "next_business_day"),
        (["@daily", "--day-mode", "xor"], "day_mode 'xor'"),
        (["@daily", "--start-at", "2026-02-01", "--end-at", "2026-01-01"], "end_at"),
    ],
)
def test_what_is_refused(arguments: list[str], said: str) -> None:
    """A preview refuses what a job refuses, names it, and prints nothing on stdout."""
    answer = CliRunner().invoke(celery, ["sched", "next", *arguments])
    assert (2, "", True) == (answer.exit_code, answer.stdout, said in answer.stderr), answer.output
    assert ("Traceback" in answer.stderr, "job 'preview'" in answer.stderr) == (False, False)


# no hour begins, by this schedule, while the tests run
HOURLY = f"{(datetime.now(UTC) + timedelta(minutes=30)).minute} * * * *"
JOBS: dict[str, dict[str, Any]] = {
    "hourly": {"schedule": HOURLY},
    "every-second": {"schedule": "every 1s"},
    "thrice": {"schedule": "every 1h", "max_runs": 3},
    "far": {"schedule": "once 2099-01-01"},
    "idle": {"schedule": "every 5m"},
    "broken": {"schedule": "every 5m"},
}


@pytest.fixture(scope="module")
def busy(tmp_path_factory: pytest.TempPathFactory) -> Deployment:
    """A deployment with jobs of all sorts; no scheduler runs."""
    deployment = Deployment(tmp_path_factory.mktemp("busy"))
    assert 0 == deployment.sched("migrate").code
    app = Celery("celery_sched", set_as_current=False)
    app.conf.update(sched_home=str(deployment.home), broker_url="memory://")
    found = runtime.of(app)
    try:
        client = Client(found)
        for name, fields in JOBS.items():
            client.add(name, task="celery_sched.ping", **fields)
        client.pause("idle", "nobody needs it")
    finally:
        found.close()
    with closing(sqlite3.connect(deployment.home / "sched.sqlite3")) as connection, connection:
        connection.execute("UPDATE sched_job SET timezone = 'Mars/Base' WHERE name = 'broken'")
    return deployment


def lines_of(answer: Answer) -> dict[str, str]:
    """The lines of a calendar by their first word."""
    assert (0, "") == (answer.code, answer.err)
    return {line.split()[0]: line for line in answer.out.splitlines()}


def test_the_calendar_of_jobs(busy: Deployment) -> None:
    """A line per job that is due; the others come last, with the reason. A bad schedule stops no other."""
    answer = replace(busy, env={"TZ": "Asia/Kathmandu", "COLUMNS": "100"}).sched("jobs", "--calendar")
    lines = lines_of(answer)
    assert "In Asia/Kathmandu; a column is 20m" in lines["In"]
    assert "▼ now " in lines["▼"]
    assert 24 == lines["hourly"].count("•")
    assert ("24", "3") == (lines["hourly"].split()[-1], lines["thrice"].split()[-1])
    assert 70 < lines["every-second"].count("#")
    assert ["far", "broken", "idle"] == list(lines)[-3:]
    assert ("next in" in lines["far"], "paused: nobody needs it" in lines["idle"]) == (True, True)
    assert "'Mars/Base'" in lines["broken"]
    assert 100 >= max(map(len, answer.out.splitlines()))


def test_the_calendar_fits_the_terminal(busy: Deployment) -> None:
    """COLUMNS is its width, --hours its window; without Unicode in the output all signs are ASCII."""
    narrow = replace(busy, env={"COLUMNS": "60", "PYTHONIOENCODING": "ascii", "TZ": "UTC"})
    answer = narrow.sched("jobs", "list", "--calendar", "--hours", "3", "--status", "active")
    lines = lines_of(answer)
    assert (True, 60) == (answer.out.isascii(), max(60, *map(len, answer.out.splitlines())))
    assert (3, False) == (lines["hourly"].count("*"), "idle" in lines)


def test_the_calendar_for_programs(busy: Deployment) -> None:
    """Each job's occurrences, at most a thousand, and how many there are; a problem instead of them."""
    found = {one["job"]: one for one in busy.sched("jobs", "--calendar", "--json").json}
    assert sorted(JOBS) == sorted(found)
    assert (24, 24) == (found["hourly"]["count"], len(found["hourly"]["occurrences"]))
    assert found["hourly"]["next_run_at"] == found["hourly"]["occurrences"][0]
    assert (1000, True) == (
        len(found["every-second"]["occurrences"]),
        86_399 <= found["every-second"]["count"] <= 86_401,
    )
    assert (3, []) == (found["thrice"]["count"], found["idle"]["occurrences"])
    assert ("Mars/Base" in found["broken"]["problem"], None) == (True, found["hourly"]["problem"])


def test_hours_are_for_the_calendar(migrated: Deployment) -> None:
    """--hours without --calendar is a mistake; without jobs there is nothing to draw."""
    answer = migrated.sched("jobs", "--hours", "3")
    assert (2, "", True) == (answer.code, answer.out, "--calendar" in answer.err)
    empty = migrated.sched("jobs", "--calendar")
    assert (0, "", True) == (empty.code, empty.out, "no jobs" in empty.err)
    assert [] == migrated.sched("jobs", "--calendar", "--json").json
