"""What asking a schedule costs, compared with another question on the same machine."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from datetime import datetime, timedelta
from zoneinfo import ZoneInfo, available_timezones

import pytest

from celery_sched.errors import InvalidValue
from celery_sched.rules.schedules import count_in, latest_in, parse
from celery_sched.rules.schedules.zones import stretches
from tests.unit.cron_oracle import random_expression
from tests.unit.quartz_oracle import random_quartz


def at(text: str) -> datetime:
    return datetime.fromisoformat(text)


def test_a_year_of_minutes_is_counted_not_listed() -> None:
    """A24: after an outage of a year the last of 525,600 occurrences and their number cost about one look."""
    schedule = parse("* * * * *", tz="Europe/Berlin")
    start, end = at("2026-01-01T00:00:30Z"), at("2027-01-01T00:00:30Z")

    def question() -> None:
        assert 525_600 == count_in(schedule, start, end)
        assert at("2027-01-01T00:00Z") == latest_in(schedule, start, end)

    assert cost(question) < 600 * cost(lambda: schedule.next_after(start))


def test_a_night_of_minutes() -> None:
    """A24: 780 occurrences passed, the last at 07:00, the next at 07:01."""
    schedule, back = parse("* * * * *"), at("2026-02-02T07:00:30Z")
    assert 780 == count_in(schedule, at("2026-02-01T18:00Z"), back)
    assert at("2026-02-02T07:00Z") == latest_in(schedule, at("2026-02-01T18:00Z"), back)
    assert at("2026-02-02T07:01Z") == schedule.next_after(back)


@pytest.mark.parametrize(
    "text", ["0 0 29 2 *", "0 0 29 2 */7", "0 0 29 2 1#5", "59 23 31 12 */3 59 2090-2099/9"]
)
@pytest.mark.parametrize("tz", ["UTC", "America/New_York"])
def test_rare_dates_cost_little_more(text: str, tz: str) -> None:
    """The next instant of a rare date costs at most 20 times that of every minute."""
    start = at("2096-03-01T00:00Z") if "29 2" in text else at("2026-01-01T00:00Z")
    rare, minute = parse(text, tz=tz), parse("* * * * *", tz=tz)
    assert cost(lambda: rare.next_after(start)) < 20 * cost(lambda: minute.next_after(start))


@pytest.mark.parametrize(
    "text",
    [
        *["quartz:0 0 0 29 2 ?", "quartz:59 59 23 L-28 2 ? 2072-2099", "quartz:0 0 0 ? 2 1#5"],
        *["0 0 29 2 1", "0 0 31 */2 fri#5", "59 23 29 2 */3 59", "0 0 15W 2 sun#2,sat#3,mon#3"],
    ],
)
@pytest.mark.parametrize("tz", ["UTC", "America/New_York"])
def test_rare_dates_of_quartz_and_of_both_day_fields_cost_little_more(text: str, tz: str) -> None:
    """The same bound where fields are Quartz's, or both day fields must match: up to 40 years ahead."""
    start = at("2072-03-01T00:00Z")
    rare, minute = parse(text, tz=tz, day_mode="and"), parse("* * * * *", tz=tz)
    assert rare.next_after(start) is not None
    assert cost(lambda: rare.next_after(start)) < 20 * cost(lambda: minute.next_after(start))


def test_random_expressions_cost_little_more() -> None:
    """The bound holds whatever the fields of an expression; of a union for the sum of its parts."""
    dice, start = random.Random(3), at("2026-03-28T12:00Z")
    minute = parse("* * * * *", tz="Europe/Berlin")
    least = cost(lambda: minute.next_after(start))
    for _ in range(60):
        mode = dice.choice(["or", "and"])
        text = dice.choice([random_expression(dice), f"quartz:{random_quartz(dice)}"])
        try:
            schedule = parse(text, tz="Europe/Berlin", day_mode=mode)
        except InvalidValue:
            continue
        assert cost(lambda asked=schedule: asked.next_after(start)) < 20 * least, text  # type: ignore[misc]
    union = parse("0 0 29 2 * | quartz:0 0 0 29 2 ? | 0 0 1 1 *", tz="Europe/Berlin")
    assert cost(lambda: union.next_after(start)) < 3 * 20 * least


def cost(work: Callable[[], object]) -> float:
    """The least time of several turns, after one that fills caches: the machine is shared with others."""
    work()
    turns = []
    for _ in range(7):
        begin = time.perf_counter()
        for _ in range(20):
            work()
        turns.append(time.perf_counter() - begin)
    return min(turns)


def test_no_two_changes_of_a_zone_are_closer_than_three_days() -> None:
    """What finding changes by looking once a day rests on, held against the installed zone data, 1970-2040.

    Changes found with steps of some hours instead of a day must be the same.
    """
    dice = random.Random(7)
    for key in dice.sample(sorted(available_timezones()), 25):
        zone = ZoneInfo(key)
        begin, end = at("1970-01-02T00:00Z"), at("2040-01-01T00:00Z")
        found = list(stretches(zone, int(begin.timestamp()), int(end.timestamp())))
        offset, changes, now = begin.astimezone(zone).utcoffset(), 0, begin
        while now < end:
            now += timedelta(hours=5)
            if (other := now.astimezone(zone).utcoffset()) != offset:
                offset, changes = other, changes + 1
        assert changes == len(found) - 1, key
