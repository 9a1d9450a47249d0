"""Which files are new: what has stood still for long enough, what was known, what was away."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from hypothesis import given
from hypothesis import strategies as st

from celery_sched.rules.sightings import FORGET, Change, Merged, Sighting, Signature, first, merged

START = datetime(2030, 1, 1, tzinfo=UTC)
SETTLE = timedelta(seconds=5)


def look(
    before: dict[str, Sighting] | Merged | None,
    at: float,
    *,
    took: float = 0.0,
    most: int = 100,
    settle: timedelta = SETTLE,
    **found: Signature,
) -> Merged:
    known = before.sightings if isinstance(before, Merged) else before or {}
    began = START + timedelta(seconds=at)
    return merged(known, found, began, began + timedelta(seconds=took), settle, most)


def test_published_when_it_stood_still() -> None:
    """A new file is published once: at the first look that finds it unchanged for the settling time."""
    one = look(None, 0, a=(1, 10))
    assert ((), SETTLE) == (one.ready, one.wait)
    two = look(one, 4.9, a=(1, 10))
    assert ((), timedelta(seconds=0.1)) == (two.ready, two.wait)
    three = look(two, 5, a=(1, 10))
    assert ((("a", (1, 10), Change.NEW),), None) == (three.ready, three.wait)
    assert () == look(three, 100, a=(1, 10)).ready


def test_growing_file_is_not_published() -> None:
    """As long as size or time change between looks, the settling time begins anew."""
    seen: Merged | None = None
    for second in range(0, 60, 4):
        seen = look(seen, second, a=(1, second) if second < 30 else (second, 30))
        assert () == seen.ready
    assert (("a", (56, 30), Change.NEW),) == look(seen, 61, a=(56, 30)).ready


def test_slow_look_makes_nothing_older() -> None:
    """Standing still counts from the end of one look to the beginning of the next."""
    one = look(None, 0, took=10, a=(1, 1))
    assert () == look(one, 14, a=(1, 1)).ready
    assert 1 == len(look(one, 15, a=(1, 1)).ready)


def test_changed_file() -> None:
    """A known file is published as changed, after it has settled again."""
    one = look(first({"a": (1, 1)}), 0, a=(2, 1))
    assert () == one.ready
    assert (("a", (2, 1), Change.CHANGED),) == look(one, 5, a=(2, 1)).ready


def test_changed_and_changed_back() -> None:
    """A file that is again what was published is nothing new."""
    one = look(first({"a": (1, 1)}), 0, a=(2, 1))
    two = look(one, 5, a=(1, 1))
    assert ((), {"a": Sighting(known=(1, 1))}) == (two.ready, two.sightings)


def test_no_settling() -> None:
    """With a settling time of zero a file is published at first sight."""
    assert 1 == len(look(None, 0, settle=timedelta(0), a=(1, 1)).ready)


def test_away_for_a_while() -> None:
    """A folder that was away (a disk that was not mounted) brings back nothing new."""
    away = look(first({"a": (1, 1)}), 0)
    assert START == away.sightings["a"].gone_since
    back = look(look(away, 100), 200, a=(1, 1))
    assert ((), {"a": Sighting(known=(1, 1))}) == (back.ready, back.sightings)


def test_taken_away_and_written_anew() -> None:
    """A file of the same name, but not the same, is new after the old one was gone."""
    back = look(look(first({"a": (1, 1)}), 0), 10, a=(2, 1))
    assert (("a", (2, 1), Change.NEW),) == look(back, 15, a=(2, 1)).ready


def test_forgotten() -> None:
    """What is gone is forgotten in the end, and what never was published at once."""
    gone = look(first({"a": (1, 1)}), 0)
    day = FORGET.total_seconds()
    assert {"a"} == set(look(gone, day - 1).sightings)
    assert {} == look(gone, day).sightings
    assert {} == look(look(None, 0, a=(1, 1)), 1).sightings


def test_at_most_so_many() -> None:
    """The oldest come first; the rest is published by the next looks, without settling again."""
    found: dict[str, Signature] = {"c": (1, 1), "b": (2, 1), "a": (3, 1)}
    one = look(look(None, 0, **found), 5, most=2, **found)
    assert (["c", "b"], 1, None) == ([name for name, _, _ in one.ready], one.left, one.wait)
    two = look(one, 5, most=2, **found)
    assert ([("a", (3, 1), Change.NEW)], 0) == (list(two.ready), two.left)


@given(
    st.lists(
        st.tuples(st.integers(1, 8), st.dictionaries(st.sampled_from("abc"), st.integers(1, 2))), max_size=30
    )
)
def test_every_content_once(looks: list[tuple[int, dict[str, int]]]) -> None:
    """Whatever comes and goes: nothing is published twice in a row, and nothing that did not stand still."""
    known: dict[str, Sighting] = {}
    last: dict[str, int] = {}
    history: list[tuple[datetime, dict[str, int]]] = []
    now = START
    for step, found in looks:
        now += timedelta(seconds=step)
        history.append((now, found))
        after = merged(known, {name: (size, size) for name, size in found.items()}, now, now, SETTLE, 100)
        for name, (size, _), _ in after.ready:
            assert last.get(name) != size or any(at < now and name not in there for at, there in history), (
                "published twice"
            )
            last[name] = size
            still = [there.get(name) for at, there in history if now - SETTLE <= at]
            assert {size} == set(still)
            assert any(at <= now - SETTLE and there.get(name) == size for at, there in history)
        known = dict(after.sightings)
