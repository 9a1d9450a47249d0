"""A kill hits the body it was meant for, or nothing: never the next task of the same child."""

from __future__ import annotations

import os
import random
import re
import select
import signal
import struct
import sys
import time
from collections import Counter
from collections.abc import Callable

import pytest

from celery_sched.model import RunId, RunKey, Token
from celery_sched.rules.transitions import RunStatus
from celery_sched.steps.finish import Outcome
from celery_sched.steps.stop import stop
from celery_sched.worker.board import Board
from celery_sched.worker.endings import Ending, Endings
from celery_sched.worker.killer import Kill, kill
from celery_sched.worker.ladder import Ladder
from tests.flow.worker_world import World
from tests.private_server import wait_until
from tests.store.world import FULL

ROUNDS = 300
TARGETS = 500 if FULL else 25
"""Runs that are ended within 20 ms of their end."""
STOPPED = 60 if FULL else 8
FIRST = RunKey(RunId("run-1"), Token("token-1"), 1)
SECOND = RunKey(RunId("run-2"), Token("token-2"), 1)


def child(board: Board, pipe: int, spin: float) -> None:
    """Two bodies after each other, then a report that the second one ended."""
    for key in (FIRST, SECOND):
        board.enter(0, key, 0.0, 0.0)
        os.write(pipe, b"b")
        end = time.perf_counter() + spin
        while time.perf_counter() < end:
            pass
        board.leave(0)
    os.write(pipe, b"e")


def test_a_kill_around_the_end_of_a_body_spares_the_next_one() -> None:
    """Kills aimed at the moment at which one body ends and the next begins: the second always ends."""
    dice = random.Random(1)
    came: Counter[Kill] = Counter()
    for _ in range(ROUNDS):
        board = Board(1)
        read, write = os.pipe()
        pid = os.fork()
        if pid == 0:
            try:
                child(board, write, 0.002)
            finally:
                os._exit(0)
        os.close(write)
        assert b"b" == os.read(read, 1)
        time.sleep(dice.uniform(0, 0.004))
        result = kill(board, FIRST, os.kill)
        told = b""
        while part := os.read(read, 10):
            told += part
        os.close(read)
        os.waitpid(pid, 0)
        came[result] += 1
        assert (b"" if result in (Kill.KILLED, Kill.STUCK) else b"be") == told, result
    assert came[Kill.KILLED] > 10 and came[Kill.NOT_THERE] > 10, came


def told_child(board: Board, pipe: int, spin: float) -> None:
    """The same where a body that was told to end waits to be killed, as in a worker; SIGTERM raises."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    for key in (FIRST, SECOND):
        board.enter(0, key, 0.0, 0.0)
        try:
            os.write(pipe, b"b")
            end = time.perf_counter() + spin
            while time.perf_counter() < end:
                pass
        finally:
            while board.leave(0):
                signal.pause()
    os.write(pipe, b"e")


def test_a_sigterm_around_the_end_of_a_body_spares_the_next_one() -> None:
    """SIGTERM aimed at the end of a body: either it is that body's end, or the next one runs to its own."""
    dice = random.Random(3)
    came: Counter[Kill] = Counter()
    for _ in range(ROUNDS):
        board = Board(1)
        ladder = Ladder(board, os.kill)
        read, write = os.pipe()
        pid = os.fork()
        if pid == 0:
            try:
                told_child(board, write, 0.002)
            finally:
                os._exit(0)
        os.close(write)
        assert b"b" == os.read(read, 1)
        time.sleep(dice.uniform(0, 0.004))
        while (step := ladder.climb(FIRST, 5.0)).came in (Kill.TOLD, Kill.NOT_NOW):
            pass
        told = b""
        while part := os.read(read, 10):
            told += part
        os.close(read)
        os.waitpid(pid, 0)
        came[step.came] += 1
        assert (b"be" if step.came is Kill.NOT_THERE else b"") == told, step
        assert step.came is Kill.NOT_THERE or step.said.startswith("SIGTERM, ended after "), step
    assert came[Kill.KILLED] > 10 and came[Kill.NOT_THERE] > 10, came


def test_a_lost_lease_cuts_the_grace_short() -> None:
    """A body that was told to end and has time for it is killed at once when its lease is somebody else's."""
    board = Board(1)
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            signal.signal(signal.SIGTERM, lambda *_: os.write(write, b"t"))
            board.enter(0, FIRST, 0.0, 0.0)
            os.write(write, b"b")
            while True:
                signal.pause()
        finally:
            os._exit(0)
    try:
        assert b"b" == os.read(read, 1)
        endings = Endings(board, os.kill)
        cancelled = Outcome(RunStatus.CANCELLED, reason="stopped")
        endings.want(Ending(FIRST, cancelled, "it was stopped", grace=3600.0))
        while not select.select([read], [], [], 0.01)[0]:  # not at once where the child does not stop soon
            assert [] == list(endings.work({FIRST}))
        assert b"t" == os.read(read, 1)
        assert [] == list(endings.work({FIRST})) and endings
        endings.want(Ending(FIRST, None, "its lease is no longer this worker's"))
        ended = list(endings.work({FIRST}))
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    [(key, outcome)] = ended
    assert FIRST == key
    assert re.match(r"stopped; SIGTERM, then SIGKILL after \d+\.\d s", outcome.reason or ""), outcome


def test_a_pid_that_is_no_child_of_ours_is_left_alone() -> None:
    """A board that names a process which is not ours (a reused pid) kills nothing."""
    board = Board(1)
    board.enter(0, FIRST, 0.0, 0.0)
    stranger = os.getppid()
    struct.pack_into("<I", board._memory, 4, stranger)
    told: list[tuple[int, int]] = []
    assert Kill.GONE is kill(board, FIRST, lambda pid, signum: told.append((pid, signum)))
    assert [] == told
    os.kill(stranger, 0)


@pytest.mark.timeout(1800 if FULL else 180)
@pytest.mark.parametrize("broker", ["files", "redis"])
def test_terminating_short_runs_harms_no_other(make_world: Callable[..., World], broker: str) -> None:
    """Runs terminated around their end, beside innocent ones: one outcome each, and the others succeed.

    Short ones in the same child, and a long one in the other.
    """
    world = make_world(broker=broker, sched_lease=30, sched_max_runtime=3600)
    world.worker("-c", "2")
    dice = random.Random(2)
    long = world.run("bodies.until_file", "long", "enough")
    wait_until(lambda: "long:begin" in world.marks(), 30, "the long one to begin")
    targets: list[RunId] = []
    innocent: list[RunId] = []
    for number in range(TARGETS):
        # the first is in its body for certain, the others are around their end
        dispatch = world.claim("naps", f"target{number}", 0.1 if number else 30)
        world.publish(dispatch)
        targets.append(dispatch.key.id)
        innocent += [world.run("naps", f"innocent{number}-{one}", 0.03) for one in range(2)]
        began = f"target{number}:begin"
        wait_until(lambda began=began: began in world.marks(), 30, "the target to begin")
        time.sleep(dice.uniform(0.06, 0.12))
        world.app.control.revoke(dispatch.key.id, terminate=True)
    _all_as_they_should(world, targets, innocent, long)


@pytest.mark.timeout(1800 if FULL else 180)
@pytest.mark.parametrize("broker", ["files", "redis"])
def test_stopping_runs_around_their_end_harms_no_other(make_world: Callable[..., World], broker: str) -> None:
    """The same by ``cancel``, which tells the body first: it takes effect at some time around the end."""
    world = make_world(broker=broker, sched_max_runtime=3600)
    world.worker("-c", "2")
    dice = random.Random(4)
    long = world.run("bodies.until_file", "long", "enough")
    wait_until(lambda: "long:begin" in world.marks(), 30, "the long one to begin")
    targets: list[RunId] = []
    innocent: list[RunId] = []
    for number in range(STOPPED):
        targets.append(world.run("naps", f"target{number}", dice.uniform(0.2, 1.0) if number else 30))
        innocent += [world.run("naps", f"innocent{number}-{one}", 0.03) for one in range(2)]
        began = f"target{number}:begin"
        wait_until(lambda began=began: began in world.marks(), 30, "the target to begin")
        world.database.run(lambda tx, now: stop(tx, now, targets[-1], "ada", None))
    _all_as_they_should(world, targets, innocent, long)


def _all_as_they_should(world: World, targets: list[RunId], innocent: list[RunId], long: RunId) -> None:
    for run_id in innocent:
        assert "succeeded" == world.wait(run_id).status
    outcomes = Counter(world.wait(run_id).status for run_id in targets)
    assert {"succeeded", "cancelled"} >= set(outcomes) and outcomes["cancelled"], outcomes
    assert "running" == world.status(long)
    (world.folder / "enough").touch()
    assert "succeeded" == world.wait(long).status
    marks = Counter(world.marks())
    assert {1} == {count for name, count in marks.items()}
    ended = {name for name in marks if name.startswith("innocent") and name.endswith(":end")}
    assert len(innocent) == len(ended)
    assert 0 == world.late_settlers()
