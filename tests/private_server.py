"""What the private servers of `tests.servers` share: a folder, a port, and the ways a server can fail."""

from __future__ import annotations

import atexit
import errno
import glob
import os
import random
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from tests.reaper import REAPER, alive, end_tree, signal_to, tree

START_TIMEOUT = 60.0
"""Seconds until a server that does not answer is an error. RabbitMQ needs 5 to 8 on a quiet machine."""


@dataclass(frozen=True)
class Program:
    """Something the tests need from outside: what, in which Debian package, and where it lies."""

    name: str
    package: str
    find: Callable[[], str | None]


def _latest(pattern: str) -> str | None:
    found = sorted(glob.glob(pattern), key=lambda path: [int(n) for n in path.split("/") if n.isdigit()])
    return found[-1] if found else None


def find_binary(name: str) -> str | None:
    # /usr/sbin is not on everybody's PATH, and MariaDB's server lies there.
    return shutil.which(name, path=os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/sbin"]))


def _rabbit() -> str | None:
    # Not /usr/sbin/rabbitmq-server: Debian's script there insists on the system's own user and folders.
    path = "/usr/lib/rabbitmq/bin/rabbitmq-server"
    return path if os.access(path, os.X_OK) else None


POSTGRESQL = Program("PostgreSQL", "postgresql", lambda: _latest("/usr/lib/postgresql/*/bin/postgres"))
MARIADB = Program("MariaDB", "mariadb-server", lambda: find_binary("mariadbd"))
REDIS = Program("Redis", "redis-server", lambda: find_binary("redis-server"))
RABBITMQ = Program("RabbitMQ", "rabbitmq-server", _rabbit)
CHROMIUM = Program("Chromium", "chromium", lambda: find_binary("chromium"))
COMPOSE = Program("docker-compose", "docker-compose", lambda: find_binary("docker-compose"))
PROGRAMS = (POSTGRESQL, MARIADB, REDIS, RABBITMQ, CHROMIUM, COMPOSE)


def missing() -> list[Program]:
    """The programs that are not on this machine, for the last lines of a test run."""
    return [program for program in PROGRAMS if program.find() is None]


class ServerFailed(RuntimeError):
    """A server did not come up, or not in time; the message ends with its log."""


def free_port() -> int:
    """A port that was free a moment ago, below those that the system gives to connections (from 32768 on)."""
    while True:
        port = random.SystemRandom().randrange(20_000, 32_000)  # not seeded: other processes choose others
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError as error:
                if error.errno != errno.EADDRINUSE:
                    raise
            else:
                return port


def answers(port: int) -> bool:
    """Whether something accepts connections there."""
    with socket.socket() as probe:
        probe.settimeout(1)
        return probe.connect_ex(("127.0.0.1", port)) == 0


class Server:
    """What all four share: a folder, a port, one process tree, and the ways it can fail."""

    program: Program
    user: str | None = None
    """Who runs it when we are root (PostgreSQL refuses root)."""
    stop_signal = signal.SIGTERM

    def __init__(self) -> None:
        found = self.program.find()
        if found is None:
            raise ServerFailed(
                f"{self.program.name} is not installed: apt-get install {self.program.package}, "
                "or run script/services"
            )
        self.binary = Path(found)
        # /tmp, whatever TMPDIR says: the path of a unix socket may have 107 characters, and the user
        # `postgres` must be able to walk there.
        self.folder = Path(tempfile.mkdtemp(prefix="sched-", dir="/tmp"))
        self.folder.chmod(0o711)
        REAPER.folder(self.folder)
        self.log = self.folder / "server.log"
        self.port = 0
        self._process: subprocess.Popen[bytes] | None = None
        self._paused: list[psutil.Process] = []
        atexit.register(self.destroy)

    # What each server answers for itself.

    def prepare(self) -> None:
        """Make its files. Called once, before the first start."""

    def choose_ports(self) -> None:
        """Before each try of the first start."""
        self.port = free_port()

    def command(self) -> Sequence[str]:
        """The command that runs it in the foreground on `self.port`."""
        raise NotImplementedError

    def environment(self) -> Mapping[str, str]:
        """What its environment has beyond ours."""
        return {}

    def ready(self) -> bool:
        """Whether it answers (not only listens)."""
        raise NotImplementedError

    @property
    def url(self) -> str:
        """Where clients find it."""
        raise NotImplementedError

    # What a test does with it.

    def start(self) -> None:
        """Start it and wait until it answers. The port stays the same over restarts."""
        assert self._process is None, f"{self.program.name} runs already"
        first = self.port == 0
        for attempt in range(5):
            if first:
                if attempt == 0:
                    self.prepare()
                self.choose_ports()
            try:
                self._launch()
                return
            except ServerFailed:
                # Somebody took a port between our look and its bind, and may have gone again.
                self._end()
                if not first or (attempt > 0 and not answers(self.port)):
                    raise
        raise ServerFailed(f"{self.program.name} found no free port in five tries")

    def stop(self) -> None:
        """Stop it cleanly; returns when it has ended."""
        process = self._running()
        self.resume()
        process.send_signal(self.stop_signal)
        try:
            process.wait(timeout=30)
        except subprocess.TimeoutExpired:
            self._end()
            raise ServerFailed(f"{self.program.name} did not stop within 30 s\n{self._log_tail()}") from None
        self._end()

    def kill(self) -> None:
        """SIGKILL to all its processes at once."""
        self._running()
        self._end()

    def restart(self) -> None:
        """Start it again on the same port and data; stops it cleanly first if it runs."""
        if self._process is not None:
            self.stop()
        self.start()

    def pause(self) -> None:
        """Freeze it (SIGSTOP): connections stay open, nothing answers."""
        process = psutil.Process(self._running().pid)
        # The main process first, so that no new child appears behind our back.
        frozen: list[psutil.Process] = []
        while len(found := tree(process)) > len(frozen):
            frozen = found
            for member in frozen:
                signal_to(member, "suspend")
        self._paused = frozen
        wait_until(lambda: not any(_moves(member) for member in frozen), 10, f"{self.program.name} to freeze")

    def resume(self) -> None:
        """Thaw what `pause` froze; nothing happens when it is not frozen."""
        for process in reversed(self._paused):
            signal_to(process, "resume")
        self._paused = []

    def heal(self) -> None:
        """Whatever a test did to it: running and thawed afterwards."""
        self.resume()
        if self._process is not None and self._process.poll() is not None:
            self._end()
        if self._process is None:
            self.start()

    def destroy(self) -> None:
        """End it in any way and remove its files. May be called twice."""
        self._end()
        shutil.rmtree(self.folder, ignore_errors=True)
        atexit.unregister(self.destroy)

    def run(self, *command: str | Path) -> str:
        """Run a command of this server's (as the user that runs it) and return what it printed."""
        done = subprocess.run(
            [str(part) for part in command],
            cwd="/",
            env={**os.environ, **self.environment()},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=START_TIMEOUT,
            check=False,
            **self._identity(),
        )
        if done.returncode != 0:
            raise ServerFailed(f"{command[0]} exited with {done.returncode}\n{done.stdout}")
        return str(done.stdout)

    def _identity(self) -> dict[str, Any]:
        if self.user is None or os.geteuid() != 0:
            return {}
        return {"user": self.user, "group": self.user, "extra_groups": []}

    def _running(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            raise ServerFailed(f"{self.program.name} does not run")
        return self._process

    def _launch(self) -> None:
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [str(part) for part in self.command()],
                cwd="/",
                env={**os.environ, **self.environment()},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                **self._identity(),
            )
        process = self._process
        REAPER.watch(process.pid)
        deadline = time.monotonic() + START_TIMEOUT
        while not (self.ready() and process.poll() is None):  # else the answer was somebody else's
            if process.poll() is not None:
                raise ServerFailed(
                    f"{self.program.name} exited with {process.returncode} at start\n{self._log_tail()}"
                )
            if time.monotonic() > deadline:
                raise ServerFailed(
                    f"{self.program.name} did not answer within {START_TIMEOUT:.0f} s\n{self._log_tail()}"
                )
            time.sleep(0.02)

    def _end(self) -> None:
        process, self._process = self._process, None
        self._paused = []
        if process is None:
            return
        # After a clean stop this finds nothing; then there is only the zombie to collect.
        if process.poll() is None:
            end_tree(psutil.Process(process.pid))
        process.wait(timeout=10)
        REAPER.forget(process.pid)

    def _log_tail(self) -> str:
        return self.log.read_text(errors="replace")[-4000:] if self.log.exists() else "(no log)"


def _moves(process: psutil.Process) -> bool:
    try:
        return alive(process) and process.status() != psutil.STATUS_STOPPED
    except psutil.NoSuchProcess:
        return False


def wait_until(condition: Callable[[], object], timeout: float, what: str) -> None:
    """Wait for a condition, looking every 20 ms; TimeoutError that names it after `timeout` seconds."""
    deadline = time.monotonic() + timeout
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"waited {timeout:g} s for {what}")
        time.sleep(0.02)
