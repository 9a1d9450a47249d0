"""Which rows are new: each once, also those that are committed after higher ones, and none is passed over."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from hypothesis import given
from hypothesis import strategies as st

from celery_sched.rules.newrows import Advanced, Found, Place, Published, advanced, duplicate

START = datetime(2030, 1, 1, tzinfo=UTC)
BACK = timedelta(seconds=60)


def at(seconds: float) -> datetime:
    return START + timedelta(seconds=seconds)


def look(place: Place, seconds: float, *values: int, most: int = 100) -> Advanced:
    """A look at a table with these values, which are their own identities."""
    there = sorted(value for value in values if place.floor is None or value >= place.floor)
    rows = [Found(str(value), value) for value in there[: len(place.recent) + most + 1]]
    return advanced(place, rows, at(seconds), at(seconds), BACK, most)


def new(found: Advanced, *values: int, place: Place) -> list[int]:
    there = sorted(value for value in values if place.floor is None or value >= place.floor)
    return [there[number] for number in found.new]


def test_each_once() -> None:
    """A row is new at the first look that finds it, and not again."""
    one = look(Place(None), 0, 1, 2)
    assert (0, 1) == one.new
    assert () == look(one.place, 10, 1, 2).new
    assert (2,) == look(one.place, 10, 1, 2, 3).new


def test_late_row() -> None:
    """A row that is committed after a higher one is found, as long as the cursor stays behind."""
    one = look(Place(None), 0, 1, 3)
    assert [2] == new(look(one.place, 59, 1, 2, 3), 1, 2, 3, place=one.place)


def test_cursor_moves_on() -> None:
    """In time the place moves to the highest row that is old enough, and forgets what is below."""
    one = look(Place(None), 0, 1, 2)
    two = look(one.place, 30, 1, 2, 3)
    assert (None, 3) == (two.place.floor, len(two.place.recent))
    three = look(two.place, 60, 1, 2, 3)
    assert Place(2, (Published("2", 2, at(0)), Published("3", 3, at(30)))) == three.place


def test_slow_look() -> None:
    """A row may have become visible during a look: its time counts from the end of it."""
    rows = [Found("1", 1)]
    one = advanced(Place(None), rows, at(0), at(20), BACK, 10)
    assert None is advanced(one.place, rows, at(79), at(99), BACK, 10).place.floor
    assert 1 == advanced(one.place, rows, at(80), at(99), BACK, 10).place.floor


def test_rows_with_the_same_value() -> None:
    """Of rows that share the cursor's value, the published ones stay remembered while it stands there."""
    rows = [Found("a", 7), Found("b", 7)]
    one = advanced(Place(None), rows, at(0), at(0), BACK, 10)
    two = advanced(one.place, [*rows, Found("c", 7)], at(100), at(100), BACK, 10)
    assert ((2,), 7) == (two.new, two.place.floor)
    assert () == advanced(two.place, [*rows, Found("c", 7)], at(300), at(300), BACK, 10).new


def test_at_most_so_many() -> None:
    """What one look leaves is published by the next, once."""
    one = look(Place(None), 0, 1, 2, 3, most=2)
    assert ((0, 1), True) == (one.new, one.left)
    two = look(one.place, 1, 1, 2, 3, most=2)
    assert ((2,), False) == (two.new, two.left)


def test_copy_that_is_behind() -> None:
    """A row that is not there for a look (a copy of the database that is behind) is not new afterwards."""
    one = look(Place(None), 0, 1, 2)
    two = look(one.place, 10, 1)
    assert () == look(two.place, 20, 1, 2).new


def test_duplicate() -> None:
    """Two rows with one identity are named."""
    assert ("x", None) == (
        duplicate([Found("x", 1), Found("y", 1), Found("x", 2)]),
        duplicate([Found("x", 1), Found("y", 1)]),
    )


@given(
    st.lists(st.integers(0, 59), min_size=1, max_size=25),
    st.lists(st.integers(1, 40), min_size=1, max_size=40),
    st.integers(1, 4),
)
def test_none_lost_none_twice(delays: list[int], steps: list[int], most: int) -> None:
    """Rows get numbers in order and become visible up to look_back later: each is published exactly once."""
    visible_at = {number: number + delay for number, delay in enumerate(delays)}  # one number a second
    published: list[int] = []
    place, second = Place(None), 0
    for step in [*steps, *[30] * (len(delays) + 5)]:
        second += step
        there = [number for number, since in visible_at.items() if since <= second]
        found = look(place, second, *there, most=most)
        published += new(found, *there, place=place)
        place = found.place
    assert sorted(visible_at) == sorted(published)
    assert len(place.recent) <= len(delays)
