"""A folder in which the stand-alone app runs on the embedded default, and its commands."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from tests.private_server import wait_until
from tests.reaper import REAPER, end_tree

TASKS = '''
import pathlib
import subprocess
import sys
import time

from celery_sched import job


@job("0 0 1 1 *", name="quick", overlap="concurrent")
def quick(value=1):
    return value * 2


@job("0 0 1 1 *", name="failing")
def failing():
    raise ValueError("as it was told")


@job("0 0 1 1 *", name="sleeper", overlap="concurrent")
def sleeper(seconds=600):
    pathlib.Path("sleeping").touch()
    time.sleep(seconds)
    return "slept"


@job("0 0 1 1 *", name="stubborn", overlap="concurrent")
def stubborn():
    """Hangs, and so does the program it has started, which ignores what can be ignored."""
    program = "import signal, time; [signal.signal(n, signal.SIG_IGN) for n in (1, 2, 15)]; time.sleep(3600)"
    child = subprocess.Popen([sys.executable, "-c", program], start_new_session=True)
    pathlib.Path("stubborn").write_text(str(child.pid))
    while True:
        time.sleep(3600)
'''


@dataclass
class Answer:
    """What a command printed, and its exit code."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """Its standard output, which must be JSON."""
        return json.loads(self.out)


@dataclass
class Process:
    """A command that runs beside the test; its output goes to a file."""

    popen: subprocess.Popen[bytes]
    log: Path

    def text(self) -> str:
        """What it has printed so far."""
        return self.log.read_text(errors="replace")

    def wait_for(self, text: str, timeout: float = 60) -> None:
        """Until it has printed ``text``; fails when it ends before that."""
        wait_until(
            lambda: text in self.text() or self.popen.poll() is not None, timeout, f"{text!r} in {self.log}"
        )
        assert text in self.text(), self.text()

    def stop(self, number: signal.Signals = signal.SIGTERM, timeout: float = 30) -> int:
        """Send a signal and wait; its exit code."""
        self.popen.send_signal(number)
        return self.popen.wait(timeout=timeout)

    @staticmethod
    def kill_pid(pid: int) -> None:
        """SIGKILL to one process that this deployment has started."""
        os.kill(pid, signal.SIGKILL)


@dataclass
class Deployment:
    """The stand-alone app in a folder of its own."""

    folder: Path
    env: dict[str, str] = field(default_factory=dict)

    @property
    def home(self) -> Path:
        return self.folder / ".celery_sched"

    def environ(self) -> dict[str, str]:
        """Nothing of the caller's configuration, all of the deployment's."""
        inherited = {
            key: value for key, value in os.environ.items() if not key.startswith(("CELERY", "FLOWER"))
        }
        return {**inherited, "CELERY_SCHED_HOME": str(self.home), **self.env}

    def write_tasks(self) -> None:
        """Give it jobs of its own."""
        (self.folder / "tasks").mkdir()
        (self.folder / "tasks" / "__init__.py").write_text(TASKS)

    def sched(self, *arguments: str, app: str = "celery_sched", timeout: float = 60) -> Answer:
        """Run ``celery -A celery_sched sched ...`` to its end."""
        command = [sys.executable, "-m", "celery", "-A", app, "sched", *arguments]
        done = subprocess.run(
            command, cwd=self.folder, env=self.environ(), capture_output=True, text=True, timeout=timeout
        )
        return Answer(done.returncode, done.stdout, done.stderr)

    @contextmanager
    def running(self, *arguments: str, app: str = "celery_sched") -> Iterator[Process]:
        """Run ``celery -A celery_sched ...`` beside the test; killed with all it started at the end."""
        log = self.folder / f"{'-'.join(arguments[:2])}.log"
        with log.open("ab") as output:
            popen = subprocess.Popen(
                [sys.executable, "-m", "celery", "-A", app, *arguments],
                cwd=self.folder,
                env=self.environ(),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        REAPER.watch(popen.pid)
        try:
            yield Process(popen, log)
        finally:
            if popen.poll() is None:
                end_tree(psutil.Process(popen.pid))
            popen.wait()
            REAPER.forget(popen.pid)

    def rows(self, query: str) -> list[tuple[Any, ...]]:
        """What the database holds, read beside all commands."""
        with closing(sqlite3.connect(self.home / "sched.sqlite3")) as connection:
            return connection.execute(query).fetchall()

    def processes(self) -> list[str]:
        """The command lines of all processes whose environment names this deployment's home."""
        found = []
        for process in psutil.process_iter():
            try:
                if process.environ().get("CELERY_SCHED_HOME") == str(self.home):
                    found.append(" ".join(process.cmdline()) or process.name())
            except (psutil.NoSuchProcess, psutil.AccessDenied, psutil.ZombieProcess):
                continue
        return found
