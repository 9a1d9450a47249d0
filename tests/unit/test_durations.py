"""Durations as people write them."""

from __future__ import annotations

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from celery_sched.durations import LONGEST, format_duration, parse_duration
from celery_sched.errors import InvalidValue


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        ("90s", 90),
        ("5m", 300),
        ("1h30m", 5400),
        ("1h 30m", 5400),
        (" 1d ", 86400),
        ("2w", 1209600),
        ("1w2d3h4m5s6ms", 788645.006),
        ("1.5h", 5400),
        ("500ms", 0.5),
        ("0.1s", 0.1),
        ("PT5M", 300),
        ("pt1h30m", 5400),
        ("P1DT2H3.25S", 93603.25),
        ("P1W", 604800),
        ("45", 45),
        (45, 45),
        (0.25, 0.25),
        (timedelta(minutes=2), 120),
    ],
)
def test_forms(value: object, seconds: float) -> None:
    """Each written form is the number of seconds it says."""
    assert timedelta(seconds=seconds) == parse_duration(value, "grace")


@pytest.mark.parametrize(
    "value",
    [
        *[
            "",
            "  ",
            "5x",
            "5 minutes",
            "5M",
            "1m1h",
            "5m5m",
            "-5m",
            "+5m",
            "1e3",
            "1_0s",
            "٣s",
            "P",
            "PT",
            "P1Y",
        ],
        *["P1M", "P5", "1,5s", "5m.", "1 0m", "nan", "1h" + " " * 500 + "x", "9" * 400 + "s"],
        *[
            -1,
            -0.5,
            float("nan"),
            float("inf"),
            True,
            False,
            None,
            [5],
            b"5m",
            10**400,
            -(10**400),
            1e300,
            1e-9,
        ],
        *[timedelta(seconds=-1), timedelta.max, "101000d", "200000w", 0, "0s", "0", timedelta(0)],
    ],
)
def test_refused(value: object) -> None:
    """What is not a finite duration above zero is refused, naming the setting."""
    with pytest.raises(InvalidValue, match=r"^misfire_grace .* is refused: ") as refusal:
        parse_duration(value, "misfire_grace")
    assert value is refusal.value.value


def test_zero_on_request() -> None:
    """Zero is a duration where the caller allows it."""
    assert timedelta(0) == parse_duration("0s", "grace", allow_zero=True)
    assert timedelta(0) == parse_duration(0, "grace", allow_zero=True)


@pytest.mark.parametrize(
    ("duration", "text"),
    [
        (timedelta(0), "0s"),
        (timedelta(hours=1, minutes=30), "1h30m"),
        (timedelta(days=7), "7d"),
        (timedelta(seconds=90), "1m30s"),
        (timedelta(milliseconds=1500), "1.5s"),
        (timedelta(minutes=1, microseconds=1), "1m0.000001s"),
        (timedelta(seconds=-90), "-1m30s"),
    ],
)
def test_format(duration: timedelta, text: str) -> None:
    """A duration is shown in the largest units, without zero parts."""
    assert text == format_duration(duration)


@given(st.timedeltas(min_value=timedelta(0), max_value=LONGEST))
def test_format_is_read_back(duration: timedelta) -> None:
    """What format_duration writes, parse_duration reads as the same duration."""
    assert duration == parse_duration(format_duration(duration), "grace", allow_zero=True)
