"""Overlap: an occurrence comes while the job has active runs."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from celery_sched.model import Misfire, Overlap
from celery_sched.rules.overlap import Decision, decide

LIVE = "0b8c2f4e"
WAITING = "5d1e9a70"
SKIPPED = Decision(False, f"overlap: run {LIVE} is active")


WAITS_ALREADY = Decision(False, f"queue_one: run {WAITING} waits already")
REPLACES = Decision(True, replace=True)


def full(active: int, limit: int) -> Decision:
    return Decision(False, f"queue_full: {active} runs of the job are active, max_queued is {limit}")


@pytest.mark.parametrize(
    ("overlap", "misfire", "active", "expected"),
    [
        # nothing is active: every policy runs
        ("skip", "once", 0, Decision(True)),
        ("queue", "once", 0, Decision(True)),
        ("queue_one", "once", 0, Decision(True)),
        ("replace", "once", 0, Decision(True)),
        ("concurrent", "once", 0, Decision(True)),
        # one is: the table of A45
        ("skip", "once", 1, SKIPPED),
        ("skip", "skip", 1, SKIPPED),
        ("queue", "once", 1, Decision(True)),
        ("concurrent", "once", 1, Decision(True)),
        # catching up implies queueing: else all but the first would be skipped
        ("skip", "all", 1, Decision(True)),
        # one may wait behind it, the first one is kept
        ("queue_one", "once", 1, Decision(True)),
        ("queue_one", "skip", 2, WAITS_ALREADY),
        ("queue_one", "once", 1000, WAITS_ALREADY),
        ("queue_one", "all", 2, Decision(True)),
        ("queue_one", "all", 4, full(4, 3)),
        # all others are stopped, however many wait
        ("replace", "once", 1, REPLACES),
        ("replace", "skip", 1000, REPLACES),
        # refused when it is entered; as plain SQL could have it: a catch-up never replaces itself
        ("replace", "all", 1, Decision(True)),
        # one runs, three wait: no more may (max_queued 3)
        ("queue", "once", 3, Decision(True)),
        ("queue", "once", 4, full(4, 3)),
        ("skip", "all", 3, Decision(True)),
        ("skip", "all", 4, full(4, 3)),
        ("concurrent", "once", 1000, Decision(True)),
        ("skip", "once", 1000, SKIPPED),
    ],
)
def test_the_table(overlap: str, misfire: str, active: int, expected: Decision) -> None:
    """A45: what each policy does; skipped and full queues say why, with the run in the way or the numbers."""
    live = LIVE if active else None
    found = decide(Overlap(overlap), Misfire(misfire), active, 3, live, waiting_run=WAITING)
    assert expected == found


@pytest.mark.parametrize(
    ("overlap", "active", "expected"),
    [
        ("skip", 1, Decision(True)),
        ("skip", 4, full(4, 3)),
        ("queue", 4, full(4, 3)),
        # the backfill's run is the one that is carried out: one may wait behind it
        ("queue_one", 0, Decision(True)),
        ("queue_one", 1, WAITS_ALREADY),
        ("replace", 0, Decision(True)),
        ("replace", 1, REPLACES),
    ],
)
def test_behind_a_backfill(overlap: str, active: int, expected: Decision) -> None:
    """While a run of a backfill holds the job, occurrences wait as far as their policy has room."""
    found = decide(Overlap(overlap), Misfire.ONCE, active, 3, LIVE, waiting_run=WAITING, behind_backfill=True)
    assert expected == found


@given(st.sampled_from(Overlap), st.sampled_from(Misfire), st.integers(0, 10_000), st.integers(1, 10_000))
def test_what_is_not_queued_says_why(overlap: Overlap, misfire: Misfire, active: int, limit: int) -> None:
    """An occurrence is queued, or there is a reason; an idle job's occurrence is always queued."""
    decision = decide(overlap, misfire, active, limit, LIVE, waiting_run=WAITING)
    assert decision.queue is (decision.reason is None)
    assert decision.queue or active > 0
    # only `replace` stops anything, and only for a run that is queued
    assert not decision.replace or (decision.queue and overlap is Overlap.REPLACE and active > 0)
