"""Sending by Apprise to a real mail server and webhook, and the commands, in this process."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import click
import pytest
from celery import Celery
from click.testing import CliRunner, Result

from celery_sched import notify, secrets
from celery_sched.cli import sched
from celery_sched.errors import NotFound
from celery_sched.model import NoticeKind, RunId
from celery_sched.notify import NotSent
from celery_sched.store import attempts, notices, runs
from celery_sched.store.engine import Tx
from celery_sched.testing import ManualScheduler
from celery_sched.transport import embedded_broker, ensure_folders
from tests.mailbox import PASSWORD, PATH, mail_server, webhook
from tests.private_server import free_port

# Apprise, on Python 3.11
pytestmark = pytest.mark.filterwarnings("ignore:'imghdr':DeprecationWarning")
Make = Callable[..., ManualScheduler]


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    """Makes a scheduler, turned by hand, with these targets."""
    made: list[ManualScheduler] = []

    def scheduler(**targets: Any) -> ManualScheduler:
        app = Celery("shop", set_as_current=False)
        ensure_folders(tmp_path)
        settings = {"home": str(tmp_path), "notify_targets": targets, "secrets_dir": str(tmp_path)}
        app.conf.update(embedded_broker(tmp_path))
        app.conf.update({f"sched_{name}": value for name, value in settings.items()})
        made.append(ManualScheduler(app))
        made[-1].app = app  # type: ignore[attr-defined]
        return made[-1]

    yield scheduler
    for one in made:
        one.close()


def note(
    shop: ManualScheduler, kind: NoticeKind = NoticeKind.FAILURE, name: str = "nightly", **notify: Any
) -> int:
    """A notification about a job; its id."""
    row = SimpleNamespace(
        id=7,
        app="shop",
        name=name,
        task="t",
        description="",
        status="active",
        notify=notify or {"on": [kind.value]},
    )
    shop.database.run(lambda tx, now: notices.note_job(tx, now, row, kind, "so it is"))
    return shop.client.notifications()[0].id


def test_a_mail(make: Make, tmp_path: Path) -> None:
    """To the address of the target, whose URL is a secret in a file; one that was pruned is left out."""
    with mail_server() as (box, url):
        (tmp_path / "OPS").write_text(url)
        (tmp_path / "OPS").chmod(0o600)
        shop = make(ops="secret:OPS")
        ids = [note(shop), note(shop, NoticeKind.RECOVERY), 999]
        assert {"target": "ops", "notifications": 2} == notify.send(shop.runtime, "ops", ids)
        assert {"target": "ops", "notifications": 0} == notify.send(shop.runtime, "ops", [999])
        ((subject, text),) = box.mails
        assert "[shop] 2 notifications: 1 failed, 1 recovered" == subject
        assert ["- nightly failed", "- nightly succeeded again"] == text.splitlines()[:2]


def test_all_urls_of_a_target(make: Make) -> None:
    """Each gets it; one that fails is told by its number and what Apprise says, not by its URL."""
    with webhook() as (posted, url):
        gone = f"json://127.0.0.1:{free_port()}/{PATH}"
        shop = make(ops=[url, gone])
        key = note(shop)
        with pytest.raises(NotSent) as caught:
            notify.send(shop.runtime, "ops", [key])
        assert ["nightly failed"] == [one["title"].removeprefix("[shop] ") for one in posted]
        assert str(caught.value).startswith("target 'ops', URL 2 of 2: it was not sent: A Connection error")
        assert PATH not in str(caught.value)


@pytest.mark.parametrize(
    "url", ["nonsense://hush-hush-hook", "mailto://hush-hush-hook", "slack://hush-hush-hook"]
)
def test_a_url_that_apprise_does_not_know(make: Make, url: str) -> None:
    """It is said, without the URL."""
    shop = make(ops=url)
    with pytest.raises(NotSent) as caught:
        notify.send(shop.runtime, "ops", [note(shop)])
    assert "Apprise knows no such URL, or it is not complete" in str(caught.value)
    assert PATH not in str(caught.value)


def test_a_missing_secret_is_named(make: Make) -> None:
    """With where it was looked for."""
    shop = make(ops="secret:OPS")
    with pytest.raises(secrets.MissingSecret, match="CELERY_SCHED_SECRET_OPS"):
        notify.send(shop.runtime, "ops", [note(shop)])


def test_a_target_that_this_worker_does_not_know(make: Make) -> None:
    """Its settings are not the scheduler's."""
    shop = make(ops="json://127.0.0.1:1")
    with pytest.raises(NotFound, match=r"there is no target 'boss'\. In sched_notify_targets there are ops"):
        notify.send(shop.runtime, "boss", [note(shop)])


def test_without_apprise(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """What to install is said."""
    monkeypatch.setitem(sys.modules, "apprise", None)
    shop = make(ops="json://127.0.0.1:1")
    with pytest.raises(NotSent, match=r"pip install celery_sched\[notify\]"):
        notify.send(shop.runtime, "ops", [note(shop)])


@pytest.mark.parametrize(
    ("kind", "expected"),
    [(NoticeKind.SUCCESS, "success"), (NoticeKind.LOST, "failure"), (NoticeKind.PAUSED, "warning")],
)
def test_the_colour(make: Make, kind: NoticeKind, expected: str) -> None:
    """Apprise's type of a notification; of several, the worst."""
    with webhook() as (posted, url):
        shop = make(ops=url)
        good, other = note(shop, NoticeKind.SUCCESS), note(shop, kind)
        notify.send(shop.runtime, "ops", [good, other])
        assert [expected] == [one["type"] for one in posted]


@pytest.fixture
def command() -> Callable[..., Result]:
    """Runs `sched ...` of a scheduler's app in this process."""

    def run(shop: ManualScheduler, *arguments: str) -> Result:
        @click.group()
        @click.option("--app")
        @click.pass_context
        def root(ctx: click.Context, app: str) -> None:
            ctx.obj = SimpleNamespace(app=shop.app, no_color=True)  # type: ignore[attr-defined]

        root.add_command(sched)
        return CliRunner().invoke(root, ["--app", "shop", "sched", *arguments])

    return run


def test_the_list(make: Make, command: Callable[..., Result]) -> None:
    """For people, and for programs; of one job; what was seen is not listed as unseen."""
    shop = make(ops="json://127.0.0.1:1")
    first, second = note(shop, to=["ops"], on=["failure"]), note(shop, NoticeKind.PAUSED, "weekly")
    shop.tell()
    lines = command(shop, "notifications").stdout.splitlines()
    assert [str(second), str(first)] == [line.split()[0] for line in lines[1:]]
    assert "weekly is paused" in lines[1] and "listed" in lines[1] and lines[1].endswith("new")
    assert "nightly failed" in lines[2] and "sending" in lines[2] and " ops" in lines[2]
    found = json.loads(command(shop, "notifications", "list", "--job", "nightly", "--json").stdout)
    assert [(first, "failure", "sending", None)] == [
        (one["id"], one["kind"], one["status"], one["seen_at"]) for one in found
    ]
    shown = command(shop, "notifications", "show", str(second)).stdout
    assert "so it is" in shown and "paused" in shown
    run = shop.client.get_notification(first).targets["ops"]["run"]
    assert f"to ops  sending (run {run})" in command(shop, "notifications", "show", str(first)).stdout
    assert "1 marked as seen\n" == command(shop, "notifications", "seen", str(second)).stdout
    unseen = json.loads(command(shop, "notifications", "--unseen", "--json").stdout)
    assert [first] == [one["id"] for one in unseen]
    assert "1 marked as seen\n" == command(shop, "notifications", "seen", "--all").stdout
    assert "[]\n" == command(shop, "notifications", "--unseen", "--json").stdout
    assert 2 == command(shop, "notifications", "seen").exit_code
    assert 2 == command(shop, "notifications", "seen", "1", "--all").exit_code
    missing = command(shop, "notifications", "show", "999")
    assert 2 == missing.exit_code and "there is no notification 999" in missing.stderr


def test_what_is_tried_again_says_why(make: Make, command: Callable[..., Result]) -> None:
    """While a message is under way, the last attempt that failed is shown, with the end of its error."""
    shop = make(ops="json://127.0.0.1:1")
    key = note(shop, to=["ops"], on=["failure"])
    shop.tell()
    run = RunId(shop.client.get_notification(key).targets["ops"]["run"])

    def fail(tx: Tx, now: datetime) -> None:
        row = runs.find(tx, [run])[run]
        attempts.keep(tx, [attempts.Ended(row, "failed", None, "Traceback\n  ...\nNotSent: refused", now)])

    shop.database.run(fail)
    shown = command(shop, "notifications", "show", str(key)).stdout
    assert f"to ops  sending (run {run}): attempt 1 failed: NotSent: refused" in shown


def test_trying_a_target(make: Make, command: Callable[..., Result]) -> None:
    """It is sent at once, from here; what goes wrong is said, and a name that is not known is refused."""
    with webhook() as (posted, url):
        shop = make(hook=url, gone=f"json://127.0.0.1:{free_port()}/{PATH}", mail="secret:MAIL")
        done = command(shop, "notifications", "test", "hook")
        assert (0, "sent a test to hook (1 URL)\n") == (done.exit_code, done.stdout)
        assert ["[shop] test"] == [one["title"] for one in posted]
        failed = command(shop, "notifications", "test", "gone")
        assert (1, "") == (failed.exit_code, failed.stdout)
        assert "target 'gone': it was not sent" in failed.stderr and PATH not in failed.stderr
        assert "no secret 'MAIL'" in command(shop, "notifications", "test", "mail").stderr
        refused = command(shop, "notifications", "test", "hok")
        assert 2 == refused.exit_code and "Did you mean 'hook'" in refused.stderr
    assert PASSWORD not in failed.stderr


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("ops", {"to": ["ops"]}),
        ("ops, boss", {"to": ["ops", "boss"]}),
        ("off", {"on": []}),
        ('{"on": ["lost"]}', {"on": ["lost"]}),
        ("none", None),
    ],
)
def test_the_option(make: Make, command: Callable[..., Result], given: str, expected: Any) -> None:
    """`--notify` of `jobs add` and `edit`."""
    shop = make(ops="json://127.0.0.1:1", boss="json://127.0.0.1:1")
    shop.client.add("nightly", task="t", schedule="@daily", notify="ops")
    assert 0 == command(shop, "jobs", "edit", "nightly", "--notify", given).exit_code
    assert expected == shop.client.get("nightly").definition.notify
    refused = command(shop, "jobs", "edit", "nightly", "--notify", "{oops")
    assert 2 == refused.exit_code and "cannot be read" in refused.stderr
