"""Notifications beside a real scheduler, worker, mail server and webhook."""

from __future__ import annotations

import json
from pathlib import Path

from tests.e2e.deployment import Deployment
from tests.mailbox import PASSWORD, PATH, mail_server, webhook
from tests.private_server import wait_until

TASKS = """
import pathlib

from celery_sched import job


@job("0 0 1 1 *", name="nightly", notify={"to": ["mail", "hook"], "on": ["failure", "recovery"]})
def nightly():
    if not pathlib.Path("good").exists():
        raise ValueError("no good")


@job("0 0 1 1 *", name="one", notify="mail")
def one():
    raise ValueError("told slowly")


@job("0 0 1 1 *", name="two", notify="mail")
def two():
    raise ValueError("told slowly")


@job("every 1s", name="ticker", notify="off")
def ticker():
    return 1
"""


def deployment_of(folder: Path, secret: str, **targets: str) -> Deployment:
    """The URL of the mail server, which holds a password, is a secret."""
    (folder / "tasks").mkdir()
    (folder / "tasks" / "__init__.py").write_text(TASKS)
    made = Deployment(
        folder,
        {
            "CELERY_SCHED_LEASE": "6s",
            "CELERY_SCHED_SECRET_MAIL": secret,
            "CELERY_SCHED_MAX_CONCURRENT_JOBS": "2",
            "CELERY_SCHED_NOTIFY_TARGETS": json.dumps(targets),
            "CELERY_SCHED_NOTIFY_GATHER": "0",
        },
    )
    assert 0 == made.sched("migrate").code
    return made


def run(deployment: Deployment, name: str) -> None:
    answer = deployment.sched("run", name, "--wait", "--timeout", "60s")
    assert answer.code in (0, 1), answer.err


def test_people_are_told(tmp_path: Path) -> None:
    """A failure arrives by mail and at the webhook, then the recovery; no log and no table shows a URL."""
    with mail_server() as (box, mail), webhook() as (posted, hook):
        deployment = deployment_of(tmp_path, mail, mail="secret:MAIL", hook=hook)
        with (
            deployment.running("beat", "-l", "DEBUG") as beat,
            deployment.running("worker", "-l", "DEBUG", "-c", "4"),
        ):
            beat.wait_for(" of app ")
            run(deployment, "nightly")
            wait_until(lambda: len(box.mails) == 1 and len(posted) == 1, 60, "the failure to be told")
            (tmp_path / "good").touch()
            run(deployment, "nightly")
            wait_until(lambda: len(box.mails) == 2 and len(posted) == 2, 60, "the recovery to be told")
            subjects = [subject for subject, _ in box.mails]
            assert ["[celery_sched] nightly failed", "[celery_sched] nightly succeeded again"] == subjects
            assert "ValueError: no good" in box.mails[0][1]
            assert ["failure", "success"] == [one["type"] for one in posted]

            def listed() -> list[tuple[str, str, list[str]]]:
                found = deployment.sched("notifications", "--job", "nightly", "--json").json
                return [(one["kind"], one["status"], sorted(one["targets"])) for one in found]

            sent = [("nightly", "failure", "sent"), ("nightly", "recovery", "sent")]
            wait_until(lambda: sent == _told(deployment), 30, lambda: str(_told(deployment)))
            assert (0, "sent a test to hook (1 URL)\n") == _said(deployment, "notifications", "test", "hook")
            assert "info" == posted[-1]["type"]
            assert "unseen      2 notifications" in deployment.sched("status").out
        tables = [name for (name,) in deployment.rows("SELECT name FROM sqlite_master WHERE type = 'table'")]
        left = [str(deployment.rows(f"SELECT * FROM {name}")) for name in tables]
        left += [file.read_text(errors="replace") for file in tmp_path.glob("*.log")]
        left += [file.read_text(errors="replace") for file in deployment.home.rglob("*") if file.is_file()]
        assert [] == [text[:200] for text in left if PASSWORD in text or PATH in text]


def test_a_slow_mail_server_delays_nothing(tmp_path: Path) -> None:
    """It accepts and stalls: schedules go on. The worker is killed meanwhile: the mails arrive anyway."""
    with mail_server() as (box, mail):
        deployment = deployment_of(tmp_path, mail, mail="secret:MAIL")
        box.stall()
        with deployment.running("beat", "-l", "INFO") as beat:
            beat.wait_for(" of app ")
            with deployment.running("worker", "-l", "INFO", "-c", "4"):
                for begun, name in enumerate(("one", "two"), 1):
                    run(deployment, name)
                    wait_until(lambda begun=begun: box.begun == begun, 60, "a mail to be under way")  # type: ignore[misc]
                use = deployment.sched("pools", "show", "notifications", "--json").json
                assert (2, 2) == (use["slots"], use["in_flight"])
                before = _ticks(deployment)
                wait_until(lambda: _ticks(deployment) >= before + 5, 60, "the schedule to go on")
                assert [] == box.mails
            # the worker was killed, with SIGKILL
            box.go_on()
            stalled = len(box.mails)
            with deployment.running("worker", "-l", "INFO", "-c", "4"):
                both = [("one", "failure", "sent"), ("two", "failure", "sent")]
                wait_until(lambda: both == _told(deployment), 60, lambda: str(_told(deployment)))
        assert {"[celery_sched] one failed", "[celery_sched] two failed"} == {
            subject for subject, _ in box.mails[stalled:]
        }
        messages = deployment.rows("SELECT attempt, status FROM sched_run WHERE job = 'sched:notify'")
        assert [(2, "succeeded")] * 2 == messages


def _told(deployment: Deployment) -> list[tuple[str, str, str]]:
    return deployment.rows("SELECT job, kind, status FROM sched_notification ORDER BY id")


def _said(deployment: Deployment, *command: str) -> tuple[int, str]:
    answer = deployment.sched(*command)
    return answer.code, answer.out


def _ticks(deployment: Deployment) -> int:
    ((count,),) = deployment.rows(
        "SELECT count(*) FROM sched_run WHERE job = 'ticker' AND status = 'succeeded'"
    )
    return int(count)
