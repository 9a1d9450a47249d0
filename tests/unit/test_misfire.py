"""Late occurrences: what runs, what is missed, what comes next; tables and public reports."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from celery_sched.model import Misfire
from celery_sched.rules import misfire
from celery_sched.rules.misfire import MOST_CATCH_UP, SHOWN, SKIP_GRACE, Due, Gap, decide
from celery_sched.rules.schedules import Schedule, parse
from celery_sched.rules.upcoming import next_occurrence

SECOND, MINUTE, HOUR, DAY = (timedelta(seconds=n) for n in (1, 60, 3600, 86_400))
YEAR = 365 * DAY
WHOLE: dict[str, Any] = {"grace": None, "catchup_window": YEAR, "mark": None, "most": 50}
POLICIES = tuple(Misfire)


def at(text: str) -> datetime:
    """An instant; without a date, on 2 February 2026."""
    return datetime.fromisoformat(text if "-" in text else f"2026-02-02T{text}").replace(tzinfo=UTC)


def ats(*texts: str) -> tuple[datetime, ...]:
    return tuple(at(text) for text in texts)


class Counted:
    """A schedule that counts the questions it is asked."""

    def __init__(self, schedule: Schedule) -> None:
        self.text, self.kind = schedule.text, schedule.kind
        self.asked = 0
        self._schedule = schedule

    def next_after(self, instant: datetime) -> datetime | None:
        self.asked += 1
        return self._schedule.next_after(instant)

    def latest_in(self, after: datetime, until: datetime) -> datetime | None:
        self.asked += 1
        return self._schedule.latest_in(after, until)

    def count_in(self, after: datetime, until: datetime) -> int:
        self.asked += 1
        return self._schedule.count_in(after, until)


FEW = 150
"""More questions than a decision on 50 runs takes, fewer than there are late occurrences."""


# -- after an outage ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("policy", "grace", "run", "missed"),
    [
        ("skip", MINUTE, (), ("10:05", "10:10", "10:15")),
        ("once", MINUTE, ("10:15",), ("10:05", "10:10")),
        ("all", MINUTE, ("10:05", "10:10", "10:15"), ()),
        # the one of 10:15 is only late: it runs under every policy
        ("skip", 3 * MINUTE, ("10:15",), ("10:05", "10:10")),
        ("once", 3 * MINUTE, ("10:15",), ("10:05", "10:10")),
        ("all", 3 * MINUTE, ("10:05", "10:10", "10:15"), ()),
        # no grace given: 60 s for `skip`, none for the others
        ("skip", None, (), ("10:05", "10:10", "10:15")),
        ("once", None, ("10:15",), ("10:05", "10:10")),
        ("all", None, ("10:05", "10:10", "10:15"), ()),
    ],
)
def test_a23_three_policies_after_an_outage(
    policy: str, grace: timedelta | None, run: tuple[str, ...], missed: tuple[str, ...]
) -> None:
    """A23: `*/5` and a scheduler that was down from 10:02 to 10:17; the next is 10:20 in all cases."""
    due = decide(
        parse("*/5 * * * *"),
        policy=Misfire(policy),
        due_at=at("10:05"),
        now=at("10:17"),
        **{**WHOLE, "grace": grace, "mark": at("10:00")},
    )
    assert Due(ats(*run), ats(*missed), None, at("10:15"), at("10:20")) == due


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("late", [timedelta(0), 1.8 * SECOND, MINUTE])
def test_a25_late_is_not_missed(policy: Misfire, late: timedelta) -> None:
    """A25: a tick that comes 1.8 s late, or exactly the grace, runs the occurrence under every policy."""
    due = decide(parse("0 9 * * *"), policy=policy, due_at=at("09:00"), now=at("09:00") + late, **WHOLE)
    assert Due(ats("09:00"), (), None, at("09:00"), at("2026-02-03T09:00")) == due


def test_a25_later_than_the_grace_is_missed_and_recorded() -> None:
    """A25: four hours late with a grace of one hour: not run, but recorded."""
    settings: Any = {**WHOLE, "grace": HOUR}
    due = decide(parse("0 9 * * *"), policy=Misfire.SKIP, due_at=at("09:00"), now=at("13:00"), **settings)
    assert Due((), ats("09:00"), None, at("09:00"), at("2026-02-03T09:00")) == due


def test_the_grace_of_skip_ends_one_microsecond_after_it() -> None:
    """`misfire_grace` is inclusive; its default of 60 s for `skip` is as exact as one that is given."""
    for grace in (None, SKIP_GRACE):
        for beyond, ran in ((timedelta(0), 1), (timedelta(microseconds=1), 0)):
            due = decide(
                parse("@daily"),
                policy=Misfire.SKIP,
                due_at=at("00:00"),
                now=at("00:01") + beyond,
                **{**WHOLE, "grace": grace},
            )
            assert (ran, 1 - ran) == (len(due.run), len(due.missed))


@pytest.mark.parametrize("policy", POLICIES)
def test_a24_a_night_of_minutes(policy: Misfire) -> None:
    """A24: of 780 minutes `once` runs 07:00 only; the others are recorded, ten as rows, 769 counted."""
    schedule = Counted(parse("* * * * *"))
    due = decide(
        schedule,
        policy=policy,
        due_at=at("2026-02-01T18:01"),
        now=at("07:00:30"),
        **{**WHOLE, "grace": MINUTE, "mark": at("2026-02-01T18:00")},
    )
    assert FEW > schedule.asked
    if policy is Misfire.ALL:
        first = at("2026-02-01T18:01")
        assert Due(tuple(first + n * MINUTE for n in range(50)), (), None, first + 49 * MINUTE) == (
            Due(due.run, due.missed, due.gap, due.mark)
        )
        assert first + 50 * MINUTE == due.next_run_at
        return
    assert (
        Due(
            ats("07:00"),
            tuple(at("06:50") + n * MINUTE for n in range(10)),
            Gap(at("2026-02-01T18:01"), at("06:49"), 769, "missed"),
            at("07:00"),
            at("07:01"),
        )
        == due
    )


@pytest.mark.parametrize("policy", POLICIES)
def test_a24_half_a_year_of_seconds_is_decided_without_enumerating_them(policy: Misfire) -> None:
    """A24: 15.8 million occurrences passed; counting them one by one would take minutes."""
    first, now = at("2026-02-02T00:00"), at("2026-08-04T00:00")
    schedule = Counted(parse("every 1s"))
    due = decide(schedule, policy=policy, due_at=first, now=now, **WHOLE)
    assert FEW > schedule.asked
    total = (now - first) // SECOND + 1
    assert due.gap is not None
    if policy is Misfire.ALL:
        assert (50, total - MOST_CATCH_UP) == (len(due.run), due.gap.count)
        assert now - (MOST_CATCH_UP - 1) * SECOND == due.run[0]
    else:
        assert (ats("2026-08-04T00:00"), SHOWN, total - 1 - SHOWN) == (
            due.run,
            len(due.missed),
            due.gap.count,
        )


def test_all_says_what_it_cannot_make_good() -> None:
    """`all` makes at most 1,000 good; the older ones are one gap that says why."""
    due = decide(
        parse("* * * * *"), policy=Misfire.ALL, due_at=at("00:00"), now=at("2026-02-04T00:00"), **WHOLE
    )
    assert Gap(at("00:00"), at("2026-02-03T07:20"), 1881, misfire.TOO_MANY) == due.gap
    assert at("2026-02-03T07:21") == due.run[0]
    assert 2 * 24 * 60 + 1 == 1881 + MOST_CATCH_UP


@pytest.mark.parametrize(("minutes", "older"), [(MOST_CATCH_UP - 1, 0), (MOST_CATCH_UP, 1)])
def test_all_makes_exactly_a_thousand_good(minutes: int, older: int) -> None:
    """The cap of `all` is inclusive: 1,000 late ones all run; of 1,001 the oldest one is a gap."""
    settings: Any = {**WHOLE, "most": 5000}
    now = at("00:00") + minutes * MINUTE
    due = decide(parse("* * * * *"), policy=Misfire.ALL, due_at=at("00:00"), now=now, **settings)
    assert (MOST_CATCH_UP, older) == (len(due.run), due.gap.count if due.gap else 0)


def test_all_goes_on_where_it_stopped_and_never_gives_up_more() -> None:
    """`all` in portions: each decision starts where the last ended, until 1,000 have run and none is left."""
    schedule, mark, due_at = parse("* * * * *"), None, at("00:00")
    now, ran, gaps = at("2026-02-04T00:00"), [], []
    while due_at <= now:
        due = decide(
            schedule, policy=Misfire.ALL, due_at=due_at, now=now, **{**WHOLE, "mark": mark, "most": 300}
        )
        assert due.mark is not None and due.next_run_at is not None
        ran += due.run
        gaps += [due.gap] if due.gap else []
        mark, due_at = due.mark, due.next_run_at
    assert [now - n * MINUTE for n in reversed(range(MOST_CATCH_UP))] == ran
    assert 1 == len(gaps)


@pytest.mark.parametrize("policy", POLICIES)
def test_nothing_older_than_the_window_runs(policy: Misfire) -> None:
    """`catchup_window` bounds how far back we look, for every policy; what is older is recorded."""
    settings: Any = {**WHOLE, "grace": 30 * DAY, "catchup_window": DAY}
    yearly = decide(
        parse("0 0 1 1 *"), policy=policy, due_at=at("2026-01-01T00:00"), now=at("00:00"), **settings
    )
    recorded = list(yearly.missed)
    if yearly.gap is not None:
        assert (1, misfire.TOO_OLD) == (yearly.gap.count, yearly.gap.reason)
        recorded.append(yearly.gap.first)
    assert ((), [at("2026-01-01T00:00")]) == (yearly.run, recorded)
    assert (at("2026-01-01T00:00"), at("2027-01-01T00:00")) == (yearly.mark, yearly.next_run_at)


def test_the_window_includes_its_edge() -> None:
    """An occurrence exactly as old as the window runs; one a microsecond older does not."""
    for policy in POLICIES:
        for beyond, ran in ((timedelta(0), 1), (timedelta(microseconds=1), 0)):
            due = decide(
                parse("@yearly"),
                policy=policy,
                due_at=at("2026-01-01T00:00"),
                now=at("2026-01-02T00:00") + beyond,
                **{**WHOLE, "grace": 2 * DAY, "catchup_window": DAY},
            )
            assert ran == len(due.run), policy


def test_a_single_occurrence_that_is_too_old_is_given_up() -> None:
    """A `once` beyond the window: recorded under every policy, with nothing to follow."""
    for policy in POLICIES:
        settings: Any = {**WHOLE, "grace": YEAR, "catchup_window": HOUR}
        due = decide(
            parse("once 2026-02-02T08:00:00Z"), policy=policy, due_at=at("08:00"), now=at("10:00"), **settings
        )
        assert ((), 1, None) == (
            due.run,
            len(due.missed) + (due.gap.count if due.gap else 0),
            due.next_run_at,
        )


# -- the mark ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", POLICIES)
def test_nothing_is_due_yet(policy: Misfire) -> None:
    """Before `next_run_at` nothing is decided and nothing moves."""
    settings: Any = {**WHOLE, "mark": at("09:00")}
    due = decide(parse("0 * * * *"), policy=policy, due_at=at("10:00"), now=at("09:59:59"), **settings)
    assert Due(mark=at("09:00"), next_run_at=at("10:00")) == due


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("due_at", ["09:00", "08:00", "10:00"])
def test_the_mark_refuses_what_was_decided_before(policy: Misfire, due_at: str) -> None:
    """A33: a `next_run_at` at or before the mark (written by hand) brings no decided occurrence back."""
    settings: Any = {**WHOLE, "mark": at("10:00")}
    due = decide(parse("0 * * * *"), policy=policy, due_at=at(due_at), now=at("10:30"), **settings)
    assert Due(mark=at("10:00"), next_run_at=at("11:00")) == due


@pytest.mark.parametrize("policy", POLICIES)
def test_an_instant_set_by_hand_stands_for_itself(policy: Misfire) -> None:
    """`run_immediately`, A34: an instant that is no occurrence runs as itself; the schedule goes on."""
    odd = at("23:59:59.999999")
    due = decide(parse("0 0 1 * *"), policy=policy, due_at=odd, now=odd + SECOND, **WHOLE)
    assert Due((odd,), (), None, odd, at("2026-03-01T00:00")) == due


def test_an_instant_set_by_hand_is_missed_like_any_other() -> None:
    """One that is found after an occurrence has come due too is missed; the occurrence runs."""
    settings: Any = {**WHOLE, "mark": at("09:00")}
    due = decide(
        parse("0 * * * *"), policy=Misfire.ONCE, due_at=at("09:59:30.5"), now=at("10:00:01"), **settings
    )
    assert Due(ats("10:00"), ats("09:59:30.5"), None, at("10:00"), at("11:00")) == due


# -- enabling, editing, starting ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("schedule", "zone", "mark", "now", "following"),
    [
        # A26: disabled from 1 March, enabled on Friday 20 March
        ("0 0 * * 0", "UTC", "2026-03-01T00:00", "2026-03-20T15:00", "2026-03-22T00:00"),
        # A27: `0 3` becomes `0 2` at noon, after the run of 03:00
        ("0 2 * * *", "UTC", "2026-01-10T03:00", "2026-01-10T12:00", "2026-01-11T02:00"),
        # A22: UTC becomes Vienna in the middle of the month
        ("0 5 1 * *", "Europe/Vienna", "2026-05-01T05:00", "2026-05-17T16:00", "2026-06-01T03:00"),
        # the mark lies ahead (the clock was set back): nothing before it
        ("0 * * * *", "UTC", "2026-03-01T12:00", "2026-03-01T10:30", "2026-03-01T13:00"),
    ],
)
def test_after_an_edit_or_a_resume(schedule: str, zone: str, mark: str, now: str, following: str) -> None:
    """A22, A26, A27: the next instant lies after the later of now and the mark: no edit fires a job."""
    found = next_occurrence(
        parse(schedule, tz=zone), now=at(now), mark=at(mark), run_immediately=True, never_ran=False
    )
    assert at(following) == found


def test_run_immediately_starts_a_job_that_never_ran() -> None:
    """`run_immediately`: `next_run_at` of a new job starts as now; without it as the next occurrence."""
    schedule = parse("0 * * * *")
    for immediately, expected in ((True, at("10:30")), (False, at("11:00"))):
        found = next_occurrence(
            schedule, now=at("10:30"), mark=None, run_immediately=immediately, never_ran=True
        )
        assert expected == found


def walk(schedule: Schedule, times: list[datetime], due_at: datetime | None) -> list[datetime]:
    """What `once` runs when a scheduler looks at these times."""
    ran: list[datetime] = []
    mark: datetime | None = None
    for now in times:
        if due_at is None or due_at > now:
            continue
        due = decide(schedule, policy=Misfire.ONCE, due_at=due_at, now=now, **{**WHOLE, "mark": mark})
        ran += due.run
        mark, due_at = due.mark, due.next_run_at
    return ran


def test_a28_a_long_interval_does_not_hold_up_a_short_one() -> None:
    """A28: one interval of a day and one of 30 s, both from their anchors; neither shifts the other."""
    anchor = at("12:00")
    looks = [anchor + n * SECOND for n in range(86_400 + 61)]
    short, long = parse("every 30s", anchor=anchor), parse("every 86400s", anchor=anchor + MINUTE)
    assert [anchor + n * 30 * SECOND for n in range(1, 2883)] == walk(short, looks, short.next_after(anchor))
    assert [anchor + MINUTE, anchor + MINUTE + DAY] == walk(long, looks, long.next_after(anchor))


def test_a29_one_off_jobs_run_once() -> None:
    """A29: a one-off has nothing after its time, whoever looks again; nor when it is enabled again."""
    schedule = parse("once 2026-02-02T10:00:00Z")
    for policy in POLICIES:
        due = decide(schedule, policy=policy, due_at=at("10:00"), now=at("10:00:01"), **WHOLE)
        assert Due(ats("10:00"), (), None, at("10:00"), None) == due
    later = next_occurrence(
        schedule, now=at("12:00"), mark=at("10:00"), run_immediately=True, never_ran=False
    )
    assert None is later


def test_a30_restarts_do_not_restart_the_wait() -> None:
    """A30: every six hours for a day, with a scheduler that is new every ten minutes: four runs."""
    anchor = at("2026-01-01T00:00")
    schedule = parse("every 21600s", anchor=anchor)
    looks = [anchor + n * 10 * MINUTE + 7 * SECOND for n in range(24 * 6 + 1)]
    expected = [anchor + n * 6 * HOUR for n in (1, 2, 3, 4)]
    assert expected == walk(schedule, looks, schedule.next_after(anchor))


@pytest.mark.parametrize("period", ["60s", "1.5s", "7s"])
def test_a31_delays_do_not_add_up(period: str) -> None:
    """A31: a thousand ticks, each 0.4 s late: the n-th occurrence is anchor + n periods, exactly."""
    schedule = parse(f"every {period}", anchor=at("00:00"))
    step = float(period[:-1]) * SECOND
    looks = [at("00:00") + n * step + 0.4 * SECOND for n in range(1, 1001)]
    expected = [at("00:00") + n * step for n in range(1, 1001)]
    assert expected == walk(schedule, looks, schedule.next_after(at("00:00")))
