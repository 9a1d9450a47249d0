"""A second, slow reading of Quartz's expressions: each value and each date is asked whether a term allows it.

Shares nothing with celery_sched. Meaning: Quartz's CronTrigger tutorial and the tests of its CronExpression.
"""

from __future__ import annotations

import random
import re
from calendar import monthrange
from dataclasses import dataclass
from datetime import date
from functools import cached_property

MONTHS = ["JAN", "FEB", "MAR", "APR", "MAY", "JUN", "JUL", "AUG", "SEP", "OCT", "NOV", "DEC"]
WEEKDAYS = ["SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT"]


DAY_TERM = re.compile(r"L|LW|L-\d+W?|\d+W|(\d|[A-Z]{3})L|(\d|[A-Z]{3})#\d", re.IGNORECASE)


def number(word: str) -> int:
    for names in (MONTHS, WEEKDAYS):
        if word.upper() in names:
            return names.index(word.upper()) + 1
    return int(word)


def allows(field: str, value: int, low: int, high: int) -> bool:
    """Is the value one of those that the plain terms of a field allow?"""
    for term in field.split(","):
        span, _, step = term.partition("/")
        first, _, last = span.partition("-")
        if DAY_TERM.fullmatch(term):
            continue
        if span in ("*", "?"):
            if (value - low) % int(step or 1) == 0:
                return True
        elif last:
            # Counted from the beginning of the range, over the end of the field if it ends before it.
            place, length = ((n - number(first)) % (high - low + 1) for n in (value, number(last)))
            if place <= length and place % int(step or 1) == 0:
                return True
        elif step:
            if value >= number(first) and (value - number(first)) % int(step) == 0:
                return True
        elif value == number(first):
            return True
    return False


def day_term(term: str, day: date) -> bool:
    """Is ``day`` what L, L-n, LW, L-nW or nW mean in its month?"""
    length = monthrange(day.year, day.month)[1]
    if "L" in term:
        back = term.strip("LW").strip("-")
        target = length - int(back or 0)
    else:
        target = int(term.strip("W"))
    if target < 1:
        return False
    if "W" not in term:
        return day.day == target
    workdays = [n for n in range(1, length + 1) if day.replace(day=n).isoweekday() < 6]
    return day.day == min(workdays, key=lambda n: abs(n - target))


def weekday_term(term: str, day: date) -> bool:
    """Is ``day`` the k-th such weekday of its month (d#k), the last one (dL), or Saturday (L)?"""
    wanted, _, k = term.upper().partition("#")
    if wanted == "L":
        return day.isoweekday() == 6
    if number(wanted.removesuffix("L")) != day.isoweekday() % 7 + 1:
        return False
    nth = (day.day - 1) // 7 + 1
    return nth == int(k) if k else day.day + 7 > monthrange(day.year, day.month)[1]


@dataclass(frozen=True)
class Quartz:
    """Six fields, read on demand; ``text`` is without ``quartz:``."""

    text: str

    @cached_property
    def fields(self) -> list[str]:
        return self.text.split()

    def values(self, place: int, high: int) -> set[int]:
        return {value for value in range(high + 1) if allows(self.fields[place], value, 0, high)}

    @cached_property
    def seconds(self) -> set[int]:
        return self.values(0, 59)

    @cached_property
    def minutes(self) -> set[int]:
        return self.values(1, 59)

    @cached_property
    def hours(self) -> set[int]:
        return self.values(2, 23)

    def on_day(self, day: date) -> bool:
        dom, month, dow = self.fields[3:6]
        if not allows(month, day.month, 1, 12):
            return False
        if dom == "?":
            special = [term for term in dow.split(",") if DAY_TERM.fullmatch(term)]
            plain = allows(dow, day.isoweekday() % 7 + 1, 1, 7)
            return plain or any(weekday_term(term, day) for term in special)
        special = [term for term in dom.split(",") if DAY_TERM.fullmatch(term)]
        return allows(dom, day.day, 1, 31) or any(day_term(term, day) for term in special)

    def wildcard(self) -> bool:
        return any(field[0] == "*" or field.startswith("0/") for field in self.fields[1:3])


def random_field(dice: random.Random, low: int, high: int, names: list[str] | None = None) -> str:
    def value() -> str:
        chosen = dice.randint(low, high)
        return (
            dice.choice([str.upper, str.lower])(names[chosen - low])
            if names and dice.random() < 0.4
            else str(chosen)
        )

    def term() -> str:
        step = dice.randint(1, min(high, 9))
        steps = [f"*/{step}", f"{low}/{step}", f"{value()}/{step}"]
        spans = [f"{value()}-{value()}", f"{value()}-{value()}/{step}"]
        return dice.choice([value(), value(), *steps, *spans])

    if dice.random() < 0.2:
        return "*"
    return ",".join(term() for _ in range(dice.choice([1, 1, 1, 2])))


def random_quartz(dice: random.Random) -> str:
    """Six fields with every kind of term; the hours lean to the night, where clocks change."""
    second = dice.choice(["0", "0", "0", "30", "0/20", "5/25", "58-1", "*/30"])
    hour = dice.choice([random_field(dice, 0, 23), random_field(dice, 0, 4), "22-3", "*"])
    days = dice.choice(["* ?", "? *", "date", "weekday"])
    month = random_field(dice, 1, 12, MONTHS) if dice.random() < 0.2 else "*"
    day, weekday = days.split() if " " in days else ("?", "?")
    if days == "date":
        special = dice.choice(["L", "LW", f"L-{dice.randint(1, 30)}", f"L-{dice.randint(1, 9)}W"])
        special = dice.choice([special, f"{dice.randint(1, 31)}W"])
        day = dice.choice([random_field(dice, 1, 31), special, f"{dice.randint(1, 31)},{special}"])
    elif days == "weekday":
        one = dice.choice(["1", "2", "6", "7", "fri", "SUN"])
        special = dice.choice([f"{one}#{dice.randint(1, 5)}", f"{one}L", "L"])
        weekday = dice.choice(
            [random_field(dice, 1, 7, WEEKDAYS), special, "MON-FRI", "FRI-MON", f"3,{special}"]
        )
    return f"{second} {random_field(dice, 0, 59)} {hour} {day} {month} {weekday}"
