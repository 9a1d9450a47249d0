"""Random schedules x zones: what parse makes of them against what looking at every minute finds."""

from __future__ import annotations

import os
import random
from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from functools import cache
from zoneinfo import available_timezones

from celery_sched.errors import InvalidValue
from celery_sched.rules.schedules import between, count_in, latest_in, parse
from tests.unit.cron_oracle import Expression, Rule, Window, changes_of, random_expression
from tests.unit.quartz_oracle import Quartz, random_quartz

# 10,000 pairs are the full measurement; each pair is looked at in two windows.
PAIRS = int(os.environ.get("SCHED_CRON_PAIRS", "1000"))
SEED = int(os.environ.get("SCHED_CRON_SEED", "20000101"))
DAYS = int(os.environ.get("SCHED_CRON_DAYS", "90"))
PARTS = 10
"""Into so many tests the pairs are split, half of them in each of two files, which run side by side."""
TIMEOUT = 120 + PAIRS // PARTS * 2
PAIRS_A_ZONE = 10
# A list longer than this is compared instant by instant in the day before and after each clock change, and
# by the number of instants on every other day.
DENSE = 1500
DAY = 86_400
SECOND = timedelta(seconds=1)


@cache
def zones() -> tuple[list[str], list[str]]:
    """All zones, and those whose clocks change."""
    known = sorted(available_timezones() - {"localtime"})
    return known, [zone for zone in known if changes_of(zone, 2015, 2017)]


def windows_of(dice: random.Random, zone: str) -> list[Window]:
    """One window around a change of the zone's clock, if it has one, and one anywhere, 2000-2040."""
    anywhere = datetime(2000, 1, 1, tzinfo=UTC) + timedelta(minutes=dice.randrange(40 * 365 * 1440))
    starts = [anywhere]
    if changes := changes_of(zone, 2000, 2041):
        before = timedelta(minutes=dice.randrange(1440, (DAYS - 2) * 1440))
        starts.append(dice.choice(changes) - before)
    return [Window(zone, start, DAYS) for start in starts]


def random_schedule(dice: random.Random, day_mode: str) -> tuple[str, list[Rule]]:
    """A text and the rules that it joins: mostly one, now and then a union of some."""
    texts: list[str] = []
    rules: list[Rule] = []
    for _ in range(dice.choice([1] * 8 + [2, 3])):
        if dice.random() < 0.2:
            quartz = random_quartz(dice)
            texts.append(f"quartz:{quartz}")
            rules.append(Quartz(quartz))
        else:
            texts.append(random_expression(dice))
            rules.append(Expression(texts[-1], day_mode))
    return dice.choice([" | ", "|"]).join(texts), rules


def check(text: str, rules: Sequence[Rule], window: Window, dst: str, day_mode: str) -> None:
    """The schedule and the oracle agree on the whole list, its last instant and its length."""
    seconds = sorted(
        {
            minute * 60 + second
            for rule in rules
            for minute in window.due(rule, literal=dst == "literal")
            for second in rule.seconds
        }
    )

    def at(second: int) -> datetime:
        return window.start + second * SECOND

    before, last = window.start - SECOND, window.end - SECOND
    try:
        schedule = parse(text, tz=window.zone, dst=dst, day_mode=day_mode)
    except InvalidValue as error:
        assert "never occurs" in str(error)
        assert len(rules) > 1 or [] == seconds
        return
    where = f"{text!r} in {window.zone}, {window.start} + {DAYS} days, {dst}, {day_mode}"
    assert len(seconds) == count_in(schedule, before, last), where
    assert (at(seconds[-1]) if seconds else None) == latest_in(schedule, before, last), where
    if len(seconds) <= DENSE:
        assert [at(second) for second in seconds] == between(schedule, before, last, len(seconds) + 1), where
        return
    days = Counter(second // DAY for second in seconds)
    for day in range(DAYS):
        begin = before + day * DAY * SECOND
        assert days[day] == count_in(schedule, begin, begin + DAY * SECOND), f"{where}: day {day}"
    for change in window.changes or [window.start + 2 * DAY * SECOND]:
        place = (change - window.start) // SECOND
        near = [second for second in seconds if abs(second - place) < DAY]
        if len(near) > 2 * DENSE:  # every other second or so: the hours around the change have to do
            near = [second for second in near if abs(second - place) < DAY / 12]
        expected = [at(second) for second in near]
        found = between(schedule, expected[0] - SECOND, expected[-1], len(near) + 1) if near else []
        assert expected == found, f"{where}: near {change}"


def compare(part: int) -> int:
    """Check one part of the pairs; how many they were."""
    dice = random.Random(SEED + part)
    known, changing = zones()
    pairs = PAIRS // PARTS
    for done in range(0, pairs, PAIRS_A_ZONE):
        windows = windows_of(dice, dice.choice(changing if dice.random() < 0.7 else known))
        for _ in range(min(pairs - done, PAIRS_A_ZONE)):
            dst = "literal" if dice.random() < 0.2 else "vixie"
            day_mode = "and" if dice.random() < 0.2 else "or"
            text, rules = random_schedule(dice, day_mode)
            for window in windows:
                check(text, rules, window, dst, day_mode)
    return pairs
