"""Cron in zones against a brute-force reading of the rule, on random expressions, zones and windows."""

from __future__ import annotations

import json
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from tests.unit.cron_compare import PAIRS, PARTS, TIMEOUT, compare
from tests.unit.cron_oracle import Expression, Window

CASES = json.loads((Path(__file__).parent / "data" / "schedules.json").read_text())


@pytest.mark.timeout(TIMEOUT)
@pytest.mark.parametrize("part", range(PARTS // 2))
def test_random_schedules_agree_with_the_oracle(part: int) -> None:
    """Random expression x zone pairs have exactly the instants that looking at every minute finds."""
    assert PAIRS // PARTS == compare(part)


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
    minutes = Window(str(case["tz"]), begin, 32).due(Expression(str(case["expr"])))
    due = [begin + timedelta(minutes=minute) for minute in minutes]
    assert instants == [instant for instant in due if instant > start][: len(instants)]
