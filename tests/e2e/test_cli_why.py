"""`celery -A celery_sched sched why`: what it prints, its JSON, its exit codes."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from tests.e2e.deployment import Deployment
from tests.private_server import wait_until

FIELDS = {
    "job", "at", "outcome", "text", "about", "occurrence", "due_at", "run", "gap", "occurrence_before",
    "occurrence_after", "notes", "next_steps",
}  # fmt: skip
SECOND = timedelta(seconds=1)


@pytest.fixture
def nightly(migrated: Deployment) -> Deployment:
    """A folder with a database and a job at 02:30 in Berlin, of which nothing has run."""
    add = ("jobs", "add", "nightly", "--task", "celery_sched.ping", "--schedule", "30 2 * * *")
    times = ("--tz", "Europe/Berlin", "--exclude", "dates:2101-03-01")
    assert 0 == migrated.sched(*add, *times).code
    return migrated


def test_answers_for_people(nightly: Deployment) -> None:
    """The outcome, sentences, and commands that can be pasted; whatever it is, the exit code is 0."""
    answer = nightly.sched("why", "nightly", "2101-03-01T02:30")
    heading = "excluded: nightly at 2101-03-01 02:30:00 CET (2101-03-01T01:30:00Z)"
    assert (0, "", f"{heading}\nCalendar dates:2101-03-01 excludes it.\n") == (
        answer.code,
        answer.err,
        answer.out,
    )
    answer = nightly.sched("why", "nightly", "2101-03-02T02:30Z")
    assert [
        "not an occurrence: nightly at 2101-03-02 03:30:00 CET (2101-03-02T02:30:00Z)",
        "2101-03-02 03:30:00 CET is not an occurrence of '30 2 * * *' (Europe/Berlin). The nearest are"
        " 2101-03-02 02:30:00 CET and 2101-03-03 02:30:00 CET. The same time in Europe/Berlin is one:"
        " did you mean 2101-03-02T01:30:00Z? (The job's zone is Europe/Berlin.)",
        "Next:",
        "  celery -A celery_sched sched next --job nightly",
    ] == answer.out.splitlines()
    assert 0 == answer.code
    early = nightly.sched("why", "nightly", "2020-03-02T02:30").out
    assert early.startswith("before job: nightly at 2020-03-02 02:30:00 CET (2020-03-02T01:30:00Z)\nThe")
    assert "The job is active, and its next occurrence is" in nightly.sched("why", "nightly", "now").out
    assert 0 == nightly.sched("pause", "nightly", "--reason", "holidays").code
    assert "but the job is paused since" in nightly.sched("why", "nightly", "2101-03-02T02:30").out


def test_answers_for_programs(nightly: Deployment) -> None:
    """JSON with all fields, instants in UTC."""
    answer = nightly.sched("why", "nightly", "2101-03-02T02:30", "--json")
    why = answer.json
    assert (0, "", FIELDS) == (answer.code, answer.err, set(why))
    expected = {
        "job": "nightly", "outcome": "future", "at": "2101-03-02T01:30:00Z",
        "about": "2101-03-02 02:30:00 CET (2101-03-02T01:30:00Z)",
        "occurrence": "2101-03-02T01:30:00Z",
        "occurrence_after": "2101-03-03T01:30:00Z", "run": None, "gap": None, "notes": [], "next_steps": [],
    }  # fmt: skip
    assert expected == {key: why[key] for key in expected}


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["nihgtly", "02:30"], "Did you mean 'nightly'?"),
        (["nightly", "soon"], "TIME 'soon' is refused: a time from 1970 to 2999"),
        (["nightly", "3000-01-01T00:00Z"], "from 1970 to 2999"),
        (["nihgtly"], "there is no job or run 'nihgtly'"),
        (["abc"], "at least 4 characters"),
    ],
)
def test_refused_values(nightly: Deployment, arguments: list[str], named: str) -> None:
    """An unknown job, or a time that cannot be read: exit code 2, nothing on stdout."""
    answer = nightly.sched("why", *arguments)
    assert (2, "", True) == (answer.code, answer.out, named in answer.err), answer.err
    assert "Traceback" not in answer.err


def test_why_beside_a_real_scheduler_and_worker(tmp_path: Path) -> None:
    """What ran, what was excluded by a pause, what nobody was there for: told by the same command."""
    deployment = Deployment(tmp_path, {"CELERY_SCHED_LEASE": "6s"})
    assert 0 == deployment.sched("migrate").code
    add = (
        "jobs",
        "add",
        "often",
        "--task",
        "celery_sched.ping",
        "--schedule",
        "every 2s",
        "--misfire",
        "skip",
    )
    assert 0 == deployment.sched(*add, "--misfire-grace", "1s").code
    with deployment.running("worker"):
        with deployment.running("beat"):
            succeeded = "SELECT scheduled_for FROM sched_run WHERE status = 'succeeded'"
            wait_until(lambda: bool(deployment.rows(succeeded)), 60, "a run")
        stopped = deployment.rows("SELECT last_pass_at FROM sched_app")[0][0]
        later = datetime.fromisoformat(stopped).replace(tzinfo=UTC) + 20 * SECOND
        wait_until(lambda: datetime.now(UTC) > later, 40, "a time without a scheduler")
        with deployment.running("beat"):
            down = "SELECT scheduled_for FROM sched_run WHERE reason LIKE 'missed: no scheduler%'"
            wait_until(lambda: bool(deployment.rows(down)), 60, "what was missed to be recorded")
    (ran,), *_ = deployment.rows(succeeded)
    why = deployment.sched("why", "often", f"{ran}Z".replace(" ", "T"), "--json").json
    assert ("ran", "succeeded", "often") == (why["outcome"], why["run"]["status"], why["run"]["job"])
    (missed,), *_ = deployment.rows(down)
    shown = deployment.sched("why", "often", f"{missed}Z".replace(" ", "T"))
    assert shown.out.startswith("missed: often at ")
    assert "It was missed: no scheduler ran from" in shown.out
    assert "with a grace of 1s" in shown.out
