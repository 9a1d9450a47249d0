"""Cron text that is refused, and what the refusal says."""

from __future__ import annotations

import pytest

from celery_sched.errors import InvalidValue
from celery_sched.rules.schedules import parse

REFUSED = [
    *[
        ("CRON_TZ=Asia/Tokyo 0 9 * * 1-5", r"schedule '0 9 \* \* 1-5': --tz Asia/Tokyo \(in code timezone="),
        ("TZ=UTC @daily | @hourly", "--tz UTC"),
    ],
    *[
        ("60 * * * *", "minute is 0-59"),
        ("* 24 * * *", "hour is 0-23"),
        ("* * 0 * *", "day-of-month is 1-31"),
    ],
    *[("* * 32 * *", "1-31"), ("* * * 13 *", "month is 1-12"), ("* * * 0 *", "1-12"), ("* * * * 8", "0-7")],
    *[
        ("* * * * * 60", "second is 0-59"),
        ("* * * * * 0 1969", "year is 1970"),
        ("* * * * * 0 9999", "year is"),
    ],
    *[
        ("58-2 * * * *", "backwards.*58-59,0-2"),
        ("* 22-4 * * *", "backwards"),
        ("* * * * fri-mon", "backwards"),
    ],
    *[("* * * dec-jan *", "backwards"), ("* * * * 7-3", "backwards"), ("H(5-1) * * * *", "backwards")],
    *[
        ("*/0 * * * *", "step"),
        ("1-5/0 * * * *", "step"),
        ("H/0 * * * *", "step"),
        ("5/15 * * * *", "5-59/15"),
    ],
    *[("0 0 30 2 *", "never occurs"), ("0 0 31 4,6,9,11 *", "never occurs"), ("0 0 29 2 * 0 2027", "never")],
    *[("0 0 31 2 */2", "never occurs"), ("0 0 29 2 * 0 2100", "never occurs")],
    *[
        ("0 0 0 ? * MON *", "Quartz"),
        ("0 0 ? * *", "Quartz"),
        ("@reboot", "reboots"),
        ("@fortnightly", "macros"),
    ],
    *[("R * * * *", "Write H"), ("R(1-5)/2 * * * *", "Write H"), ("H * * * * 0 H", "year cannot be hashed")],
    *[("* * * *", "this has 4"), ("* * * * * * * *", "this has 8"), ("0 0 L-3 * *", "not understood")],
    *[("0 0 * * L", "not understood"), ("0 0 * * 1#6", "1 to 5"), ("0 0 * * 1#0", "1 to 5")],
    *[("0 0 32W * *", "1-31"), ("0 0 1-5W * *", "not understood"), ("0 0 * * 1-5#1", "not understood")],
    *[("0 0 * 1L *", "not understood"), ("L * * * *", "not understood"), ("jan * * * *", "no minute")],
    *[("0 0 * january *", "not understood"), ("0 0 * foo *", "no month"), ("0 0 jan * *", "no day-of-month")],
    *[("1,,2 * * * *", "empty place"), (",1 * * * *", "empty place"), ("1, 2 * * *", "empty place")],
    *[
        ("**/2 * * * *", "not understood"),
        ("*/2/3 * * * *", "not understood"),
        ("*-5 * * * *", "not understood"),
    ],
    *[("-5 * * * *", "not understood"), ("+5 * * * *", "not understood"), ("1_0 * * * *", "not understood")],
    *[("1.5 * * * *", "not understood"), ("٣ * * * *", "not understood"), ("0x1 * * * *", "not understood")],
    *[("5-H * * * *", "not understood"), ("H-5 * * * *", "not understood"), ("*" * 1001, "1000 characters")],
]


@pytest.mark.parametrize(("text", "says"), REFUSED)
def test_refused(text: str, says: str) -> None:
    """What is not exactly understood, or never comes, is refused with what is wrong."""
    with pytest.raises(InvalidValue, match=says):
        parse(text, name="nightly")
