"""Celery and Flower over the embedded broker, in processes of their own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from celery import Celery

from celery_sched.folders import FolderUnavailable
from celery_sched.transport import (
    FileResults,
    broker_folder,
    embedded_broker,
    embedded_result_backend,
    ensure_folders,
)
from tests.private_server import free_port

APP = """
import time
from pathlib import Path
from celery import Celery
from celery_sched.transport import embedded_broker, embedded_result_backend
home = Path({home!r})
app = Celery("probe", set_as_current=False)
app.conf.update(
    embedded_broker(home), result_backend=embedded_result_backend(home), worker_prefetch_multiplier=1,
    task_acks_late=True, broker_connection_retry_on_startup=True, worker_send_task_events=True,
)
@app.task
def add(x, y):
    return x + y
@app.task
def doze(seconds):
    time.sleep(seconds)
"""


def wait_for(condition: Callable[[], Any], seconds: float = 40) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "the condition did not come true in time"
        threading.Event().wait(0.1)


@contextmanager
def program(folder: Path, *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    """A `celery` command in a process group of its own; its output is in a file named after it."""
    environment = {**os.environ, "PYTHONPATH": f"{folder}:{Path.cwd()}"}
    with (folder / f"{arguments[0]}.log").open("wb") as log:
        running = subprocess.Popen(
            [sys.executable, "-m", "celery", "-A", "probe", *arguments],
            cwd=folder, env=environment, stdout=log, stderr=log, start_new_session=True,
        )  # fmt: skip
    try:
        yield running
    finally:
        running.terminate()
        try:
            running.wait(15)
        except subprocess.TimeoutExpired:
            os.killpg(running.pid, signal.SIGKILL)
            running.wait()


@pytest.fixture
def app(tmp_path: Path) -> Iterator[Celery]:
    ensure_folders(tmp_path)
    (tmp_path / "probe.py").write_text(APP.format(home=str(tmp_path)))
    app = Celery("probe", set_as_current=False)
    app.conf.update(embedded_broker(tmp_path), result_backend=embedded_result_backend(tmp_path))
    yield app
    app.close()


def test_tasks_results_events_and_remote_control_cross_processes(app: Celery, tmp_path: Path) -> None:
    """A worker carries out a task, answers, sends events, and goes on after an outage of the folder."""
    seen: list[str] = []
    with ExitStack() as stack:
        stack.enter_context(
            program(tmp_path, "worker", "-c", "1", "-n", "probe@here", "--without-mingle", "--without-gossip")
        )
        wait_for(lambda: app.control.ping(timeout=1) == [{"probe@here": {"ok": "pong"}}])
        connection = stack.enter_context(app.connection())
        receiver = app.events.Receiver(connection, handlers={"*": lambda event: seen.append(event["type"])})
        stop = threading.Event()

        def listen() -> None:
            for _ in receiver.consume(limit=None, timeout=None, wakeup=False):
                if stop.is_set():
                    return

        listener = threading.Thread(target=listen)
        listener.start()
        try:
            wait_for(lambda: "worker-heartbeat" in seen)  # the listener's queue is bound
            assert 5 == app.send_task("probe.add", (2, 3)).get(timeout=30)
            wait_for(lambda: "task-succeeded" in seen)
            broker_folder(tmp_path).rename(tmp_path / "away")
            with pytest.raises(FolderUnavailable):
                app.send_task("probe.add", (0, 0), retry=False)
            (tmp_path / "away").rename(broker_folder(tmp_path))
            assert 9 == app.send_task("probe.add", (4, 5)).get(timeout=30)
            wait_for(lambda: {"probe@here"} == set(app.control.inspect(timeout=2).active() or {}))
        finally:
            stop.set()
            listener.join(30)
    assert "Traceback" not in (tmp_path / "worker.log").read_text()


def fetch(url: str) -> int:
    """The HTTP status; 0 while nobody listens."""
    try:
        with urllib.request.urlopen(url, timeout=10) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        error.close()
        return error.code
    except OSError:
        return 0


def test_flower_accepts_the_broker(app: Celery, tmp_path: Path) -> None:
    """Flower starts on the broker's URL, shows its pages, and calls the broker page unsupported, no crash."""
    pytest.importorskip("flower")
    port = free_port()
    with program(tmp_path, "flower", f"--port={port}", "--address=127.0.0.1"):
        base = f"http://127.0.0.1:{port}"
        wait_for(lambda: fetch(f"{base}/workers") == 200)
        assert 404 == fetch(f"{base}/broker")
        assert 200 == fetch(f"{base}/tasks")


@pytest.fixture
def results(app: Celery) -> FileResults:
    backend = app.backend
    assert isinstance(backend, FileResults)
    return backend


def test_a_result_is_whole_or_absent(results: FileResults, tmp_path: Path) -> None:
    """A reader that looks all the time while a result is written again and again never sees an empty one."""
    big = b"x" * 200_000
    results.set(b"celery-task-meta-1", big)
    sizes: set[int] = set()
    done = threading.Event()

    def read() -> None:
        while not done.is_set():
            sizes.add(len(results.get(b"celery-task-meta-1")))

    reader = threading.Thread(target=read)
    reader.start()
    for _ in range(300):
        results.set(b"celery-task-meta-1", big)
    done.set()
    reader.join()
    assert {200_000} == sizes


def test_old_results_are_removed_at_most_once_an_hour(results: FileResults, tmp_path: Path) -> None:
    """Files older than `result_expires` go when a result is written and the last cleaning is an hour old."""
    folder = tmp_path / "results"

    def names() -> set[str]:
        return {path.name for path in folder.iterdir()} - {".cleaned"}

    results.set(b"celery-task-meta-old", b"{}")
    os.utime(folder / "celery-task-meta-old", (1, 1))
    results.set(b"celery-task-meta-new", b"{}")
    assert {"celery-task-meta-old", "celery-task-meta-new"} == names()
    os.utime(folder / ".cleaned", (1, 1))
    results.set(b"celery-task-meta-new", b"{}")
    assert {"celery-task-meta-new"} == names()
