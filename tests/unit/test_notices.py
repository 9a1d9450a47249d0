"""What people are told of, what repeats it, when a message may go, and in what words."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from celery_sched.model import NoticeKind, NoticeStatus
from celery_sched.notify_settings import FIELDS, LISTED, Policy, Rate, Template, Wanted
from celery_sched.rules import notices
from celery_sched.rules.notices import New, Sifted
from celery_sched.testing import START

MINUTE = timedelta(minutes=1)
ALL = Wanted(tuple(NoticeKind))


@pytest.mark.parametrize(
    ("status", "told", "wants", "expected"),
    [
        ("succeeded", None, ALL, "success"),
        ("succeeded", "failure", ALL, "recovery"),
        ("succeeded", "lost", ALL, "recovery"),
        ("succeeded", "deadline", ALL, "recovery"),
        ("succeeded", "recovery", ALL, "success"),
        ("succeeded", "failure", Wanted((NoticeKind.SUCCESS,)), "success"),
        ("succeeded", "failure", Wanted((NoticeKind.FAILURE,)), None),
        ("succeeded", "failure", Wanted(LISTED), "recovery"),
        ("succeeded", None, Wanted(LISTED), None),
        ("failed", None, Wanted(LISTED), "failure"),
        ("failed", "failure", Wanted(LISTED), "failure"),
        ("timed_out", None, Wanted(LISTED), "failure"),
        ("lost", None, Wanted(LISTED), "lost"),
        ("lost", None, Wanted((NoticeKind.FAILURE,)), None),
        ("skipped", None, Wanted(LISTED), None),
        ("skipped", None, ALL, "skipped"),
        ("cancelled", None, ALL, None),
        ("failed", None, Wanted(()), None),
    ],
)
def test_what_is_told_of_an_end(status: str, told: str | None, wants: Wanted, expected: str | None) -> None:
    """By how the run ended, what the job wants, and what was told before."""
    assert expected == notices.kind_of(status, wants, told=told)


@pytest.mark.parametrize("given", ["off", 5, {"on": ["failur"]}, {"at": 1}, [1]])
def test_a_column_that_cannot_be_read_counts_as_nothing_said(given: Any) -> None:
    """Plain SQL must not undo how a run ends; `off` can be read."""
    expected = Wanted((), ("ops",)) if given == "off" else Wanted(LISTED, ("ops",))
    assert expected == notices.wanted(given, Wanted(LISTED, ("ops",)))


def one(number: int, kind: str, minutes: float, *targets: str, job: int = 1) -> New:
    return New(number, kind, job, f"{kind}:{job}", START + minutes * MINUTE, targets)


def test_repeats_are_told_once() -> None:
    """The same kind of the same job within the window is a repeat; another job, or kind, is not."""
    sifted = notices.sift(
        [
            one(1, "failure", 0, "ops"),
            one(2, "failure", 9.9, "ops"),
            one(3, "failure", 9.9, "ops", job=2),
            one(4, "lost", 9.9, "ops", "boss"),
            one(5, "failure", 10, "ops"),
            one(6, "failure", 19.9, "ops"),
            one(7, "lost", 12),
            one(8, "lost", 12, job=3),
        ],
        {},
        10 * MINUTE,
    )
    assert {2, 6, 7} == set(sifted.repeats)
    assert "repeats what was told 9m54s before (sched_notify_dedupe is 10m)" == sifted.repeats[2]
    assert {"ops": [1, 3, 4, 5], "boss": [4]} == sifted.by_target
    assert [8] == sifted.listed


def test_what_was_told_before_counts() -> None:
    """Also by another scheduler, a moment ago; with a window of nothing there are no repeats."""
    new = [one(2, "failure", 5, "ops")]
    assert {2} == set(notices.sift(new, {"failure:1": START}, 10 * MINUTE).repeats)
    assert Sifted({}, {"ops": [2]}, []) == notices.sift(new, {"failure:1": START}, 5 * MINUTE)
    assert Sifted({}, {"ops": [2]}, []) == notices.sift(new, {"failure:1": START + 5 * MINUTE}, timedelta(0))


def test_a_failure_after_a_recovery_is_news() -> None:
    """People believe that all is well: the next failure is told, within the window too."""
    sifted = notices.sift(
        [
            one(1, "failure", 0, "ops"),
            one(2, "recovery", 1, "ops"),
            one(3, "failure", 2, "ops"),
            one(4, "failure", 3, "ops"),
            one(5, "recovery", 4, "ops"),
            one(6, "failure", 5, "ops", job=2),
        ],
        {"failure:2": START, "recovery:2": START - MINUTE},
        10 * MINUTE,
    )
    assert {4, 6} == set(sifted.repeats)
    assert {"ops": [1, 2, 3, 5]} == sifted.by_target


@given(
    st.lists(
        st.tuples(st.sampled_from(NoticeKind), st.integers(1, 3), st.integers(0, 3)),
        max_size=40,
    ),
    st.integers(0, 6),
)
def test_nothing_is_forgotten_and_nothing_told_too_often(steps: Sequence[Any], window: int) -> None:
    """Each one is a repeat, listed or sent; a repeat has one that was told before it within the window."""
    at, new = 0, []
    for number, (kind, job, pause) in enumerate(steps):
        at += pause
        new.append(one(number, kind, at, "ops", job=job))
    sifted = notices.sift(new, {}, window * MINUTE)
    sent = list(sifted.by_target.get("ops", ()))
    assert [made.id for made in new] == sorted([*sent, *sifted.repeats])
    for repeat in sifted.repeats:
        mine = new[repeat]
        before = [new[key] for key in sent if key < repeat and new[key].key == mine.key]
        assert any(mine.at - told.at < window * MINUTE for told in before)
        recovered = [new[key] for key in sent if new[key].key == f"recovery:{mine.job_id}" and key < repeat]
        assert not any(other.at >= before[-1].at for other in recovered)


RATE = Rate(3, timedelta(hours=1))
GATHER = timedelta(seconds=30)


@pytest.mark.parametrize(
    ("planned", "expected"),
    [
        ([], 0.0),
        ([-0.5], 0.0),
        ([-0.25], 0.25),
        ([0.0], 0.5),
        ([-50.0, -20.0], 0.0),
        ([-50.0, -20.0, -10.0], 10.0),
        ([-20.0, -50.0, -10.0], 10.0),
        ([-50.0, -20.0, -10.0, 10.0], 40.0),
        ([-50.0, -20.0, -0.1], 10.0),
        ([-60.0, -20.0, -10.0], 0.0),
    ],
)
def test_when_a_message_may_go(planned: list[float], expected: float) -> None:
    """At once; half a minute after the last one; an hour after the third last one (minutes from now)."""
    found = notices.message_at([START + minutes * MINUTE for minutes in planned], START, RATE, GATHER)
    assert START + expected * MINUTE == found


@given(
    st.lists(st.integers(0, 900), min_size=1, max_size=60),
    st.integers(1, 5),
    st.integers(1, 3600),
    st.integers(0, 60),
)
def test_never_above_the_rate(pauses: list[int], count: int, per: int, gather: int) -> None:
    """Whenever somebody asks: no window has more messages than the rate allows."""
    rate, pause = Rate(count, timedelta(seconds=per)), timedelta(seconds=gather)
    now, planned = START, []
    for step in pauses:
        now += timedelta(seconds=step)
        planned.append(notices.message_at(planned, now, rate, pause))
    assert all(at >= before + pause for before, at in itertools.pairwise(planned))
    assert all(last - first >= rate.per for first, last in zip(planned, planned[count:], strict=False))


VALUES = {
    "app": "shop",
    "job": "nightly",
    "task": "celery_sched.http",
    "run": "r-1",
    "attempt": "2",
    "reason": "the worker said so",
    "error": "Traceback\nValueError: no",
}


def test_the_words() -> None:
    """A title, and a text with what is known and nothing else."""
    title, text = notices.words(Policy(), NoticeKind.FAILURE, VALUES)
    assert "nightly failed" == title
    assert (
        "Job nightly of app shop failed.\nthe worker said so\n\nTask: celery_sched.http\nRun: r-1\n"
        "Attempt: 2\n\nTraceback\nValueError: no"
    ) == text
    for kind in NoticeKind:
        said, _ = notices.words(Policy(), kind, VALUES)
        assert said.startswith("nightly ") and said != "nightly "


def test_templates() -> None:
    """The most special one wins; a title is one line of at most 255 characters."""
    policy = Policy(
        templates={
            "failure": Template("{job}\nfailed:  {reason}"),
            "http": Template(text="{error:.9}|{worker}|{job:>8}"),
        }
    )
    assert ("nightly failed: the worker said so", "Traceback|| nightly") == notices.words(
        policy, NoticeKind.FAILURE, VALUES
    )
    long = notices.words(policy, NoticeKind.FAILURE, {**VALUES, "reason": "x" * 300})[0]
    assert (255, "...") == (len(long), long[-3:])


@given(st.dictionaries(st.sampled_from(FIELDS), st.text()), st.sampled_from(NoticeKind))
def test_words_of_anything(values: dict[str, str], kind: NoticeKind) -> None:
    """Whatever a job, a reason or an error is called."""
    title, text = notices.words(Policy(), kind, {"app": "", **values, "job": values.get("job", "j")})
    assert len(title) <= 255 and "\n" not in title and text


def test_the_end_of_an_error() -> None:
    """The last twenty lines and 4,000 characters, and that there was more."""
    assert "" == notices.end_of(None)
    assert "a\nb" == notices.end_of("a\nb\n")
    assert ["...", *map(str, range(10, 30))] == notices.end_of("\n".join(map(str, range(30)))).splitlines()
    assert "...\n" + "x" * 4000 == notices.end_of("x" * 5000)


def test_one_message() -> None:
    """One notification is told as it is; of several what they are, and the first fifty by name."""
    assert ("[shop] a failed", "text") == notices.message([("failure", "a failed", "text")], "shop")
    title, text = notices.message(
        [("failure", f"j{n} failed", "") for n in range(499)] + [("recovery", "x succeeded again", "")],
        "shop",
    )
    assert "[shop] 500 notifications: 499 failed, 1 recovered" == title
    lines = text.splitlines()
    assert (51, "- j0 failed", "- j49 failed") == (len(lines), lines[0], lines[49])
    assert lines[50].startswith("- and 450 more")


@pytest.mark.parametrize(
    ("statuses", "expected"),
    [
        ({}, "listed"),
        ({"a": "new"}, "new"),
        ({"a": "sending", "b": "failed"}, "sending"),
        ({"a": "sent", "b": "failed"}, "failed"),
        ({"a": "sent", "b": "sent"}, "sent"),
    ],
)
def test_the_status_of_several_targets(statuses: dict[str, str], expected: str) -> None:
    """Under way while one is; failed when one failed, and why."""
    targets = {name: {"status": status, "reason": f"{name} is away"} for name, status in statuses.items()}
    status, reason = notices.status_of(targets)
    assert (expected, "b: b is away" if expected == NoticeStatus.FAILED else None) == (status, reason)
