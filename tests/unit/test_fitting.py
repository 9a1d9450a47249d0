"""Whom free slots are for: light runs are not blocked for nothing, heavy ones do not wait for ever."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from celery_sched.model import JobId, RunId
from celery_sched.rules.fitting import Candidate, Room, fit
from celery_sched.rules.turn import PATIENCE, overdue

NOW = datetime(2026, 1, 31, 12, tzinfo=UTC)
SECOND = timedelta(seconds=1)


def _candidates(text: str) -> list[Candidate]:
    """``"3 1 5!"``: weights, best first; ``!``: overdue."""
    return [
        Candidate(RunId(str(place)), JobId(place), int(word.rstrip("!")), word.endswith("!"))
        for place, word in enumerate(text.split())
    ]


TABLE = [
    # slots, free, candidates, the weights that are taken
    (5, 5, "1 1 1 1 1 1", [1, 1, 1, 1, 1]),
    (5, 0, "1 1", []),
    (5, 2, "", []),
    # does not fit: the lighter ones behind go
    (5, 2, "3 1 1 1", [1, 1]),
    (5, 2, "3 2 1", [2]),
    # overdue: they wait, also for what is free beside it
    (5, 2, "3! 1 1 1", []),
    (5, 3, "3! 1", [3]),
    (5, 4, "3! 1", [3, 1]),
    # those in front of it are not its business
    (5, 2, "1 3! 1", [1]),
    (5, 4, "3 2! 1", [3]),
    # can never fit: blocks nobody, however long it waits
    (5, 5, "6! 1 4", [1, 4]),
    (5, 2, "6! 3! 1", []),
    (0, 0, "1! 1", []),
    # a pool that was made smaller
    (2, -3, "1! 2!", []),
]


@pytest.mark.parametrize(("slots", "free", "candidates", "taken"), TABLE)
def test_who_is_taken(slots: int, free: int, candidates: str, taken: list[int]) -> None:
    """What does not fit is passed over; once it is overdue, nothing behind it is taken until it fits."""
    assert taken == [one.weight for one in fit(_candidates(candidates), free, slots)]


candidates = st.lists(
    st.builds(
        Candidate,
        st.uuids().map(lambda one: RunId(str(one))),
        st.just(JobId(1)),
        st.integers(1, 6),
        st.booleans(),
    ),
    max_size=12,
)


@given(candidates, st.integers(0, 6), st.integers(0, 4))
def test_the_rule_for_any_queue(waiting: list[Candidate], slots: int, held: int) -> None:
    """Never more than is free; who is not taken did not fit when asked, or was behind one that is overdue and
    that could fit; nobody is kept waiting by one that cannot."""
    free = slots - held
    taken = set(fit(waiting, free, slots))
    left, closed = free, False
    for one in waiting:
        if one in taken:
            assert not closed
            assert one.weight <= left
            left -= one.weight
        else:
            assert closed or one.weight > left
            closed = closed or (one.overdue and one.weight <= slots)
    assert min(0, free) <= left <= max(0, free)


@given(st.integers(1, 6), st.lists(st.integers(1, 3), min_size=30, max_size=30))
def test_a_heavy_run_does_not_starve(weight: int, lighter: list[int]) -> None:
    """New light runs come all the time: the heavy one starts when those that ran as its patience ended are
    gone, whatever came meanwhile."""
    slots, rounds = 6, 0
    running: list[int] = [1] * slots
    heavy = Candidate(RunId("heavy"), JobId(0), weight)
    for number, light in enumerate(lighter):
        late = number >= 5
        rounds += late
        running = running[1:]  # one of them ends a round
        queue = [
            Candidate(heavy.run_id, heavy.job_id, weight, late),
            *(Candidate(RunId(f"{number}-{n}"), JobId(n), light) for n in range(slots)),
        ]
        taken = fit(queue, slots - sum(running), slots)
        if any(one.run_id == heavy.run_id for one in taken):
            break
        running += [one.weight for one in taken]
    else:
        raise AssertionError("it never started")
    assert rounds <= slots + 1


def test_room_is_spent() -> None:
    """Nobody else is asked when nothing is left, or when it is kept for one that is overdue."""
    room = Room(2, 5)
    assert (False, False, False) == (room.takes(3, overdue=False), room.closed, room.is_spent)
    assert (True, True) == (room.takes(2, overdue=False), room.is_spent)
    kept = Room(2, 5)
    assert (False, True, True) == (kept.takes(3, overdue=True), kept.closed, kept.is_spent)
    assert (False, 2) == (kept.takes(1, overdue=False), kept.free)


OVERDUE = [
    # seconds since it is ready, start_by relative to ready (None: none), overdue
    (0, None, False),
    (599, None, False),
    (600, None, True),
    (4, 5, False),
    (5, 5, True),
    (599, 600, False),
    # tried again after its start_by: its patience begins anew
    (599, -100, False),
    (600, -100, True),
    (0, 0, False),
]


@pytest.mark.parametrize(("waited", "start_by", "expected"), OVERDUE)
def test_when_a_run_is_overdue(waited: int, start_by: int | None, expected: bool) -> None:
    """A run lets others go first until its ``start_by``, at most ten minutes."""
    ready_at = NOW - waited * SECOND
    by = None if start_by is None else ready_at + start_by * SECOND
    assert expected == overdue(ready_at, by, NOW)
    assert timedelta(minutes=10) == PATIENCE
