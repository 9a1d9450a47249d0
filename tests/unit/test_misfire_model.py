"""Late occurrences against a model that enumerates them all: none vanishes, none is decided twice."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from hypothesis import event, given, settings
from hypothesis import strategies as st

from celery_sched.model import Misfire
from celery_sched.rules.misfire import MOST_CATCH_UP, SHOWN, SKIP_GRACE, decide
from celery_sched.rules.schedules import Schedule, parse

SECOND, MINUTE, HOUR, YEAR = (timedelta(seconds=n) for n in (1, 60, 3600, 31_536_000))
POLICIES = tuple(Misfire)


@dataclass(frozen=True)
class Late:
    """One question: what a scheduler that comes late finds."""

    schedule: Schedule
    policy: Misfire
    grace: timedelta | None
    window: timedelta
    due_at: datetime
    mark: datetime | None
    now: datetime
    most: int


TEXTS = (
    "* * * * *",
    "*/5 * * * *",
    "0 * * * *",
    "0 9 * * 1-5",
    "30 1,2 * * *",
    "@daily",
    "every 1s",
    "every 7s",
    "every 1m",
    "every 61m",
    "every 3d",
    "once 2026-10-25T00:30:00Z",
)
LONGEST_WALK = 2500
ANCHOR, START = (datetime(2026, 10, day, tzinfo=UTC) for day in (20, 24))


@st.composite
def lates(draw: st.DrawFn) -> Late:
    """Schedules around a night on which the clocks go back, with up to some thousand late occurrences."""
    text = draw(st.sampled_from(TEXTS))
    anchor = ANCHOR + draw(st.integers(0, 10**9)) * timedelta(microseconds=1)
    schedule = parse(text, tz=draw(st.sampled_from(["UTC", "Europe/Berlin"])), anchor=anchor)
    start = START + draw(st.integers(0, 48 * 3600)) * SECOND
    by_hand = draw(st.booleans())
    due_at = start if by_hand else schedule.next_after(start) or start
    step = (schedule.next_after(due_at) or due_at + HOUR) - due_at
    occurrences = draw(st.one_of(st.integers(-1, 30), st.integers(0, LONGEST_WALK - 100)))
    now = due_at + occurrences * step + draw(st.sampled_from([0, 0, 1, 10**6])) * timedelta(microseconds=1)
    mark = draw(st.sampled_from([None, start - HOUR, start - timedelta(microseconds=1), due_at, now]))
    late = now - due_at
    spans = [SECOND, MINUTE, HOUR, YEAR, *(late * n for n in (0.1, 0.5, 1, 2) if late * n > timedelta(0))]
    return Late(
        schedule,
        draw(st.sampled_from(POLICIES)),
        draw(st.sampled_from([None, *spans])),
        draw(st.sampled_from(spans)),
        due_at,
        mark,
        now,
        draw(st.sampled_from([1, 2, 50, 5000])),
    )


def enumerated(late: Late) -> list[datetime]:
    """All undecided occurrences up to now, one after the other; what `decide` must never do."""
    found = []
    if late.mark is None or late.mark < late.due_at:
        found = [late.due_at]
        following = late.schedule.next_after(late.due_at)
    else:
        following = late.schedule.next_after(late.mark)
    while following is not None and following <= late.now:
        found.append(following)
        following = late.schedule.next_after(following)
    return [instant for instant in found if instant <= late.now]


@settings(max_examples=300)
@given(lates())
def test_every_late_occurrence_is_decided_once(late: Late) -> None:
    """Against the enumeration: each is in exactly one of run, missed and gap or stays due; the rules hold."""
    due = decide(
        late.schedule,
        policy=late.policy,
        grace=late.grace,
        catchup_window=late.window,
        due_at=late.due_at,
        mark=late.mark,
        now=late.now,
        most=late.most,
    )
    late_ones = enumerated(late)
    many = "none" if not late_ones else "some" if len(late_ones) < 12 else "many"
    event(f"{late.policy.value}: {many} late")
    if not late_ones:
        assert ((), (), None, late.mark) == (due.run, due.missed, due.gap, due.mark)
        assert due.next_run_at is None or due.next_run_at > late.now
        return

    in_gap = [] if due.gap is None else [o for o in late_ones if due.gap.first <= o <= due.gap.last]
    decided = [o for o in late_ones if due.mark is not None and o <= due.mark]
    assert decided == sorted([*in_gap, *due.missed, *due.run]), "each decided one is in exactly one place"
    if due.gap is not None:
        assert (in_gap[0], in_gap[-1], len(in_gap)) == (due.gap.first, due.gap.last, due.gap.count)
    assert (due.run or due.missed or due.gap) and SHOWN >= len(due.missed)
    assert due.mark is not None
    assert late.schedule.next_after(due.mark) == due.next_run_at

    wanted = expected_runs(late, late_ones)
    assert wanted[: late.most] == list(due.run)
    if late.policy is Misfire.ALL:
        assert (decided[-1] if wanted[late.most :] else late_ones[-1]) == due.mark
        assert () == due.missed
    else:
        assert late_ones[-1] == due.mark, "nothing stays due"


def expected_runs(late: Late, late_ones: list[datetime]) -> list[datetime]:
    """The rules, word for word, over the enumeration."""
    young = [o for o in late_ones if late.now - o <= late.window]
    if late.policy is Misfire.ALL:
        return young[-MOST_CATCH_UP:]
    if late.policy is Misfire.ONCE:
        return [o for o in young if o == late_ones[-1]]
    grace = SKIP_GRACE if late.grace is None else late.grace
    return [o for o in young if o == late_ones[-1] and late.now - o <= grace]
