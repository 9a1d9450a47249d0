"""The memory that a worker's main process and its children share."""

from __future__ import annotations

import os
import time
from datetime import timedelta

import pytest

from celery_sched.context import Context, current, heartbeat
from celery_sched.model import RunId, RunKey, Token
from celery_sched.testing import START
from celery_sched.worker.beats import Beats
from celery_sched.worker.board import NEVER, Board

ONE = RunKey(RunId("run-1"), Token("token-1"), 1)
TWO = RunKey(RunId("run-2"), Token("token-2"), 1)
AGAIN = RunKey(RunId("run-1"), Token("token-1"), 2)


def body(board: Board, index: int, key: RunKey) -> Context:
    """A body begins; what its job is told."""
    board.enter(index, key, NEVER, NEVER)
    return Context(
        run_id=key.id,
        job="job",
        scheduled_for=START,
        attempt=key.attempt,
        fence=1,
        is_lost=lambda: time.monotonic() >= board.trusted_until(key),
        beat=lambda: board.beat(index, key),
        log=None,  # type: ignore[arg-type]
    )


def test_a_heartbeat_is_a_time_on_the_board() -> None:
    """It is 0 until the first one, then the time of the last; the next body of the place begins without."""
    board = Board(2)
    ctx = body(board, 1, ONE)
    place = board.find(ONE)
    assert place is not None and 0.0 == place.beat_at
    before = time.monotonic()
    assert ctx.heartbeat() is True
    place = board.find(ONE)
    assert place is not None and before <= place.beat_at <= time.monotonic()
    assert board.leave(1) is False
    body(board, 1, TWO)
    place = board.find(TWO)
    assert place is not None and 0.0 == place.beat_at


def test_a_heartbeat_of_a_body_that_is_over_is_nobodys() -> None:
    """A thread that its body left behind, or a place past the end of the board, beats for no other run."""
    board = Board(2)
    left_behind = body(board, 0, ONE)
    board.leave(0)
    for next_one in (TWO, AGAIN):
        body(board, 0, next_one)
        left_behind.heartbeat()
        place = board.find(next_one)
        assert place is not None and 0.0 == place.beat_at
    board.beat(2, TWO)
    board.beat(None, TWO)


def test_a_heartbeat_says_whether_the_lease_is_trusted() -> None:
    """It returns what ``ctx.lost`` says the other way round, also by the function for tasks without ctx."""
    board = Board(1)
    ctx = body(board, 0, ONE)
    reset = current.set(ctx)
    assert (True, True) == (ctx.heartbeat(), heartbeat())
    board.trust(ONE, 0.0)
    assert (False, False) == (ctx.heartbeat(), heartbeat())
    current.reset(reset)
    assert heartbeat() is True  # outside of a run


def test_a_heartbeat_of_a_child_is_seen_by_its_parent() -> None:
    """The board is shared with forked children, both ways."""
    board = Board(1)
    board.enter(0, ONE, NEVER, NEVER)
    pid = os.fork()
    if pid == 0:
        board.beat(0, ONE)
        os._exit(0)
    os.waitpid(pid, 0)
    place = board.find(ONE)
    assert place is not None and place.beat_at > 0


def test_a_body_that_was_told_to_end_waits_to_be_killed() -> None:
    """Told in its body: leaving says so and the place stays, over. Otherwise leaving frees the place."""
    board = Board(1)
    board.enter(0, ONE, NEVER, NEVER)
    place = board.find(ONE)
    assert place is not None and (False, False) == (place.told, place.over)
    board.tell(place)
    place = board.find(ONE)
    assert place is not None and (True, False) == (place.told, place.over)
    assert board.leave(0) is True
    place = board.find(ONE)
    assert place is not None and (True, True) == (place.told, place.over)
    board.enter(0, TWO, NEVER, NEVER)  # a new child in the same place
    place = board.find(TWO)
    assert place is not None and (False, False) == (place.told, place.over)
    assert board.leave(0) is False
    assert [] == list(board.places())


@pytest.mark.parametrize("timeout", [60.0, 1.5])
def test_the_first_heartbeat_is_due_at_once_and_later_ones_now_and_then(timeout: float) -> None:
    """50 rapid ones: the first is due, then none before a third of the shorter of lease and timeout."""
    board = Board(2)
    beats = Beats(board, 20.0)
    ctx = body(board, 0, ONE)
    assert (NEVER, []) == (beats.due_at(), beats.due([ONE]))
    writes = 0
    for _ in range(50):
        ctx.heartbeat()
        if beats.due([ONE, TWO]):
            ((_, at),) = beats.unwritten([ONE, TWO]).items()
            beats.wrote(ONE, at, timedelta(seconds=timeout))
            writes += 1
            assert {} == beats.unwritten([ONE])  # what was written is not written again
    assert 1 == writes
    left = beats.due_at() - time.monotonic()
    assert min(20.0, timeout / 3) - 1 < left <= min(20.0, timeout / 3)
    board.trust(ONE, 0.0)
    assert (NEVER, {}) == (beats.due_at(), beats.unwritten([ONE]))  # it is being ended
