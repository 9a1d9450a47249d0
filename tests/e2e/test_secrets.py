"""Secrets stay on the worker: a job of each type uses one, and it is looked for everywhere afterwards."""

from __future__ import annotations

import base64
import json
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.parse import quote, quote_plus

from celery_sched.secrets import HIDDEN
from tests.e2e.deployment import Deployment
from tests.e2e.flower_site import Site as Flower
from tests.e2e.flower_site import flower
from tests.jobtypes.site import Site
from tests.private_server import wait_until

SECRET = 'p@ss/w+rd %s {x} "quo\\te" 7f3a'
FORMS = {
    SECRET,
    quote(SECRET),
    quote(SECRET, safe=""),
    quote_plus(SECRET),
    json.dumps(SECRET)[1:-1],
    repr(SECRET)[1:-1],
    base64.b64encode(SECRET.encode()).decode(),
    base64.b64encode(f"me:{SECRET}".encode()).decode(),
    SECRET.encode().hex(),
}
TASKS = """
import logging
from celery import shared_task
from celery_sched import job
from celery_sched.context import current


@shared_task(name="tells")
def tells(what, fail=False, row=None):
    print("printed", what)
    logging.getLogger("somebody").warning("logged %s", what)
    try:
        raise KeyError(what)
    except KeyError:
        logging.getLogger("somebody").exception("caught")
    current.get().log.info("told %r", {"a": what})
    if fail:
        raise ValueError({"what": what}, what) from RuntimeError(f"because of {what}")
    return {"what": what, what: [what, {"deep": what}]}
"""


def jobs_of(site: Site) -> dict[str, tuple[str, dict[str, Any], str]]:
    """A job of each type that tells its secret wherever it can: its task, fields and how it ends."""
    auth = {"user": "me", "password": "secret:TOKEN"}
    call = {
        "method": "POST",
        "auth": auth,
        "headers": {"X-Token": "Bearer ${secret:TOKEN}"},
        "query": {"key": "secret:TOKEN"},
        "json": {"a": ["secret:TOKEN"]},
    }
    query = "SELECT :token AS what, 0 AS fail"
    return {
        "http": ("http", {"url": site.url("/echo"), **call}, "succeeded"),
        "http-fails": ("http", {"url": site.url("/fails"), **call}, "failed"),
        "http-away": ("http", {"url": "http://127.0.0.1:1/${secret:TOKEN}", **call}, "failed"),
        "shell": (
            "shell",
            {"command": "env; printf '%s' \"$T\"", "shell": True, "env": {"T": "secret:TOKEN"}},
            "succeeded",
        ),
        "shell-fails": (
            "shell",
            {"command": ["/bin/sh", "-c", "printf '%s' \"$0\" >&2; exit 1", "secret:TOKEN"]},
            "failed",
        ),
        "shell-none": ("shell", {"command": ["/no/${secret:TOKEN}"]}, "failed"),
        "sql": (
            "sql",
            {
                "connection": "db",
                "statement": "SELECT :a",
                "parameters": {"a": "secret:TOKEN"},
                "keep_rows": 1,
            },
            "succeeded",
        ),
        "sql-fails": (
            "sql",
            {"connection": "db", "statement": "SELECT json(:a)", "parameters": {"a": "secret:TOKEN"}},
            "failed",
        ),
        "task": ("task", {"task": "tells", "args": ["secret:TOKEN"]}, "succeeded"),
        "task-fails": ("task", {"task": "tells", "kwargs": {"what": "secret:TOKEN", "fail": True}}, "failed"),
        "task-rows": (
            "task",
            {"task": "tells", "connection": "db", "query": query, "parameters": {"token": "secret:TOKEN"}},
            "succeeded",
        ),
        "agent": (
            "agent",
            {"base_url": site.url("/v1"), "models": ["m"], "prompt": "p", "api_key": "secret:TOKEN"},
            "failed",
        ),
        "missing": ("http", {"url": site.url("/echo"), "headers": {"X": "secret:NOT_THERE"}}, "failed"),
    }


def echo(status: int) -> Any:
    """Answers with all that it was asked."""

    def answer(handler: Any) -> None:
        body = json.dumps({"headers": dict(handler.headers.items()), "path": handler.path}).encode()
        handler.send_response(status)
        handler.send_header("Content-Type", "application/json")
        handler.send_header("Content-Length", str(len(body)))
        handler.send_header("ETag", quote(SECRET))
        handler.end_headers()
        handler.wfile.write(body)

    return answer


def found_in(text: str, where: str) -> list[str]:
    """Which forms of the secret are in a text."""
    return [
        f"{where}: {form}: ...{text[max(0, text.find(form) - 80) :][:200]}" for form in FORMS if form in text
    ]


def test_a_secret_is_nowhere(migrated: Deployment, tmp_path: Path) -> None:
    """Of a secret that jobs of every type use nothing is in database, logs, results, events or Flower."""
    (migrated.folder / "tasks.py").write_text(TASKS)
    with closing(sqlite3.connect(migrated.folder / "db.sqlite3")) as made:
        made.execute("CREATE TABLE t (a)")
    workers = {
        "CELERY_SCHED_SECRET_TOKEN": SECRET,
        "CELERY_SCHED_SECRET_DB": f"sqlite:///{migrated.folder / 'db.sqlite3'}",
        "CELERY_SCHED_CONNECTIONS": json.dumps({"db": "secret:DB"}),
        "CELERY_SCHED_ALLOW_SHELL": "true",
        "CELERY_SCHED_HTTP_ALLOWED_HOSTS": "127.0.0.1",
    }
    with Site() as site, flower(migrated) as shown:
        site.answers |= {"/echo": echo(200), "/fails": echo(500)}
        jobs = jobs_of(site)
        for name, (kind, kwargs, _) in jobs.items():
            shown.client.add(name, task=f"celery_sched.{kind}", schedule="0 3 1 1 *", kwargs=kwargs)
        with migrated.running("beat"):
            migrated.env |= workers  # secrets are for workers: nobody else has them here
            with migrated.running("worker", "-l", "DEBUG", "-c", "2", "-E") as worker:
                worker.wait_for(" ready.")
                for name in jobs:
                    shown.client.run(name)
                _wait_for_runs(shown, len(jobs))
                pages = _pages(shown, list(jobs))
                worker.stop()
    runs = {run.job: run for run in shown.client.runs(limit=100)}
    assert {name: ends for name, (_, _, ends) in jobs.items()} == {n: run.status for n, run in runs.items()}
    assert "there is no secret 'NOT_THERE' on this worker" in str(runs["missing"].error)
    # it was used, and hidden, and did not just stay away
    assert f"Bearer {SECRET}" == site.asked[0].headers["X-Token"]
    assert {"a": [SECRET]} == json.loads(site.asked[0].body)
    for name in ("http", "shell", "sql", "task", "task-rows"):
        assert HIDDEN in str(runs[name].result), name
    for name in ("http-fails", "http-away", "shell-fails", "task-fails"):
        assert HIDDEN in str(runs[name].error), name
    assert f"logged {HIDDEN}" in worker.text()
    with closing(sqlite3.connect(migrated.home / "sched.sqlite3")) as database:
        dump = "\n".join(database.iterdump())
    leaks = found_in(dump, "database")
    # every log, Celery's results, what is left of messages, the files of the database
    for file in migrated.folder.rglob("*"):
        if file.is_file() and file.suffix != ".pyc":
            text = file.read_bytes().decode(errors="replace")
            # what the task itself prints goes where it prints, past everybody
            text = "\n".join(line for line in text.splitlines() if not line.startswith("printed "))
            leaks += found_in(text, str(file.relative_to(migrated.folder)))
    for path, page in pages.items():
        leaks += found_in(page, path)
    assert [] == leaks
    assert any("secret:TOKEN" in page for page in pages.values())


def _wait_for_runs(shown: Flower, count: int) -> None:
    def ended() -> bool:
        runs = shown.client.runs(limit=100)
        return count == len([run for run in runs if run.finished_at is not None])

    wait_until(ended, 90, "all runs to end")


def _pages(shown: Flower, names: list[str]) -> dict[str, str]:
    """What Flower shows, by path: our pages and its own."""
    paths = ["/schedules", "/api/schedules", "/tasks", "/workers"]
    for name in names:
        paths += [f"/schedules/{name}", f"/api/schedules/{name}"]
    for run in shown.client.runs(limit=100):
        paths += [f"/schedules/run/{run.id}", f"/api/schedules/run/{run.id}", f"/task/{run.id}"]
    return {path: shown.ask(path).text for path in paths}
