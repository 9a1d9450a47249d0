"""The app of the worker tests: every kind of task, and some that misbehave. Configured by the environment."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from celery import Celery, Task, shared_task
from celery.exceptions import Ignore, Reject

import celery_sched
from celery_sched.context import current

app = Celery("flow")
app.conf.update(json.loads(os.environ["FLOW_SETTINGS"]))
app.conf.imports = ["tests.flow.worker_bodies", "tests.flow.exclusive_bodies"]
FOLDER = Path(os.environ["FLOW_FOLDER"])


def note(text: str) -> None:
    """Leave a mark that a test can read: one line per body that began."""
    with open(FOLDER / "marks", "a") as marks:
        marks.write(f"{text} {os.getpid()}\n")


if os.environ.get("FLOW_SETUP") == "early":
    celery_sched.setup(app)


@app.task
def plain(value: Any = None) -> Any:
    note("plain")
    return value


@shared_task
def shared(value: Any = None) -> Any:
    note("shared")
    return value


class OwnCall(Task):
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return super().__call__(*args, **kwargs)


class OwnBeforeStart(Task):
    def before_start(self, task_id: str, args: Any, kwargs: Any) -> None:
        """Without super."""


class OwnOnFailure(Task):
    def on_failure(self, exc: Exception, task_id: str, args: Any, kwargs: Any, einfo: Any) -> None:
        """Without super."""


@app.task(base=OwnCall)
def own_call(value: Any = None) -> Any:
    note("own_call")
    return value


@app.task(base=OwnBeforeStart)
def own_before_start(value: Any = None) -> Any:
    note("own_before_start")
    return value


@app.task(base=OwnOnFailure)
def own_on_failure(value: Any = None) -> Any:
    note("own_on_failure")
    if value == "fail":
        raise ValueError("as asked")
    return value


@app.task(bind=True)
def bound(self: Any, value: Any = None) -> Any:
    note("bound")
    return value


@app.task(bind=True, autoretry_for=(ValueError,), retry_backoff=False, default_retry_delay=0, max_retries=2)
def autoretry(self: Any, value: Any = None) -> Any:
    note("autoretry")
    if self.request.retries < 2:
        raise ValueError("again")
    return value


@app.task(bind=True, max_retries=5)
def retries(self: Any, value: Any = None, countdown: float = 0) -> Any:
    note("retries")
    if self.request.retries < 1:
        raise self.retry(countdown=countdown)
    return value


@app.task(bind=True)
def retries_with_a_set(self: Any, value: Any = None) -> None:
    note("retries_with_a_set")
    raise self.retry(args=[object], countdown=0)


@app.task
def told() -> Any:
    """What the body is told about its run."""
    ctx = current.get()
    assert ctx is not None
    return {"run": ctx.run_id, "job": ctx.job, "attempt": ctx.attempt, "fence": ctx.fence, "lost": ctx.lost}


@app.task
def fails() -> None:
    note("fails")
    raise ValueError("as asked")


@app.task
def ignores() -> None:
    raise Ignore()


@app.task
def rejects() -> None:
    raise Reject("as asked", requeue=False)


class TwoArguments(Exception):
    """Can be pickled, but not unpickled."""

    def __init__(self, one: str, two: str) -> None:
        super().__init__(f"{one} and {two}")


@app.task
def gives_up(how: str) -> None:
    """With a reason that no other process can read."""
    raise {"reject": Reject, "ignore": Ignore}[how](TwoArguments("one", "two"))


@app.task
def odd_result() -> Any:
    return {1, object}


@app.task
def long_result() -> str:
    return "é" * 100_000


@app.task
def sleeps(seconds: float, child: str | None = None) -> str:
    """Sleeps, beside a child process: none, in its own group, or (``session``) in a session of its own."""
    note("sleeps")
    if child:
        sleeper = subprocess.Popen(
            [sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=child == "session"
        )
        (FOLDER / "grandchild").write_text(str(sleeper.pid))
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        time.sleep(0.05)
    return "slept"


@app.task
def naps(name: str, seconds: float) -> str:
    """Leaves its name when it begins and when it ends."""
    note(f"{name}:begin")
    time.sleep(seconds)
    note(f"{name}:end")
    return name


@app.task
def until_lost(seconds: float, file: str) -> str:
    """Is told that its lease is gone, and ends when a file is there."""
    note("until_lost")
    ctx = current.get()
    assert ctx is not None
    end = time.monotonic() + seconds
    while not ctx.lost and time.monotonic() < end:
        time.sleep(0.02)
    lost = ctx.lost
    while not (FOLDER / file).exists() and time.monotonic() < end:
        time.sleep(0.02)  # a body: it goes on as long as the test wants
    (FOLDER / "saw").write_text(str(lost))
    return "lost" if lost else "kept"


@app.task
def dies(how: str) -> None:
    note("dies")
    if how == "exit":
        os._exit(3)
    if how == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if how == "terminate":
        os.kill(os.getpid(), signal.SIGTERM)
    if how == "memory":
        raise MemoryError("as asked")
    if how == "sysexit":
        sys.exit(4)


class OwnRequestTask(Task):
    Request = "celery.worker.request:Request"


@app.task(base=OwnRequestTask)
def own_request(how: str) -> None:
    note("own_request")
    os._exit(3)


if os.environ.get("FLOW_SETUP") == "late":
    app.finalize()
    assert app.tasks
    celery_sched.setup(app)
