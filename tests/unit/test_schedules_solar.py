"""`solar:` schedules: Celery's events, and the same instant from wherever one looks."""

from __future__ import annotations

import pickle
import sys
from datetime import UTC, datetime, timedelta
from itertools import pairwise

import pytest
from celery import Celery
from celery.schedules import solar as celery_solar
from hypothesis import given, settings
from hypothesis import strategies as st

from celery_sched.errors import InvalidValue
from celery_sched.rules.schedules import between, count_in, latest_in, parse
from celery_sched.rules.schedules.solar import EVENTS

SECOND = timedelta(seconds=1)
PLACES = {
    "Berlin": (52.52, 13.40),
    "Quito": (-0.18, -78.47),
    "Wellington": (-41.29, 174.78),
    "Apia": (-13.83, -171.77),
    "Anchorage": (61.22, -149.90),
    "Tromso": (69.65, 18.96),
}


def at(text: str) -> datetime:
    return datetime.fromisoformat(text)


def test_the_events_are_those_of_celery() -> None:
    """Each event that Celery knows exists here, and no other."""
    assert celery_solar._all_events == set(EVENTS)


def celery_next(event: str, place: tuple[float, float], after: datetime) -> datetime:
    """What Celery's own schedule says comes next after an instant."""
    schedule = celery_solar(event, *place, nowfun=lambda: after, app=Celery(set_as_current=False))
    return after + schedule.remaining_estimate(after)


@pytest.mark.parametrize("event", EVENTS)
@pytest.mark.parametrize("place", PLACES)
def test_same_instants_as_celery(event: str, place: str) -> None:
    """Over a year, polar day and night included, the instants are Celery's to the second."""
    schedule = parse("solar:{}@{},{}".format(event, *PLACES[place]))
    instant = at("2026-01-01T00:00Z")
    while instant < at("2027-01-01T00:00Z"):
        expected, found = celery_next(event, PLACES[place], instant), schedule.next_after(instant)
        assert found is not None
        # Rounding is half a second of it; ephem stops its own search a tenth of a second early.
        assert abs(expected - found) < SECOND * 0.7, instant
        instant = found + timedelta(days=9, hours=5)


@pytest.mark.parametrize("event", EVENTS)
@settings(max_examples=15, deadline=None)
@given(
    latitude=st.floats(-90, 90).map(lambda value: round(value, 2)),
    longitude=st.floats(-180, 180).map(lambda value: round(value, 2)),
    start=st.datetimes(datetime(1971, 1, 1), datetime(2200, 1, 1), timezones=st.just(UTC)),
    share=st.floats(0, 1),
)
def test_an_occurrence_is_the_same_instant_from_everywhere(
    event: str, latitude: float, longitude: float, start: datetime, share: float
) -> None:
    """Whole seconds, rising, and the identical one from any instant before it, to the last microsecond."""
    schedule = parse(f"solar:{event}@{latitude},{longitude}")
    first, second, third = between(schedule, start, start + timedelta(days=1500), 3)
    assert start < first < second < third
    assert [0, 0, 0] == [one.microsecond for one in (first, second, third)]
    tick = timedelta(microseconds=1)
    for place in (first, first + tick, first + SECOND, first + (second - first) * share, second - tick):
        if place < second:
            assert second == schedule.next_after(place)
            assert second == latest_in(schedule, place, second)
            assert 1 == count_in(schedule, place, second)
    assert third == schedule.next_after(second)
    assert first == latest_in(schedule, start, second - tick)


@pytest.mark.parametrize("event", ["sunrise", "dusk_astronomical", "solar_noon"])
@settings(max_examples=10, deadline=None)
@given(
    place=st.sampled_from([*PLACES.values(), (89.5, 0.0), (-90.0, 12.0), (66.56, 179.99)]),
    after=st.datetimes(datetime(2026, 1, 1), datetime(2027, 1, 1), timezones=st.just(UTC)),
    length=st.timedeltas(timedelta(0), timedelta(days=40)),
)
def test_spans_agree_with_the_list(
    event: str, place: tuple[float, float], after: datetime, length: timedelta
) -> None:
    """The list of a span rises inside (after, until]; latest_in and count_in are its end and length."""
    schedule, until = parse("solar:{}@{},{}".format(event, *place)), after + length
    found = between(schedule, after, until, 10**6)
    assert sorted(set(found)) == found
    assert all(after < instant <= until for instant in found)
    assert (found[-1] if found else None) == latest_in(schedule, after, until)
    assert len(found) == count_in(schedule, after, until)


def test_over_a_year_nothing_is_left_out() -> None:
    """Far from the polar circles each event comes every day, about a day after the last."""
    for event in ("sunrise", "solar_noon", "dusk_nautical"):
        schedule = parse(f"solar:{event}@-41.29,174.78")
        found = between(schedule, at("2026-01-01T00:00Z"), at("2027-01-01T00:00Z"), 1000)
        assert 365 == len(found) == count_in(schedule, at("2026-01-01T00:00Z"), at("2027-01-01T00:00Z"))
        steps = [later - earlier for earlier, later in pairwise(found)]
        assert timedelta(hours=23, minutes=55) < min(steps) <= max(steps) < timedelta(hours=24, minutes=5)


def test_polar_day_and_night() -> None:
    """Where the sun stays down or up, the next event comes weeks later; at a pole once a year."""
    tromso = parse("solar:sunrise@69.65,18.96")
    night = tromso.next_after(at("2026-12-05T00:00Z"))
    assert night is not None
    assert at("2027-01-10T00:00Z") < night < at("2027-01-20T00:00Z")
    assert latest_in(tromso, at("2026-12-05T00:00Z"), at("2027-01-05T00:00Z")) is None
    assert 0 == count_in(tromso, at("2026-12-05T00:00Z"), at("2027-01-05T00:00Z"))
    pole = parse("solar:sunset@90,0")
    found = between(pole, at("2026-01-01T00:00Z"), at("2029-01-01T00:00Z"), 10)
    assert [(2026, 9), (2027, 9), (2028, 9)] == [(one.year, one.month) for one in found]


def test_at_the_ends_of_time() -> None:
    """Far before and after the years of schedules there is an answer, not an error."""
    schedule = parse("solar:sunset@52.52,13.40", tz="Asia/Tokyo")
    assert schedule.next_after(datetime.max.replace(tzinfo=UTC)) is None
    first = schedule.next_after(datetime.min.replace(tzinfo=UTC))
    assert first is not None
    assert at("1970-01-01T00:00Z") < first < at("1970-01-02T00:00Z")
    assert 0 == count_in(schedule, datetime.max.replace(tzinfo=UTC), datetime.min.replace(tzinfo=UTC))
    assert latest_in(schedule, at("2026-03-02T00:00Z"), at("2026-03-01T00:00Z")) is None


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("solar:", "EVENT@LATITUDE,LONGITUDE"),
        ("solar:sunset", "solar_noon"),
        ("solar:sunset@52.52", "LONGITUDE"),
        ("solar:sunset@52,52,13,40", "LONGITUDE"),
        ("solar:sunset@north,13", "LONGITUDE"),
        ("solar:sunset@nan,13", "LONGITUDE"),
        ("solar:sundown@52.52,13.40", "'sundown' is not one of"),
        ("solar:sunsets@52.52,13.40", "Did you mean sunset"),
        ("solar:sunset@90.01,0", "latitude is -90 to 90 degrees, not 90.01"),
        ("solar:sunset@0,-180.5", "longitude is -180 to 180 degrees, not -180.5"),
    ],
)
def test_refused(text: str, says: str) -> None:
    """A bad event or place is refused with what is allowed."""
    with pytest.raises(InvalidValue, match=says) as refusal:
        parse(text)
    assert text in str(refusal.value)


def test_without_ephem(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where ephem is not installed the refusal says how to install it."""
    monkeypatch.setitem(sys.modules, "ephem", None)  # Python's own way to say: not importable
    with pytest.raises(InvalidValue, match=r"pip install 'celery_sched\[solar\]'"):
        parse("solar:sunset@52.52,13.40")


def test_text_and_pickle() -> None:
    """Case and blanks do not matter, the text is kept as typed, a pickled schedule answers the same."""
    schedule = parse(" Solar: SUNSET @ +52.52 , 13.40 ", tz="Asia/Tokyo")
    now = at("2026-03-01T12:00Z")
    assert ("Solar: SUNSET @ +52.52 , 13.40", "solar") == (schedule.text, schedule.kind)
    assert at("2026-03-01T16:45:14Z") == schedule.next_after(now)
    assert schedule.next_after(now) == pickle.loads(pickle.dumps(schedule)).next_after(now)
    with pytest.raises(InvalidValue, match="no time zone"):
        schedule.next_after(datetime(2026, 3, 1))
