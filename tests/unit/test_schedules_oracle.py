"""Cron in zones against a brute-force reading of the rule, on random expressions, zones and windows."""

from __future__ import annotations

import json
import os
import random
from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path
from zoneinfo import available_timezones

import pytest

from celery_sched.errors import InvalidValue
from celery_sched.rules.schedules import between, count_in, latest_in, parse
from tests.unit.cron_oracle import Window, changes_of, random_expression

# 10,000 pairs are the full measurement; each pair is looked at in two windows.
PAIRS = int(os.environ.get("SCHED_CRON_PAIRS", "300"))
SEED = int(os.environ.get("SCHED_CRON_SEED", "20000101"))
DAYS = int(os.environ.get("SCHED_CRON_DAYS", "90"))
PAIRS_A_ZONE = 10
# A list longer than this is compared instant by instant in the day before and after each clock change, and
# by the number of instants on every other day.
DENSE = 1500
ONE_DAY = timedelta(days=1)
CASES = json.loads((Path(__file__).parent / "data" / "schedules.json").read_text())


def windows_of(dice: random.Random, zone: str) -> list[Window]:
    """One window around a change of the zone's clock, if it has one, and one anywhere, 2000-2040."""
    anywhere = datetime(2000, 1, 1, tzinfo=UTC) + timedelta(minutes=dice.randrange(40 * 365 * 1440))
    starts = [anywhere]
    if changes := changes_of(zone, 2000, 2041):
        before = timedelta(minutes=dice.randrange(1440, (DAYS - 2) * 1440))
        starts.append(dice.choice(changes) - before)
    return [Window(zone, start, DAYS) for start in starts]


def check(text: str, window: Window, dst: str) -> None:
    """The schedule and the oracle agree on the whole list, its last instant and its length."""
    expected = window.due(text, literal=dst == "literal")
    before, last = window.start - timedelta(seconds=1), window.end - timedelta(seconds=1)
    try:
        schedule = parse(text, tz=window.zone, dst=dst)
    except InvalidValue as error:
        assert "never occurs" in str(error)
        assert [] == expected
        return
    where = f"{text!r} in {window.zone}, {window.start} + {DAYS} days, {dst}"
    assert len(expected) == count_in(schedule, before, last), where
    assert (expected[-1] if expected else None) == latest_in(schedule, before, last), where
    if len(expected) <= DENSE:
        assert expected == between(schedule, before, last, len(expected) + 1), where
        return
    days = Counter((instant - window.start) // ONE_DAY for instant in expected)
    for day in range(DAYS):
        begin = before + day * ONE_DAY
        assert days[day] == count_in(schedule, begin, begin + ONE_DAY), f"{where}: day {day}"
    for change in window.changes or [window.start + 2 * ONE_DAY]:
        near = [instant for instant in expected if abs(instant - change) < ONE_DAY]
        found = between(schedule, near[0] - timedelta(seconds=1), near[-1], len(near) + 1) if near else []
        assert near == found, f"{where}: near {change}"


@pytest.mark.timeout(120 + PAIRS)
def test_random_expressions_agree_with_the_oracle() -> None:
    """Random expression x zone pairs have exactly the instants that looking at every minute finds."""
    dice = random.Random(SEED)
    zones = sorted(available_timezones() - {"localtime"})
    changing = [zone for zone in zones if changes_of(zone, 2015, 2017)]
    left = PAIRS
    while left > 0:
        windows = windows_of(dice, dice.choice(changing if dice.random() < 0.7 else zones))
        for _ in range(min(left, PAIRS_A_ZONE)):
            text = random_expression(dice)
            dst = "literal" if dice.random() < 0.15 else "vixie"
            for window in windows:
                check(text, window, dst)
        left -= PAIRS_A_ZONE


@pytest.mark.parametrize(
    "case", [case for case in CASES if len(case["expr"].split()) == 5], ids=lambda c: c["id"]
)
def test_oracle_agrees_with_the_cases(case: dict[str, object]) -> None:
    """The oracle is right about every five-field case whose instants all lie within a month."""
    start = datetime.fromisoformat(str(case["start_utc"]))
    expected = case["expected_utc"]
    assert isinstance(expected, list)
    instants = [datetime.fromisoformat(text) for text in expected]
    if not instants or instants[-1] - start > timedelta(days=31):
        return
    begin = start.replace(second=0, microsecond=0)
    due = Window(str(case["tz"]), begin, 32).due(str(case["expr"]))
    assert instants == [instant for instant in due if instant > start][: len(instants)]
