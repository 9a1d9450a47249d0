"""Whose turn it is: a job that is due again soon goes before those that are not."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from celery_sched.rules.misfire import Due
from celery_sched.rules.turn import PATIENCE, start_by

NOON = datetime(2026, 3, 2, 12, tzinfo=UTC)
SECOND = timedelta(seconds=1)


@pytest.mark.parametrize(
    ("runs", "following", "behind", "expected"),
    [
        (1, 5 * SECOND, False, 5 * SECOND),  # due again soon
        (1, timedelta(days=1), False, PATIENCE),  # tomorrow is no hurry, and no reason to wait for ever
        (1, None, False, PATIENCE),  # never again
        (1, timedelta(0), False, PATIENCE),  # its next one has come already: it is late
        (50, 5 * SECOND, False, PATIENCE),  # many to be made good
        (1, 5 * SECOND, True, PATIENCE),  # the last of many, in a batch of its own: not before the others
    ],
)
def test_start_by(runs: int, following: timedelta | None, behind: bool, expected: timedelta) -> None:
    """By when a new run should start."""
    due = Due(run=(NOON,) * runs)
    when = None if following is None else NOON + following
    assert NOON + expected == start_by(due, when, NOON, behind=behind)
