"""The two that end an exclusive body: the guard in the main process, and the timer in the child itself."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable

import pytest

from celery_sched.model import RunId, RunKey, Token
from celery_sched.rules.transitions import RunStatus
from celery_sched.steps.finish import Outcome
from celery_sched.worker import trust
from celery_sched.worker.board import NEVER, Board
from celery_sched.worker.deadman import DeadMan
from celery_sched.worker.endings import Ending, Endings
from celery_sched.worker.guard import Guard
from tests.private_server import wait_until
from tests.reaper import gone

ONE = RunKey(RunId("run-1"), Token("token-1"), 1)
TWO = RunKey(RunId("run-2"), Token("token-2"), 1)
ROUNDS, ENOUGH = 500, 100
LONG = 30
"""Seconds after which a child that nobody has killed ends by itself, and the test fails."""


def forked(child: Callable[[], None]) -> int:
    """A child that leads a group of its own, as a worker's children do; it ends when its function returns."""
    pid = os.fork()
    if pid == 0:
        try:
            os.setsid()
            child()
        finally:
            os._exit(0)
    return pid


def ended(pid: int) -> int:
    """How it ended: the signal that killed it, or 0."""
    return os.WTERMSIG(os.waitpid(pid, 0)[1])


def timed(board: Board, kill_at: float, after: float) -> DeadMan:
    """What the gate does before an exclusive body."""
    board.enter(0, ONE, kill_at, NEVER, kill_at)
    timer = DeadMan(board, 0, after)
    timer.start()
    return timer


def test_a_child_that_nobody_feeds_kills_itself_with_all_that_it_started() -> None:
    """Not before its time; what has a session of its own dies too, and the board says who it was."""
    board = Board(1)
    read, write = os.pipe()

    def child() -> None:
        command = [sys.executable, "-c", "import time; time.sleep(600)"]
        for session in (False, True):
            os.write(write, f"{subprocess.Popen(command, start_new_session=session).pid}\n".encode())
        timed(board, trust.clock() + 0.3, 0.2)
        time.sleep(LONG)

    pid = forked(child)
    os.close(write)
    with os.fdopen(read) as started:
        grandchildren = [int(started.readline()) for _ in range(2)]
    assert signal.SIGKILL == ended(pid)
    place = board.find(ONE)
    assert place is not None and place.timer
    assert trust.clock() >= board.kill_at(place.index) + 0.2
    for other in grandchildren:
        wait_until(lambda other=other: gone(other), 10, "what it started to be gone")


def test_a_child_that_is_fed_lives() -> None:
    """As long as the main process moves its end on; when that stops, it dies."""
    board = Board(1)
    began = trust.clock()

    def child() -> None:
        timed(board, began + 3, 0.1)
        time.sleep(LONG)

    pid = forked(child)
    wait_until(lambda: board.find(ONE), 10, "the body to begin")
    while trust.clock() < began + 6:
        board.trust(ONE, trust.clock() + 3)
        assert (0, 0) == os.waitpid(pid, os.WNOHANG)
        time.sleep(0.05)
    assert signal.SIGKILL == ended(pid)


def test_a_body_that_was_told_to_end_keeps_its_timer() -> None:
    """Its main process told it, and froze: the child that waits to be killed kills itself."""
    board = Board(1)
    kill_at = trust.clock() + 0.5

    def child() -> None:
        timer = timed(board, kill_at, 0.1)
        place = board.find(ONE)
        assert place is not None
        board.tell(place)
        assert timer.leave() is True
        time.sleep(LONG)

    assert signal.SIGKILL == ended(forked(child))


def test_the_timer_spares_what_the_child_does_next() -> None:
    """Aimed at the moment at which the body ends: either it is that body's end, or none at all."""
    dice = random.Random(5)
    came: Counter[int] = Counter()
    for done in range(ROUNDS):
        if done >= ENOUGH and min(came[0], came[signal.SIGKILL]) > 5:
            break
        board = Board(1)
        read, write = os.pipe()

        def child(board: Board = board, write: int = write, gives_way: int = done % 2) -> None:
            kill_at = trust.clock() + 0.02  # here: a fork may take long
            timer = timed(board, kill_at, 0.0)
            end = kill_at + dice.uniform(-0.01, 0.06)
            while trust.clock() < end:
                if gives_way:  # else the timer's thread gets its turn late, as beside a body that works
                    time.sleep(0)
            timer.leave()
            os.write(write, b"b")
            board.enter(0, TWO, 0.0, NEVER)
            time.sleep(0.05)
            os.write(write, b"e")

        dice.random()
        pid = forked(child)
        os.close(write)
        told = b""
        while part := os.read(read, 10):
            told += part
        os.close(read)
        how = ended(pid)
        came[how] += 1
        assert (b"be" if how == 0 else b"") == told, how
    assert min(came[0], came[signal.SIGKILL]) > 5, came


def bodies(board: Board, kill_at: float) -> tuple[int, int]:
    """An exclusive body and another one, each in a child that ignores SIGTERM."""
    pids = []
    for index, key, end in ((0, ONE, kill_at), (1, TWO, NEVER)):

        def child(index: int = index, key: RunKey = key, end: float = end) -> None:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            board.enter(index, key, end, NEVER, end)
            time.sleep(LONG)

        pids.append(forked(child))
    wait_until(lambda: len(list(board.places())) == 2, 10, "both bodies to begin")
    return pids[0], pids[1]


@pytest.mark.parametrize(("grace", "steps"), [(0.0, "SIGKILL"), (0.3, "SIGTERM, then SIGKILL after ")])
def test_the_guard_kills_what_is_exclusive_while_the_keeper_waits(grace: float, steps: str) -> None:
    """In time, by itself, and nothing else; what it says is written later."""
    board = Board(2)
    endings = Endings(board, os.kill)
    written: list[tuple[RunKey, Outcome]] = []
    settled = threading.Event()

    def settle(key: RunKey, outcome: Outcome) -> None:
        written.append((key, outcome))
        settled.set()

    kill_at = trust.clock() + 1.5
    exclusive, other = bodies(board, kill_at)
    guard = Guard(board, endings, lambda: {ONE, TWO}, settle, grace)
    guard.start()
    try:
        assert settled.wait(20)
        assert trust.clock() >= kill_at + grace
        assert signal.SIGKILL == ended(exclusive)
        # it looks at the place of the dead child again and again, and asks nothing more
        wait_until(lambda: not endings, 10, "the end of it")
        for _ in range(3):
            guard.look()
        assert (0, 0) == os.waitpid(other, os.WNOHANG)
    finally:
        guard.stop()
        os.kill(other, signal.SIGKILL)
        os.waitpid(other, 0)
    [(key, outcome)] = written
    assert (ONE, RunStatus.LOST, trust.WHY) == (key, outcome.status, outcome.error)
    assert (outcome.reason or "").startswith(f"{trust.WHY}; {steps}"), outcome


def test_the_end_of_trust_cuts_a_grace_short() -> None:
    """It was cancelled and has an hour for that: it is killed in time, as a cancelled one."""
    board = Board(2)
    endings = Endings(board, os.kill)
    exclusive, other = bodies(board, trust.clock() + 0.5)
    written: list[tuple[RunKey, Outcome]] = []
    guard = Guard(board, endings, lambda: {ONE, TWO}, lambda *one: written.append(one), 0.0)
    try:
        cancelled = Outcome(RunStatus.CANCELLED, reason="stopped")
        endings.want(Ending(ONE, cancelled, "it was stopped", grace=3600.0))
        assert [] == list(endings.work({ONE, TWO}))
        wait_until(lambda: guard.look() >= 0 and written, 20, "the guard to end it")
        assert signal.SIGKILL == ended(exclusive)
    finally:
        os.kill(other, signal.SIGKILL)
        os.waitpid(other, 0)
    [(key, outcome)] = written
    assert (ONE, RunStatus.CANCELLED) == (key, outcome.status)
    assert (outcome.reason or "").startswith("stopped; SIGTERM, then SIGKILL after "), outcome
