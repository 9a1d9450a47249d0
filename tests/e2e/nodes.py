"""Nodes for pytest-celery that are local processes: the same interface where no Docker engine runs.

pytest-celery's nodes and clusters wrap containers. Here a "container" is a process tree with a log file
(:class:`ProcessWorker`, :class:`ProcessScheduler`). What a test does with a node, it does with either kind.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil
from pytest_celery import CeleryTestContainer, CeleryTestNode, CeleryWorkerContainer

from tests.reaper import REAPER, end_tree, signal_to, tree

PROJECT = Path(__file__).parent / "app"
"""The project whose workers and schedulers the nodes are."""
READY = 60.0
"""Seconds in which a node must have started."""


class NodeFailed(AssertionError):
    """A node ended, or did not do what it should in time; the message ends with its log."""


class Process(CeleryTestContainer):  # type: ignore[misc]  # pytest-celery has no types
    """A process tree behind the interface of a container. Never calls the inherited ``__init__``."""

    def __init__(self, command: Sequence[str], *, env: Mapping[str, str], cwd: Path, folder: Path) -> None:
        """Start it. ``%h`` in the command becomes the host name that a container would have."""
        self._id = uuid.uuid4().hex
        self._command = [part.replace("%h", self._id[:12]) for part in command]
        if self._command[0] == "celery":
            self._command[:1] = [sys.executable, "-m", "celery"]
        self._env, self._cwd = dict(env), cwd
        self._log = folder / f"{type(self).__name__}-{self._id[:12]}.log"
        self._popen: subprocess.Popen[bytes] | None = None
        self._frozen: list[psutil.Process] = []
        self.start()

    def start(self) -> None:
        """Start it, again after it has ended."""
        self._began = self._log.stat().st_size if self._log.exists() else 0
        with self._log.open("ab") as log:
            self._popen = subprocess.Popen(
                self._command,
                cwd=self._cwd,
                env={**_inherited(), **self._env},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        REAPER.watch(self._popen.pid)

    @property
    def id(self) -> str:
        return self._id

    @property
    def name(self) -> str:
        return f"{type(self).__name__}-{self._id[:12]}"

    @property
    def pid(self) -> int:
        """Of the main process."""
        assert self._popen is not None
        return self._popen.pid

    @property
    def status(self) -> str:
        if self._popen is None or self._popen.poll() is not None:
            return "exited"
        return "paused" if self._frozen else "running"

    @property
    def env(self) -> dict[str, str]:
        return dict(self._env)

    @property
    def attrs(self) -> dict[str, Any]:
        assert self._popen is not None
        state = {"Status": self.status, "Pid": self._popen.pid, "ExitCode": self._popen.poll()}
        return {"State": state, "Config": {"Hostname": self._id[:12], "Cmd": self._command}}

    @property
    def celeryconfig(self) -> dict[str, Any]:
        return {}

    def reload(self) -> None:
        """Nothing is kept that could be outdated."""

    def logs(self) -> str:
        return self._log.read_text(errors="replace")

    def ready(self) -> bool:
        """Wait until its log says so; what it said before a restart does not count."""
        prompt = self.ready_prompt or ""
        until = time.monotonic() + READY
        while prompt.encode() not in self._log.read_bytes()[self._began :]:
            if self.status == "exited":
                raise NodeFailed(f"{self.name} ended at start\n{self.logs()[-4000:]}")
            if time.monotonic() > until:
                raise NodeFailed(f"{self.name} did not log {prompt!r} in {READY:g} s\n{self.logs()[-4000:]}")
            time.sleep(0.02)
        return True

    def kill(self, signal: str | int | None = None) -> None:
        """SIGKILL hits the whole tree at once, as with a container; others go to the main process."""
        number = signal_number(signal)
        if self._popen is None or self._popen.poll() is not None:
            return
        if number != signal_number("SIGKILL"):
            self._popen.send_signal(number)
            return
        end_tree(psutil.Process(self._popen.pid))
        self._ended()

    def stop(self, timeout: float = 30) -> int:
        """SIGTERM, then SIGKILL to what is left; the exit code."""
        assert self._popen is not None
        self.unpause()
        if self._popen.poll() is None:
            self._popen.send_signal(signal.SIGTERM)
            try:
                self._popen.wait(timeout)
            except subprocess.TimeoutExpired:
                self.kill("SIGKILL")
        return self._ended()

    def restart(self, timeout: float = 30) -> None:
        self.stop(timeout)
        self.start()

    def pause(self) -> None:
        """Freeze the tree."""
        found = tree(psutil.Process(self.pid))
        while len(found) > len(self._frozen):
            self._frozen = found
            for member in found:
                signal_to(member, "suspend")
            found = tree(psutil.Process(self.pid))

    def unpause(self) -> None:
        for member in reversed(self._frozen):
            signal_to(member, "resume")
        self._frozen = []

    def exec_run(self, cmd: str | Sequence[str], **_: Any) -> tuple[int, bytes]:
        """Run a command where the node runs, with its environment."""
        done = subprocess.run(
            cmd,
            shell=isinstance(cmd, str),
            cwd=self._cwd,
            env={**_inherited(), **self._env},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=60,
            check=False,
        )
        return done.returncode, done.stdout

    def teardown(self) -> None:
        """Gone, with all it started; nothing waits for it to be nice."""
        self.unpause()
        self.kill("SIGKILL")
        self._ended()

    def remove(self, *_: Any, **__: Any) -> None:
        self.teardown()

    def _ended(self) -> int:
        assert self._popen is not None
        code = self._popen.wait(10)
        self._frozen = []
        REAPER.forget(self._popen.pid)
        return code


class ProcessWorker(Process, CeleryWorkerContainer):  # type: ignore[misc]
    """A ``celery worker`` of the project; command and environment are those of pytest-celery's worker."""

    @property
    def ready_prompt(self) -> str:
        return " ready."


class SchedulerCommand(CeleryTestContainer):  # type: ignore[misc]
    """What the containers of schedulers share."""

    @classmethod
    def command(cls, *args: str, **_: Any) -> list[str]:
        # DEBUG: Celery then logs each turn of the loop, which is how a test sees that it goes on
        return ["celery", "-A", "app", "beat", "-S", "sched", "--loglevel=DEBUG", *args]

    @property
    def ready_prompt(self) -> str:
        return " of app 'shop'"


class ProcessScheduler(Process, SchedulerCommand):
    """A ``celery beat`` of the project."""


class SchedulerNode(CeleryTestNode):  # type: ignore[misc]
    """A scheduler among pytest-celery's nodes, which knows brokers, backends and workers."""


def signal_number(name: str | int | None) -> int:
    if name is None:
        return int(signal.SIGKILL)
    return int(name) if isinstance(name, int) else int(signal.Signals[name])


def _inherited() -> dict[str, str]:
    """Our environment without anything that configures Celery."""
    return {key: value for key, value in os.environ.items() if not key.startswith(("CELERY", "FLOWER"))}


def wait_until(
    condition: Callable[[], object], seconds: float, what: Callable[[], str] | str, *, every: float = 0.05
) -> None:
    """Wait for a condition with a deadline; NodeFailed says what was seen instead."""
    until = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > until:
            raise NodeFailed(f"not within {seconds:g} s: {what() if callable(what) else what}")
        time.sleep(every)
