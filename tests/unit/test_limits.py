"""What bounds a body: its start, its heartbeats, its time limit."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from types import SimpleNamespace

import pytest

from celery_sched.config import load
from celery_sched.rules import limits

START = datetime(2026, 1, 1, tzinfo=UTC)


def seconds(value: float) -> timedelta:
    return timedelta(seconds=value)


@pytest.mark.parametrize(
    ("max_runtime", "time_limit", "timeout", "beat", "expected", "why"),
    [
        (None, None, None, None, 600, "ran longer than its max_runtime (600 s)"),
        (90, None, None, None, 600, "ran longer than its max_runtime (600 s)"),  # it only extends
        (900, None, None, None, 900, "ran longer than its max_runtime (900 s)"),
        (900, 300, None, None, 300, "ran longer than its time_limit (300 s)"),
        (None, None, None, 0, 120, "no heartbeat for 120 s"),
        (None, None, None, 5000, 5120, "no heartbeat for 120 s"),  # max_runtime bounds it no longer
        (None, None, 7.5, 10, 17.5, "no heartbeat for 7.5 s"),
        (None, 5060, None, 5000, 5060, "ran longer than its time_limit (5060 s)"),
        (None, 5060, 30, 5000, 5030, "no heartbeat for 30 s"),
    ],
)
def test_a_deadline_and_what_it_says(
    max_runtime: float | None,
    time_limit: float | None,
    timeout: float | None,
    beat: float | None,
    expected: float,
    why: str,
) -> None:
    """Without a heartbeat a run is judged from its start, else from the last; time_limit is absolute."""
    row = SimpleNamespace(max_runtime=max_runtime, time_limit=time_limit, heartbeat_timeout=timeout)
    bounds = limits.of(load({}, "proj", {}), row)
    beat_at = None if beat is None else START + seconds(beat)
    deadline = bounds.deadline(START, beat_at)
    assert START + seconds(expected) == deadline
    assert why == bounds.why_over(START, deadline, beat_at)
