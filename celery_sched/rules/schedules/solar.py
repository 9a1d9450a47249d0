"""``solar:sunset@52.52,13.40``: Celery's solar events at a place, through ephem.

The next event that ephem finds differs by fractions of a second with the instant it starts from, but an
occurrence is known by its instant, so every node must get the same one from wherever it looks. Therefore
time is cut at the sun's culminations, each worked out from the calendar alone; between two of them the sun
only rises or only sinks, and an event is the whole second nearest to its crossing the horizon. (Other
versions of ephem may place an event a second away: schedulers of one app should have the same.)
"""

from __future__ import annotations

import importlib
import math
import re
from dataclasses import dataclass
from datetime import UTC, datetime
from difflib import get_close_matches
from functools import lru_cache
from typing import Any, Literal

from celery_sched.errors import InvalidValue
from celery_sched.rules.schedules.base import as_utc
from celery_sched.rules.schedules.cronterms import LAST_YEAR
from celery_sched.rules.schedules.zones import DAY, instant_of, seconds_of

FORM = 'a solar schedule is "solar:EVENT@LATITUDE,LONGITUDE", for example "solar:sunset@52.52,13.40"'
_HALF = DAY // 2
# In 1970-2999 every event comes at least once a year at every latitude (at a pole exactly once): the bound
# only guarantees an end.
_MOST_HALVES = 2 * 800
_DUBLIN_EPOCH = 25567.5  # 1970-01-01T00:00Z in ephem's days
_END = seconds_of(datetime(LAST_YEAR, 12, 30, tzinfo=UTC))
_NUMBER = r"\s*([+-]?[0-9]+(?:\.[0-9]+)?)\s*"
_TEXT = re.compile(rf"([a-z_]+)\s*@{_NUMBER},{_NUMBER}", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class _Event:
    """``horizon`` in degrees; ``limb``: the sun's upper edge counts, not its centre."""

    way: Literal["up", "down", "noon"]
    horizon: float = 0.0
    limb: bool = False


# Horizons as in celery.schedules.solar: civil, nautical and astronomical twilight; 34' of refraction.
EVENTS = {
    "dawn_astronomical": _Event("up", -18),
    "dawn_nautical": _Event("up", -12),
    "dawn_civil": _Event("up", -6),
    "sunrise": _Event("up", -34 / 60, limb=True),
    "solar_noon": _Event("noon"),
    "sunset": _Event("down", -34 / 60, limb=True),
    "dusk_civil": _Event("down", -6),
    "dusk_nautical": _Event("down", -12),
    "dusk_astronomical": _Event("down", -18),
}


@dataclass(frozen=True, slots=True)
class Solar:
    """An event of the sun at a place in degrees, north and east positive. Made by ``solar``.

    Occurrences are whole seconds in the years 1970 to 2999. Where the sun stays up or down for weeks the
    next one comes after them.
    """

    text: str
    event: str
    latitude: float
    longitude: float
    kind: str = "solar"

    def next_after(self, instant: datetime) -> datetime | None:
        """The first occurrence strictly after ``instant``."""
        second = max(seconds_of(as_utc(instant)), -1)
        if second >= _END:
            return None
        first = self._half_of(second) - 1
        for half in range(first, first + _MOST_HALVES):
            found = self._occurrence(half)
            if found is not None and found > second:
                return instant_of(found)
        return None

    def latest_in(self, after: datetime, until: datetime) -> datetime | None:
        """The last occurrence in (after, until], or None."""
        start, end = self._span(after, until)
        for half in range(self._half_of(end) + 1, self._half_of(start) - 2, -1):
            found = self._occurrence(half)
            if found is not None and found <= end:
                return instant_of(found) if found > start else None
        return None

    def count_in(self, after: datetime, until: datetime) -> int:
        """How many occurrences lie in (after, until]."""
        start, end = self._span(after, until)
        if end <= start:
            return 0
        # Halves at both ends may lie partly outside; those between need not be worked out to be counted.
        first, last = self._half_of(start) + 2, self._half_of(end) - 2
        edges = {*range(first - 3, first), *range(max(last + 1, first), last + 4)}
        at_edges = sum(found is not None and start < found <= end for found in map(self._occurrence, edges))
        return at_edges + sum(self._has(half) for half in range(first, last + 1))

    def _span(self, after: datetime, until: datetime) -> tuple[int, int]:
        return (
            min(max(seconds_of(as_utc(after)), -1), _END),
            min(max(seconds_of(as_utc(until)), -1), _END),
        )

    def _half_of(self, second: int) -> int:
        """The half day around an instant by mean solar time; the true one is it or one beside it."""
        return math.floor((second + self.longitude / 360 * DAY) / _HALF)

    def _has(self, half: int) -> bool:
        event = EVENTS[self.event]
        if event.way == "noon":
            return half % 2 == 1
        here, there = (self._above(event, at) for at in (half, half + 1))
        return there and not here if event.way == "up" else here and not there

    def _above(self, event: _Event, half: int) -> bool:
        _, altitude, radius = _culmination(self.latitude, self.longitude, half)
        return altitude + (radius if event.limb else 0) >= math.radians(event.horizon)

    def _occurrence(self, half: int) -> int | None:
        """The event's whole second in that half day, or None."""
        return _crossing(self, half) if self._has(half) else None


@lru_cache(maxsize=16_384)
def _crossing(schedule: Solar, half: int) -> int:
    place = schedule.latitude, schedule.longitude
    event, low = EVENTS[schedule.event], _culmination(*place, half)[0]
    if event.way == "noon":
        return low
    high = _culmination(*place, half + 1)[0]
    horizon = math.radians(event.horizon)
    while high - low > 1:
        middle = (low + high) // 2
        # Half a second later, so that the second found is the nearest one, not the one after.
        altitude, radius, _ = _sun(*place, middle + 0.5)
        above = altitude + (radius if event.limb else 0) >= horizon
        if above == (event.way == "up"):
            high = middle
        else:
            low = middle
    return high


@lru_cache(maxsize=16_384)
def _culmination(latitude: float, longitude: float, half: int) -> tuple[int, float, float]:
    """When the half day begins (even: midnight, odd: noon), and the sun's altitude and radius then.

    From the mean time, at most 17 minutes away, by hour angle; the steps end far below a second.
    """
    at = half * _HALF - longitude / 360 * DAY
    target = math.pi if half % 2 == 0 else 0.0
    for _ in range(3):
        hour_angle = _sun(latitude, longitude, at)[2]
        at -= ((hour_angle - target + math.pi) % math.tau - math.pi) / math.tau * DAY
    second = round(at)
    altitude, radius, _ = _sun(latitude, longitude, second)
    return second, altitude, radius


def _sun(latitude: float, longitude: float, second: float) -> tuple[float, float, float]:
    """Altitude without refraction, radius and hour angle of the sun, in radians."""
    ephem: Any = importlib.import_module("ephem")
    place, sun = ephem.Observer(), ephem.Sun()
    place.lat, place.lon = math.radians(latitude), math.radians(longitude)
    place.elev, place.pressure = 0, 0
    place.date = _DUBLIN_EPOCH + second / DAY
    sun.compute(place)
    return float(sun.alt), float(sun.radius), float(place.sidereal_time() - sun.g_ra)


def solar(text: str, body: str) -> Solar:
    """Read ``EVENT@LAT,LON``, the rest of ``text``. Raises InvalidValue, also where ephem is missing."""
    match = _TEXT.fullmatch(body.strip())
    if match is None:
        raise InvalidValue("schedule", text, FORM, f"Events are {', '.join(EVENTS)}.")
    event, latitude, longitude = match[1].lower(), float(match[2]), float(match[3])
    if event not in EVENTS:
        near = get_close_matches(event, EVENTS, n=1)
        hint = f"Did you mean {near[0]}?" if near else ""
        raise InvalidValue("schedule", text, f"{event!r} is not one of {', '.join(EVENTS)}", hint)
    for name, value, most in (("latitude", latitude, 90), ("longitude", longitude, 180)):
        if abs(value) > most:
            hint = "Latitude comes first."
            raise InvalidValue("schedule", text, f"a {name} is -{most} to {most} degrees, not {value}", hint)
    try:
        importlib.import_module("ephem")
    except ImportError as error:
        hint = "Run: pip install 'celery_sched[solar]'"
        raise InvalidValue("schedule", text, "solar schedules need the package ephem", hint) from error
    return Solar(text, event, latitude, longitude)
