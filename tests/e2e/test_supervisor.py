"""The supervisor of `sched server`, with small programs for children: whatever happens, nothing stays."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from tests.private_server import wait_until
from tests.reaper import REAPER, end_tree, gone

# Ignores what can be ignored, and says so when it does.
STUBBORN = """
import os, pathlib, signal, sys, time
for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
    signal.signal(number, signal.SIG_IGN)
pathlib.Path(sys.argv[1]).write_text(str(os.getpid()))
while True:
    time.sleep(60)
"""

# Starts a stubborn one in a session of its own, twice removed, and ends: an orphan nobody knows of.
ORPHANING = """
import subprocess, sys
subprocess.Popen([sys.executable, "-c", sys.argv[1], sys.argv[2]], start_new_session=True)
print("left one behind")
"""

SUPERVISE = """
import sys
from celery_sched.cli.supervisor import Supervisor
supervisor = Supervisor()
supervisor.begin()
supervisor.start("child", [sys.executable, "-c", *sys.argv[1:]])
while not supervisor.stops:
    supervisor.pump(60)
print("killed", len(supervisor.sweep_up()))
"""

Start = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def start() -> Iterator[Start]:
    """Start a supervisor of one child; ended with all its descendants after the test."""
    started: list[subprocess.Popen[str]] = []

    def begin(*arguments: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-c", SUPERVISE, *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        REAPER.watch(process.pid)
        started.append(process)
        return process

    yield begin
    for process in started:
        if process.poll() is None:
            end_tree(psutil.Process(process.pid))
        process.communicate()
        REAPER.forget(process.pid)


def pid_in(file: Path) -> int:
    """The pid that a stubborn program wrote, when it is ready."""
    wait_until(lambda: file.exists() and file.read_text(), 20, f"{file} to be written")
    return int(file.read_text())


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP], ids=lambda n: n.name)
def test_a_child_that_ignores_signals_is_swept_up(
    start: Start, tmp_path: Path, number: signal.Signals
) -> None:
    """Each way of asking it to stop ends the supervisor in order, and its child with it."""
    supervisor = start(STUBBORN, str(tmp_path / "pid"))
    pid = pid_in(tmp_path / "pid")
    supervisor.send_signal(number)
    output, _ = supervisor.communicate(timeout=30)
    assert (0, True, "killed 1\n") == (supervisor.returncode, gone(pid), output)


def test_an_orphan_with_a_session_of_its_own_is_swept_up(start: Start, tmp_path: Path) -> None:
    """What a child that has ended left behind, outside its process group, is found and killed."""
    supervisor = start(ORPHANING, STUBBORN, str(tmp_path / "pid"))
    pid = pid_in(tmp_path / "pid")
    assert supervisor.stdout is not None
    assert "child     | left one behind\n" == supervisor.stdout.readline()
    supervisor.terminate()
    output, _ = supervisor.communicate(timeout=30)
    assert (0, True, "killed 1\n") == (supervisor.returncode, gone(pid), output)


def test_children_die_with_a_killed_supervisor(start: Start, tmp_path: Path) -> None:
    """SIGKILL of the supervisor, which cannot clean up any more, takes its child along."""
    supervisor = start(STUBBORN, str(tmp_path / "pid"))
    pid = pid_in(tmp_path / "pid")
    supervisor.kill()
    supervisor.wait(timeout=10)
    wait_until(lambda: gone(pid), 10, "the child to be gone")


def test_output_is_copied_by_line_and_to_the_last_byte(start: Start) -> None:
    """Each line of both streams comes with the name, also an unfinished one and bytes that are no text."""
    supervisor = start(
        "import os, sys; os.write(1, b'one\\n'); os.write(2, b'two\\xff\\n'); os.write(1, b'three')"
    )
    assert supervisor.stdout is not None
    lines = [supervisor.stdout.readline() for _ in range(3)]
    assert ["child     | one\n", "child     | two\ufffd\n", "child     | three\n"] == lines
    supervisor.terminate()
    supervisor.wait(timeout=30)
