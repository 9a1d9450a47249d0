"""Ends what a test run leaves behind when it is killed outright.

A small process beside the test run. It reads lines from its standard input and, when that closes (the
test run is gone, however it went), ends the process trees and removes the folders that it was told of.

    pid PID CREATED    this process (CREATED: psutil's create_time, so that a reused pid is never hit)
    done PID           it has ended
    folder PATH        remove this at the end
"""

from __future__ import annotations

import atexit
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path

import psutil


def tree(process: psutil.Process) -> list[psutil.Process]:
    """The process and all it has started, itself first."""
    try:
        return [process, *process.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


def end_tree(process: psutil.Process) -> None:
    """SIGKILL to the whole tree. Stopped first, so that nothing is started meanwhile."""
    members: list[psutil.Process] = []
    while len(found := tree(process)) > len(members):
        members = found
        for member in members:
            signal_to(member, "suspend")
    for member in members:
        signal_to(member, "kill")
    # Gone or a zombie: whose parent collects it, and when, is not our business.
    deadline = time.monotonic() + 10
    while any(alive(member) for member in members) and time.monotonic() < deadline:
        time.sleep(0.01)


def alive(process: psutil.Process) -> bool:
    """Whether it still runs (a zombie does not)."""
    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def gone(pid: int) -> bool:
    """Whether no such process runs (a zombie does not)."""
    try:
        return not alive(psutil.Process(pid))
    except psutil.NoSuchProcess:
        return True


def signal_to(process: psutil.Process, what: str) -> None:
    """`suspend`, `resume` or `kill` a process that may be gone by now."""
    try:
        getattr(process, what)()
    except psutil.NoSuchProcess:
        return  # it ended by itself, which is what was wanted


class Reaper:
    """The test run's end of the pipe. Starts the process at the first use."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[str] | None = None
        self._lock = threading.Lock()

    def watch(self, pid: int) -> None:
        """End this process, and all it starts, if the test run dies."""
        self._say(f"pid {pid} {psutil.Process(pid).create_time()!r}")

    def forget(self, pid: int) -> None:
        """It has ended."""
        self._say(f"done {pid}")

    def folder(self, path: Path) -> None:
        """Remove this folder when the test run is gone."""
        self._say(f"folder {path}")

    def close(self) -> None:
        """Let it do its work now."""
        process, self._process = self._process, None
        if process is not None and process.stdin is not None:
            process.stdin.close()
            process.wait(timeout=60)

    def _say(self, line: str) -> None:
        with self._lock:
            if self._process is None:
                # A session of its own: Ctrl-C in the terminal is for the tests, not for this.
                self._process = subprocess.Popen(
                    [sys.executable, __file__],
                    stdin=subprocess.PIPE,
                    text=True,
                    start_new_session=True,
                    cwd="/",
                )
                atexit.register(self.close)
            assert self._process.stdin is not None
            self._process.stdin.write(line + "\n")
            self._process.stdin.flush()


REAPER = Reaper()


def main() -> None:
    """Read until the test run is gone, then clean up."""
    pids: dict[int, float] = {}
    folders: list[str] = []
    for line in sys.stdin:
        match line.rstrip("\n").split(" ", 1):
            case ["pid", rest]:
                pid, created = rest.split()
                pids[int(pid)] = float(created)
            case ["done", rest]:
                pids.pop(int(rest), None)
            case ["folder", rest]:
                folders.append(rest)
    for pid, created in pids.items():
        if psutil.pid_exists(pid) and psutil.Process(pid).create_time() == created:
            end_tree(psutil.Process(pid))
    for folder in folders:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
