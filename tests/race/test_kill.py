"""A kill hits the body it was meant for, or nothing: never the next task of the same child."""

from __future__ import annotations

import os
import random
import struct
import time
from collections import Counter
from collections.abc import Callable

import pytest

from celery_sched.model import RunId, RunKey, Token
from celery_sched.worker.board import Board
from celery_sched.worker.killer import Kill, kill
from tests.flow.worker_world import World
from tests.private_server import wait_until

ROUNDS = 300
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
        assert (b"" if result is Kill.KILLED else b"be") == told, result
    assert came[Kill.KILLED] > 10 and came[Kill.NOT_THERE] > 10, came


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


@pytest.mark.parametrize("broker", ["files", "redis"])
def test_terminating_short_runs_harms_no_other(make_world: Callable[..., World], broker: str) -> None:
    """Runs terminated around their end, beside innocent ones: one outcome each, and the others succeed."""
    world = make_world(broker=broker, sched_lease=30)
    world.worker("-c", "2")
    dice = random.Random(2)
    targets: list[RunId] = []
    innocent: list[RunId] = []
    for number in range(25):
        dispatch = world.claim("naps", f"target{number}", 0.1)
        world.publish(dispatch)
        targets.append(dispatch.key.id)
        innocent += [world.run("naps", f"innocent{number}-{one}", 0.03) for one in range(3)]
        began = f"target{number}:begin"
        wait_until(lambda began=began: began in world.marks(), 30, "the target to begin")
        time.sleep(dice.uniform(0, 0.15))
        world.app.control.revoke(dispatch.key.id, terminate=True)
    for run_id in innocent:
        assert "succeeded" == world.wait(run_id).status
    outcomes = Counter(world.wait(run_id).status for run_id in targets)
    assert {"succeeded", "cancelled"} >= set(outcomes) and outcomes["cancelled"], outcomes
    marks = Counter(world.marks())
    assert {1} == {count for name, count in marks.items()}
    ended = {name for name in marks if name.startswith("innocent") and name.endswith(":end")}
    assert len(innocent) == len(ended)
    assert 0 == world.late_settlers()
