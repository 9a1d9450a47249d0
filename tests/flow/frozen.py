"""A child that not even SIGKILL ends: it writes to a frozen file system. Run in a mount namespace of its own.

Prints what the keeper's part that ends runs made of it, as JSON.
"""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
import time
from pathlib import Path

from celery_sched.model import RunId, RunKey, Token
from celery_sched.rules.transitions import RunStatus
from celery_sched.steps.finish import Outcome
from celery_sched.worker.board import Board
from celery_sched.worker.endings import Ending, Endings

KEY = RunKey(RunId("run-1"), Token("token-1"), 1)
OUTCOME = Outcome(RunStatus.CANCELLED, reason="stopped by ada: enough")


def main(folder: Path) -> None:
    mount = folder / "mount"
    mount.mkdir()
    for command in (
        ["truncate", "-s", "16M", str(folder / "image")],
        ["mkfs.ext4", "-q", str(folder / "image")],
        ["mount", "-o", "loop", str(folder / "image"), str(mount)],
        ["fsfreeze", "-f", str(mount)],
    ):
        subprocess.run(command, check=True)
    board = Board(1)
    try:
        pid = os.fork()
        if pid == 0:
            board.enter(0, KEY, 1e9, 1e9)
            (mount / "file").write_text("waits in the kernel")
            os._exit(0)
        deadline = time.monotonic() + 30
        while (state := _state(pid)) != "D":
            if time.monotonic() > deadline:
                raise TimeoutError(f"the child does not wait in the kernel: it is {state!r}")
            time.sleep(0.01)
        logged: list[str] = []
        logging.getLogger("celery_sched.worker").addHandler(_Keep(logged))
        endings = Endings(board, os.kill)
        endings.want(Ending(KEY, OUTCOME, "it was stopped", grace=0.5))
        written: list[tuple[RunKey, Outcome]] = []
        while endings:
            written += endings.work({KEY})
        # its message is still here: the next renewals find it stale
        endings.want(Ending(KEY, None, "its lease is no longer this worker's"))
        began = time.monotonic()
        written += endings.work({KEY})
        again = time.monotonic() - began
        state = _state(pid)
    finally:
        subprocess.run(["fsfreeze", "-u", str(mount)], check=True)
    _, code = os.waitpid(pid, 0)
    subprocess.run(["umount", str(mount)], check=True)
    place = board.at(0)
    print(
        json.dumps(
            {
                "outcomes": [(key.id, outcome.status, outcome.reason) for key, outcome in written],
                "logged": logged,
                "state": state,
                "again": again,
                "ended by": code,
                "trusted until": None if place is None else place.trusted_until,
            }
        )
    )


class _Keep(logging.Handler):
    def __init__(self, kept: list[str]) -> None:
        super().__init__()
        self._kept = kept

    def emit(self, record: logging.LogRecord) -> None:
        self._kept.append(record.getMessage())


def _state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


if __name__ == "__main__":
    main(Path(sys.argv[1]))
