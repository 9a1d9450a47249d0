"""A second, slow reading of Debian cron's rule: look at every real minute of a window, one after the other.

Shares nothing with celery_sched: it reads the fields term by term and asks each date whether it matches.
Also makes the random expressions on which the two readings are compared (cron_compare.py).
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from functools import cached_property
from itertools import pairwise
from typing import Protocol
from zoneinfo import ZoneInfo

MINUTE = timedelta(minutes=1)
ONE_DAY = timedelta(days=1)
EPOCH_DAY = date(1970, 1, 1)
NAMES = {name: number for number, name in enumerate(["sun", "mon", "tue", "wed", "thu", "fri", "sat"])} | {
    name: number
    for number, name in enumerate(
        ["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"], 1
    )
}
BOUNDS = ((0, 59), (0, 23), (1, 31), (1, 12), (0, 7))


def number(word: str) -> int:
    return NAMES[word.lower()] if word.lower() in NAMES else int(word)


def values(field: str, low: int, high: int) -> set[int]:
    """R1, R2: the plain values of a field; day terms (L, W, #) are left out."""
    found: set[int] = set()
    for term in field.split(","):
        span, _, step = term.partition("/")
        first, _, last = span.partition("-")
        if "#" in term or (set(term.upper()) & set("LW") and term.lower() not in NAMES and "-" not in term):
            continue
        if span == "*":
            begin, end = low, high
        elif last:
            # R2, but R1 comes first: a-a is the single value a, also for sun-sun.
            begin = number(first)
            end = 7 if last.lower() == "sun" and first.lower() != "sun" else number(last)
        else:
            begin = end = number(first)
        found |= set(range(begin, end + 1, int(step or 1)))
    return found


def same_month(day: date, days: int) -> bool:
    return (day + timedelta(days=days)).month == day.month


def weekday(day: date) -> int:
    return day.isoweekday() % 7


def day_term(term: str, day: date) -> bool:
    """X1: is ``day`` what L, LW or nW mean in its month?"""
    workdays = [
        other
        for other in range(1, 32)
        if same_month(day.replace(day=1), other - 1) and 0 < weekday(day.replace(day=other)) < 6
    ]
    if term == "L":
        return not same_month(day, 1)
    if term == "LW":
        return day.day == workdays[-1]
    return day.day == min(workdays, key=lambda other: abs(other - int(term[:-1])))


def weekday_term(term: str, day: date) -> bool:
    """X2: is ``day`` the k-th such weekday of its month (d#k), or the last one (dL, Ld)?"""
    wanted, _, k = term.partition("#")
    if number(wanted.strip("L")) % 7 != weekday(day):
        return False
    return sum(same_month(day, -7 * weeks) for weeks in range(5)) == int(k) if k else not same_month(day, 7)


class Rule(Protocol):
    """What a window asks of an expression; also made by quartz_oracle.py."""

    @property
    def minutes(self) -> set[int]: ...
    @property
    def hours(self) -> set[int]: ...
    @property
    def seconds(self) -> set[int]: ...
    def on_day(self, day: date) -> bool: ...
    def wildcard(self) -> bool: ...


@dataclass(frozen=True)
class Expression:
    """Five fields, read on demand."""

    text: str
    day_mode: str = "or"
    seconds = frozenset({0})

    @cached_property
    def fields(self) -> list[str]:
        return self.text.split()

    @cached_property
    def plain(self) -> list[set[int]]:
        return [values(field, *bounds) for field, bounds in zip(self.fields, BOUNDS, strict=True)]

    @property
    def minutes(self) -> set[int]:
        return self.plain[0]

    @property
    def hours(self) -> set[int]:
        return self.plain[1]

    def on_day(self, day: date) -> bool:
        """R3: both day fields, or either if neither begins with a star and the mode is cron's."""
        if day.month not in self.plain[3]:
            return False
        dom, dow = self.fields[2], self.fields[4]
        by_date = day.day in self.plain[2] or any(
            day_term(term, day) for term in dom.split(",") if term[-1] in "LW"
        )
        by_weekday = weekday(day) in {value % 7 for value in self.plain[4]} or any(
            weekday_term(term, day) for term in dow.split(",") if "#" in term or "L" in term
        )
        if self.day_mode == "or" and "*" not in (dom[0], dow[0]):
            return by_date or by_weekday
        return by_date and by_weekday

    def wildcard(self) -> bool:
        return self.fields[0][0] == "*" or self.fields[1][0] == "*"


class Window:
    """Every real minute of start <= t < end in a zone, and a day before, with what its clock shows."""

    def __init__(self, zone: str, start: datetime, days: int) -> None:
        self.zone, self.start, self.end = zone, start, start + timedelta(days=days)
        self.first = start - ONE_DAY
        self.walls: list[int] = []  # minutes since 1970 on the local clock, by place
        self.places: dict[int, list[int]] = {}  # where a wall time comes: twice, if the clock goes back
        tz, begin = ZoneInfo(zone), int(self.first.timestamp()) // 60

        def offset(place: int) -> int:
            found = datetime.fromtimestamp((begin + place) * 60, tz).utcoffset()
            assert found is not None
            return found // MINUTE

        for hour in range(0, (self.end - self.first) // MINUTE, 60):
            # No zone changes twice within an hour: where both ends agree the minutes between do too.
            same = offset(hour) == offset(hour + 60)
            shown = [offset(hour)] * 60 if same else [offset(hour + minute) for minute in range(60)]
            self.walls += [begin + hour + minute + shown[minute] for minute in range(60)]
        for place, wall in enumerate(self.walls):
            self.places.setdefault(wall, []).append(place)
        jumps = enumerate(pairwise(self.walls), 1)
        self.jumps = [place for place, (before, wall) in jumps if wall - before != 1]
        self.changes = [self.first + place * MINUTE for place in self.jumps]
        self.days = {wall // 1440 for wall in self.walls}

    def due(self, rule: Rule, *, literal: bool = False) -> list[int]:
        """The real minutes since the start at which the rule is due, by R5 and R6 (or in the literal way)."""
        near = {day + by for day in self.days for by in (-1, 0, 1)}
        on_days = {day for day in near if rule.on_day(EPOCH_DAY + timedelta(days=day))}
        times = [
            minute for minute in range(1440) if minute % 60 in rule.minutes and minute // 60 in rule.hours
        ]
        walls = {day * 1440 + time for day in on_days for time in times}
        found = {place for wall in walls for place in self.places.get(wall, ())}
        if literal or not rule.wildcard():
            self._change_clocks(found, walls, literal)
        before = (self.start - self.first) // MINUTE
        return sorted(place - before for place in found if place >= before)

    def _change_clocks(self, found: set[int], allowed: set[int], literal: bool) -> None:
        seen: set[int] = set()
        for place, stop in pairwise([*self.jumps, len(self.walls)]):
            before, wall = self.walls[place - 1], self.walls[place]
            jump = wall - before - 1
            if jump < 0 and (literal or jump > -180):  # R6b
                seen |= set(range(wall, before + 1))
            elif abs(jump) >= 180 and not literal:  # R6c
                seen.clear()
            elif jump > 0 and not literal and any(minute in allowed for minute in range(before + 1, wall)):
                found.add(place)  # R6a
            found -= {again for again in range(place, stop) if self.walls[again] in seen}


def changes_of(zone: str, first: int, last: int) -> list[datetime]:
    """Days (UTC) on which the zone's offset changes, from the year ``first`` to before ``last``."""
    tz, day, found = ZoneInfo(zone), datetime(first, 1, 1, tzinfo=UTC), []
    while day.year < last:
        following = day + ONE_DAY
        if day.astimezone(tz).utcoffset() != following.astimezone(tz).utcoffset():
            found.append(day)
        day = following
    return found


def random_field(dice: random.Random, low: int, high: int, names: list[str] | None = None) -> str:
    def value(at_least: int = low) -> tuple[int, str]:
        chosen = dice.randint(at_least, high)
        named = names is not None and chosen - low < len(names) and dice.random() < 0.4
        return chosen, dice.choice([str.upper, str.lower])(names[chosen - low]) if named and names else str(
            chosen
        )

    def term() -> str:
        match dice.randrange(6):
            case 0 | 1 | 2:
                return value()[1]
            case 3:
                return f"*/{dice.randint(1, high + 2)}"
            case _:
                first, text = value()
                step = dice.choice(["", "", f"/{dice.randint(1, 9)}"])
                return f"{text}-{value(first)[1]}{step}"

    if dice.random() < 0.2:
        return "*"
    return ",".join(term() for _ in range(dice.choice([1, 1, 1, 2, 3])))


def random_expression(dice: random.Random) -> str:
    """A five-field expression with every kind of term; its hours lean to the night, where clocks change."""
    minute = random_field(dice, 0, 59)
    hour = dice.choice([random_field(dice, 0, 23), random_field(dice, 0, 4), "*"])
    day, month, dow = "*", "*", "*"
    if dice.random() < 0.4:
        special = dice.choice(["L", "LW", f"{dice.randint(1, 31)}W"])
        day = dice.choice([random_field(dice, 1, 31), special, f"{special},{random_field(dice, 1, 31)}"])
    if dice.random() < 0.2:
        month = random_field(dice, 1, 12, list(NAMES)[7:])
    if dice.random() < 0.4:
        one = dice.choice(["0", "1", "5", "7", "sun", "WED", "sat"])
        special = dice.choice([f"{one}#{dice.randint(1, 5)}", f"{one}L", f"L{one}"])
        plain = random_field(dice, 0, 7, list(NAMES)[:7])
        dow = dice.choice([plain, special, f"{special},{plain}", "sat-sun", "sun-thu"])
    return f"{minute} {hour} {day} {month} {dow}"
