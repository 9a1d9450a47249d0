"""Hashed cron values: H spreads jobs and stays where it is."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from datetime import datetime, timedelta

import pytest

from celery_sched.errors import InvalidValue
from celery_sched.rules.schedules import between, count_in, parse


def at(text: str) -> datetime:
    return datetime.fromisoformat(text)


HASHED = [
    ("H H * * *", range(60), range(24)),
    ("H(10-20) H(1-5) * * *", range(10, 21), range(1, 6)),
]


@pytest.mark.parametrize(("text", "minutes", "hours"), HASHED)
def test_hashed_values_stay_in_their_range_and_spread(text: str, minutes: range, hours: range) -> None:
    """A17: a thousand names spread evenly over the allowed values and never leave them."""
    start = at("2026-01-01T00:00Z") - timedelta(seconds=1)
    found = [parse(text, name=f"job-{number}").next_after(start) for number in range(1000)]
    for allowed, seen in (
        (minutes, Counter(instant.minute for instant in found if instant)),
        (hours, Counter(instant.hour for instant in found if instant)),
    ):
        assert set(allowed) == set(seen)
        assert max(seen.values()) < 1000 / len(allowed) * 2.2


def test_hashed_steps_begin_at_a_hashed_value() -> None:
    """A17: H/15 keeps its pace from a start of its own; a step wider than its range leaves one value."""
    hour = timedelta(hours=1)
    start = at("2026-01-01T00:00Z") - timedelta(seconds=1)
    firsts = set()
    for number in range(100):
        quarters = between(parse("H/15 * * * *", name=f"job-{number}"), start, start + hour, 9)
        firsts.add(quarters[0].minute)
        assert [quarters[0].minute + 15 * place for place in range(4)] == [
            instant.minute for instant in quarters
        ]
        one = between(parse("H(1-5)/10 * * * *", name=f"job-{number}"), start, start + hour, 9)
        assert [True] == [1 <= instant.minute <= 5 for instant in one]
    assert set(range(15)) == firsts


def test_a_hashed_day_comes_every_month() -> None:
    """A bare H in the day-of-month field stays within 1-28, so no month is left out."""
    for number in range(100):
        schedule = parse("0 0 H * *", name=f"job-{number}")
        assert 12 == count_in(schedule, at("2025-12-31T12:00Z"), at("2026-12-31T12:00Z"))


def test_fields_are_hashed_apart() -> None:
    """Minute and second of a job differ somewhere: each field has a hash of its own."""
    start = at("2026-01-01T00:00Z")
    found = [parse("H * * * * H", name=f"job-{number}").next_after(start) for number in range(20)]
    assert any(instant is not None and instant.minute != instant.second for instant in found)


def test_hash_needs_a_name() -> None:
    """Without the job's name there is nothing to hash, and a guess would be shown as the truth."""
    with pytest.raises(InvalidValue, match="name"):
        parse("H * * * *")


def test_hashes_are_the_same_in_every_process() -> None:
    """A17: processes with other string hash seeds agree, and agree with the value written down here."""
    code = (
        "from celery_sched.rules.schedules import parse; from datetime import datetime, UTC;"
        "start = datetime(2026, 1, 1, tzinfo=UTC);"
        "print(*(parse('H H H * *', name=name).next_after(start) for name in 'ab'))"
    )
    found = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
            timeout=60,
        ).stdout.strip()
        for seed in ("0", "1", "42", "random")
    }
    assert {"2026-01-05 22:57:00+00:00 2026-01-09 03:43:00+00:00"} == found
