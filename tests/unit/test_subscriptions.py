"""What a job may subscribe to, in each form, which events it wants, and which of those that wait go now."""

from __future__ import annotations

import re
from collections import Counter
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from celery_sched.errors import InvalidValue
from celery_sched.model import JobDefinition
from celery_sched.rules.definition import checked
from celery_sched.rules.gathering import Gathering, Pending, gather
from celery_sched.rules.subscriptions import Deliver, Mode, Subscription, as_json, canonical, read
from celery_sched.rules.topics import matches, pattern, topic

NOW = datetime(2026, 1, 1, tzinfo=UTC)
PART = st.text("ab1_:-", min_size=1, max_size=3)
NAME = st.lists(PART, min_size=1, max_size=4).map(".".join)


@pytest.mark.parametrize(
    ("wanted", "name", "expected"),
    [
        ("orders.new", "orders.new", True),
        ("orders.new", "orders.news", False),
        ("orders.*", "orders.new", True),
        ("orders.*", "orders.new.eu", True),
        ("orders.*", "orders", False),
        ("orders.*", "ordersx.new", False),
        ("orders.*", "orders.", False),
        ("*.failed", "orders.failed", True),
        ("*.failed", "orders.eu.failed", False),
        ("a.*.c", "a.b.c", True),
        ("a.*.c", "a.b.b.c", False),
        ("a.*.*", "a.b.c.d", True),
        ("a.*.*", "a.b", False),
        ("*", "anything.at.all", True),
        ("a:b.*", "a:b.c", True),
        ("a-b", "aXb", False),
    ],
)
def test_which_topics_a_pattern_stands_for(wanted: str, name: str, expected: bool) -> None:
    """``*`` is one part; as the last part it is one or more."""
    assert expected is matches(wanted, name)


@given(NAME, st.data())
def test_a_part_may_always_be_left_open(name: str, data: st.DataObject) -> None:
    """A name matches itself, and itself with any of its parts, or its end, replaced by ``*``."""
    parts = name.split(".")
    at = data.draw(st.integers(0, len(parts) - 1))
    assert matches(name, topic(name))
    assert matches(pattern(".".join([*parts[:at], "*", *parts[at + 1 :]]), "on"), name)
    assert matches(".".join([*parts[:at], "*"]), name)
    assert not matches(f"{name}.*", name)


@pytest.mark.parametrize(
    "value", ["", ".", "a.", ".a", "a..b", "a b", "ä", "a.*", "*", "x" * 201, None, 5, ["a"]]
)
def test_what_is_no_topic(value: Any) -> None:
    """Empty parts, other letters, patterns and what is no text are refused."""
    with pytest.raises(InvalidValue, match="parts of letters"):
        topic(value)


def test_every_form_has_one_form() -> None:
    """A text, a list and a mapping are the same subscription; what is as usual is left out."""
    assert {"topics": ["a"]} == canonical("a") == canonical(["a", "a"]) == canonical({"topics": "a"})
    full = {
        "topics": ("a", "b.*"),
        "mode": "any",
        "where": {"x": 1, "y.z": ("a", None)},
        "deliver": "batch",
        "debounce": 5,
        "size": 10,
        "within": "90s",
        "start": "beginning",
    }
    form = canonical(full)
    assert {
        "topics": ["a", "b.*"],
        "where": {"x": 1, "y.z": ["a", None]},
        "deliver": "batch",
        "debounce": "5s",
        "size": 10,
        "within": "1m30s",
        "start": "beginning",
    } == form
    assert form == canonical(form)
    assert None is canonical(None)


def test_what_is_usual() -> None:
    """A debounce is of the latest; a batch has a size and a longest wait."""
    assert {"topics": ["a"], "deliver": "latest", "debounce": "5s"} == canonical(
        {"topics": "a", "debounce": 5}
    )
    batch = {"topics": ["a"], "deliver": "batch", "size": 100, "within": "5s"}
    assert batch == canonical({"topics": "a", "deliver": "batch"})


@pytest.mark.parametrize(
    ("value", "what", "allowed"),
    [
        (5, "on 5", "a topic"),
        ([], "on []", "1 to 20 topics"),
        ("a b", "on 'a b'", "parts of letters"),
        ({}, "on {}", 'it must have "topics"'),
        ({"topics": []}, "on.topics", "1 to 20"),
        ({"topics": ["a"] * 21}, "on.topics", "1 to 20"),
        ({"topic": "a"}, "on: field 'topic'", "Did you mean topics?"),
        ({"topics": "a", "mode": "some"}, "on.mode", "one of any, all"),
        ({"topics": "a", "mode": "all"}, "on.mode", "two topics or more"),
        ({"topics": ["a", "b"], "mode": "all", "deliver": "batch"}, "on.deliver", "as soon as all are there"),
        ({"topics": ["a", "b"], "mode": "all", "debounce": 5}, "on.debounce", "as soon as all are there"),
        ({"topics": "a", "where": "x"}, "on.where", "fields of the payload"),
        ({"topics": "a", "where": {"x": {}}}, "on.where.x", "a text, number"),
        ({"topics": "a", "where": {"x": []}}, "on.where.x", "a list of them"),
        ({"topics": "a", "where": {5: 1}}, "a field of on.where", "1 to 200"),
        ({"topics": "a", "where": {"x": float("nan")}}, "on.where.x", "finite"),
        ({"topics": "a", "deliver": "last"}, "on.deliver", "one of each, latest, batch"),
        ({"topics": "a", "deliver": "each", "debounce": 5}, "on.debounce", "latest, or batch"),
        ({"topics": "a", "debounce": 0}, "on.debounce", "longer than zero"),
        ({"topics": "a", "size": 5}, "on.size", "with deliver batch"),
        ({"topics": "a", "deliver": "batch", "size": 1001}, "on.size", "1 to 1000"),
        ({"topics": "a", "within": 5}, "on.within", "with deliver batch, or debounce"),
        ({"topics": "a", "start": "yesterday"}, "on.start", "now, or beginning"),
    ],
)
def test_what_is_refused(value: Any, what: str, allowed: str) -> None:
    """The field is named, and what is allowed is said."""
    with pytest.raises(InvalidValue) as caught:
        read(value)
    assert (True, True) == (what in str(caught.value), allowed in str(caught.value)), caught.value


def test_what_holds_for_a_job_with_events() -> None:
    """It needs no schedule, and is tried again five times; what it says itself holds; it replaces nothing."""
    made = checked(name="a", task="t", on="orders.*")
    assert ("none", 5, {"topics": ["orders.*"]}) == (made.schedule, made.retries, made.on)
    made = checked(name="a", task="t", on="orders.*", retries=0, schedule="@daily")
    assert ("@daily", 0) == (made.schedule, made.retries)
    assert 0 == checked(name="a", task="t", schedule="@daily").retries == JobDefinition("a", "t", "").retries
    with pytest.raises(InvalidValue, match="each would stop the run of the one before"):
        checked(name="a", task="t", on="orders.*", overlap="replace")
    with pytest.raises(InvalidValue, match="Or give the events"):
        checked(name="a", task="t")
    with pytest.raises(InvalidValue, match=re.escape("publishes 'a.*' is refused")):
        checked(name="a", task="t", on="orders.*", publishes="a.*")


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 3) | st.sampled_from("abc"),
    lambda inner: st.dictionaries(st.sampled_from(["a", "b", "a.b"]), inner, max_size=3) | st.lists(inner),
    max_leaves=8,
)


@given(JSON, st.sampled_from(["a", "b", "a.b", "b.a", "a.b.a"]), st.lists(JSON, min_size=1, max_size=3))
def test_a_filter_finds_what_is_there(payload: Any, path: str, allowed: list[Any]) -> None:
    """It matches when some reading of the path leads to one of the values, and raises nothing."""
    scalars = [one for one in allowed if not isinstance(one, list | dict)]
    found = Subscription(("t",), where={path: tuple(scalars)}).wants("t", payload)
    assert found is any(
        type(value) is type(one) and value == one for value in _all_at(payload, path) for one in scalars
    )


def _all_at(payload: Any, path: str) -> list[Any]:
    """The value that counts: of the longest key at each step that leads to something."""
    if not isinstance(payload, dict):
        return []
    for first, rest in [(path, ""), ("a.b", path[4:]), (path[:1], path[2:])]:
        if first in payload and (first == path or path.startswith(first + ".")):
            if first == path:
                return [payload[first]]
            found = _all_at(payload[first], rest)
            if found:
                return found
    return []


# What goes now


def waiting(*which: tuple[str, str | None, float]) -> list[Pending]:
    """Deliveries: topic, key, and how many seconds ago they were made; by event."""
    return [
        Pending(f"d{at}", at, name, key, NOW - timedelta(seconds=ago))
        for at, (name, key, ago) in enumerate(which)
    ]


def ids(gathering: Gathering) -> list[list[int]]:
    return [[one.event_id for one in bundle.carried] for bundle in gathering.bundles]


PENDING = st.lists(
    st.tuples(st.sampled_from(["a", "b", "c"]), st.sampled_from([None, "x", "y"]), st.floats(0, 100)),
    max_size=25,
).map(lambda found: waiting(*found))
HOW = st.one_of(
    st.just(Subscription(("a", "b"))),
    st.builds(
        Subscription,
        topics=st.just(("a", "b")),
        deliver=st.just(Deliver.LATEST),
        debounce=st.none() | st.just(timedelta(seconds=30)),
        within=st.none() | st.just(timedelta(seconds=60)),
    ),
    st.builds(
        Subscription,
        topics=st.just(("a", "b")),
        deliver=st.just(Deliver.BATCH),
        size=st.integers(1, 5),
        debounce=st.none() | st.just(timedelta(seconds=30)),
        within=st.just(timedelta(seconds=60)),
    ),
    st.builds(
        Subscription,
        topics=st.just(("a", "b")),
        mode=st.just(Mode.ALL),
        deliver=st.sampled_from([Deliver.EACH, Deliver.LATEST]),
    ),
)


@given(HOW, PENDING, st.integers(0, 6), st.booleans())
def test_nothing_goes_twice_and_nothing_unwanted(
    how: Subscription, pending: list[Pending], room: int, cut: bool
) -> None:
    """Whatever is asked for: a delivery is in one place at most, only so many runs, only what is wanted."""
    found = gather(how, pending, NOW, room, cut=cut)
    carried = [one for bundle in found.bundles for one in bundle.carried]
    older = [one for bundle in found.bundles for one in bundle.superseded]
    everything = [*carried, *older, *found.unwanted, *found.superseded]
    assert {1} >= set(Counter(one.id for one in everything).values())
    assert set(everything) <= set(pending)
    assert len(found.bundles) <= room
    assert {"c"} >= {one.topic for one in found.unwanted}
    assert "c" not in {one.topic for one in [*carried, *older]}
    assert all(bundle.carried for bundle in found.bundles)
    if how.deliver is not Deliver.LATEST:
        assert [] == [*older, *found.superseded]
    for bundle in found.bundles:
        if how.mode is Mode.ALL:
            assert (["a", "b"], 1) == (
                [one.topic for one in bundle.carried],
                len({one.key for one in bundle.carried}),
            )
        elif how.deliver is Deliver.BATCH:
            assert len(bundle.carried) <= how.size
        else:
            assert 1 == len(bundle.carried)


@given(HOW, PENDING)
def test_what_waits_goes_in_the_end(how: Subscription, pending: list[Pending]) -> None:
    """Once it has waited long enough all that has a partner is gone, by as many goes as it takes."""
    left, later = list(pending), NOW + timedelta(days=1)
    for _ in range(60):
        found = gather(how, left, later, 3)
        gone = {one.id for bundle in found.bundles for one in (*bundle.carried, *bundle.superseded)} | {
            one.id for one in found.unwanted
        }
        if not gone:
            break
        left = [one for one in left if one.id not in gone]
    if how.mode is Mode.ALL:
        by_key: dict[str | None, set[str]] = {}
        for one in left:
            by_key.setdefault(one.key, set()).add(one.topic)
        assert all(len(topics) == 1 for topics in by_key.values())
    else:
        assert [] == left


def test_each_by_itself_the_oldest_first() -> None:
    """As many as there is room for."""
    pending = waiting(("a", None, 5), ("a", None, 3), ("a", None, 1))
    assert [[0], [1]] == ids(gather(Subscription(("a",)), pending, NOW, 2))


def test_the_latest_of_what_is_looked_at_may_not_be_the_latest() -> None:
    """Where more wait than are looked at, none is carried; those that a later one follows are given up."""
    pending = waiting(("a", "x", 5), ("a", "y", 4), ("a", "x", 3))
    found = gather(Subscription(("a",), deliver=Deliver.LATEST), pending, NOW, 5, cut=True)
    assert ([], [0]) == (ids(found), [one.event_id for one in found.superseded])


def test_a_debounce_begins_anew_with_each() -> None:
    """Of its key; ``within`` is from the first."""
    quiet = Subscription(("a",), deliver=Deliver.LATEST, debounce=timedelta(seconds=10))
    pending = waiting(("a", "x", 30), ("a", "y", 12), ("a", "x", 9))
    assert [[1]] == ids(gather(quiet, pending, NOW, 5))
    assert [[2], [1]] == ids(gather(quiet, pending, NOW + timedelta(seconds=1), 5))
    bounded = Subscription(
        ("a",), deliver=Deliver.LATEST, debounce=timedelta(seconds=10), within=timedelta(seconds=30)
    )
    assert [[2], [1]] == ids(gather(bounded, pending, NOW, 5))


def test_a_batch_that_is_not_full_waits() -> None:
    """Until its first event has waited ``within``, or it was quiet."""
    how = Subscription(("a",), deliver=Deliver.BATCH, size=2, within=timedelta(seconds=60))
    pending = waiting(("a", None, 50), ("a", None, 40), ("a", None, 30))
    assert [[0, 1]] == ids(gather(how, pending, NOW, 5))
    assert [[0, 1], [2]] == ids(gather(how, pending, NOW + timedelta(seconds=30), 5))
    quiet = Subscription(("a",), deliver=Deliver.BATCH, size=9, debounce=timedelta(seconds=30))
    assert [[0, 1, 2]] == ids(gather(quiet, pending, NOW, 5))
    assert [] == ids(gather(quiet, pending, NOW - timedelta(seconds=1), 5))


@given(HOW)
def test_stored_is_what_was_meant(how: Subscription) -> None:
    """A subscription comes back from its one form."""
    usual = how.within is not None and how.debounce is None and how.deliver is Deliver.LATEST
    if not usual:  # `within` alone says nothing there, and is refused
        assert how == read(as_json(how))
