"""``none``: no times at all, and never over."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from celery_sched.errors import InvalidValue
from celery_sched.rules.definition import checked
from celery_sched.rules.schedules import parse
from celery_sched.rules.upcoming import over

NOW = datetime(2026, 1, 31, tzinfo=UTC)


def test_it_has_no_occurrence() -> None:
    """Not after any instant, and none before it."""
    schedule = parse(" None ")
    assert ("none", None, None, 0) == (
        schedule.text,
        schedule.next_after(NOW),
        schedule.latest_in(datetime.min.replace(tzinfo=UTC), NOW),
        schedule.count_in(datetime.min.replace(tzinfo=UTC), NOW),
    )


def test_it_is_no_part_of_a_union() -> None:
    """What has times beside it has times: the part that says nothing is refused."""
    with pytest.raises(InvalidValue, match="schedule 2 of 2"):
        parse("@daily | none")


def test_a_job_without_times_is_never_over() -> None:
    """A job that waits for events is active, however long nothing comes; its runs may still be counted."""
    definition = checked(name="job", task="task", schedule="none", max_runs=2)
    assert [None, "max_runs (2) is reached"] == [over(definition, planned, True) for planned in (1, 2)]
