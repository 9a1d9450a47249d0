"""What a job's times say of an instant: not an occurrence, excluded, outside; and what is near it."""

from __future__ import annotations

from datetime import UTC, datetime

from celery_sched.errors import SchedulerError
from celery_sched.model import Job
from celery_sched.rules.calendars.base import Calendar, Span
from celery_sched.rules.jitter import Jitter
from celery_sched.rules.schedules import Schedule
from celery_sched.rules.schedules.zones import instant_of_wall
from celery_sched.rules.why.asked import has, parts_of
from celery_sched.rules.why.runs import Answer
from celery_sched.rules.why.words import Facts, Outcome, command, local, utc

AGAIN = "its delay is added again until no calendar excludes the time"
"""What an exclusion means for ``after``."""


def pending(facts: Facts) -> datetime | None:
    """The occurrence that the job waits for; None: for none, or nobody knows."""
    if facts.job is None or facts.times is None or facts.job.next_run_at is None:
        return None
    return facts.times.occurrence_of(facts.job.next_run_at)


def of_times(facts: Facts, job: Job, times: Jitter) -> Answer | None:
    """What the job's times have against an instant: not an occurrence, excluded, outside; None: nothing."""
    at, parts = facts.at, parts_of(times.schedule)
    if has(parts.whole, at):
        return None
    if not has(parts.base, at):
        return _not_an_occurrence(facts, job, times)
    start, end = (None, None) if parts.bounds is None else (parts.bounds.start, parts.bounds.end)
    show = command("jobs", "show", job.name)
    if start is not None and at < start:
        return Outcome.OUTSIDE, [f"it is before the job's start_at, {local(start, facts)}"], [show]
    if end is not None and at > end:
        return Outcome.OUTSIDE, [f"it is after the job's end_at, {local(end, facts)}"], [show]
    why = None if parts.excluding is None else parts.excluding.excluded(at)
    if parts.excluding is None or why is None:
        return _not_an_occurrence(facts, job, times)
    said = [f"{_named(why)} excludes it{_because(why)}"]
    to = parts.excluding.moved(at)
    if to is None:
        return Outcome.EXCLUDED, said, []
    if has(parts.whole, to):
        said.append(f"it was moved to the next business day: {local(to, facts)}")
        return Outcome.EXCLUDED, said, [command("why", job.name, utc(to))]
    return Outcome.EXCLUDED, [*said, "it would move to a day after the job's end_at"], []


def _not_an_occurrence(facts: Facts, job: Job, times: Jitter) -> Answer:
    if times.schedule.kind == "after":
        counts = f"{job.definition.schedule!r} counts from the end of the last run"
        excluding = parts_of(times.schedule).excluding
        why = None if excluding is None else excluding.excluded(facts.at)
        if why is not None:
            said = [f"{_named(why)} excludes that time{_because(why)}: {counts}, {AGAIN}"]
            return Outcome.EXCLUDED, said, [command("runs", "--job", job.name)]
        said = [f"there was no occurrence then: {counts}", *held_back(facts, facts.at)]
        return Outcome.NOT_AN_OCCURRENCE, said, [command("runs", "--job", job.name)]
    said = [f"{local(facts.at, facts)} is not an occurrence of {shown(job)}"]
    before, after = neighbours(facts)
    near = [local(one, facts) for one in (before, after) if one is not None]
    said.append(
        f"the nearest {'are' if len(near) > 1 else 'is'} {' and '.join(near)}" if near else "it has none near"
    )
    hint = _other_zone(facts, times.schedule)
    steps = [command("next", "--job", job.name)]
    return Outcome.NOT_AN_OCCURRENCE, [*said, *([hint] if hint else [])], steps


def held_back(facts: Facts, at: datetime) -> list[str]:
    """Of an ``after`` job: which calendar excludes the time at which it would have been due."""
    job, times, waits = facts.job, facts.times, pending(facts)
    excluding = None if times is None else parts_of(times.schedule).excluding
    if job is None or excluding is None or excluding.kind != "after" or waits is None or at > waits:
        return []
    # it counts from the end of its last run; one that was edited or new, from then
    for since in (facts.last_end, job.timing_since, job.created_at):
        first = None if since is None else excluding.base.next_after(since)
        why = None if first is None or first >= waits else excluding.excluded(first)
        if (
            since is not None
            and first is not None
            and why is not None
            and excluding.next_after(since) == waits
        ):
            how = "it moves to a business day" if excluding.move else AGAIN
            return [
                f"{_named(why)} excludes {local(first, facts)}{_because(why)},"
                f" when it would have been due: {how}"
            ]
    return []


def _named(why: tuple[Calendar, Span]) -> str:
    return f"calendar {why[0].text}"


def _because(why: tuple[Calendar, Span]) -> str:
    return f" ({why[1].reason})" if why[1].reason not in why[0].text else ""


def neighbours(facts: Facts) -> tuple[datetime | None, datetime | None]:
    """The occurrences before and after the instant, by the times that the job has now."""
    job, times = facts.job, facts.times
    if job is None or times is None or times.schedule.kind == "after":
        return None, None
    schedule = times.schedule
    before = schedule.latest_in(job.created_at, facts.at)
    if before == facts.at:
        before = schedule.latest_in(job.created_at, facts.at - facts.at.resolution)
    return before, schedule.next_after(max(facts.at, job.created_at))


def _other_zone(facts: Facts, schedule: Schedule) -> str | None:
    """The same digits on another clock may be what was meant."""
    asked = facts.asked
    try:
        other = instant_of_wall(facts.zone, asked.wall) if asked.zoned else asked.wall.replace(tzinfo=UTC)
    except (OverflowError, SchedulerError):
        return None
    if other == facts.at or not has(schedule, other):
        return None
    name = facts.zone.key if asked.zoned else "UTC"
    return f"the same time in {name} is one: did you mean {utc(other)}? (The job's zone is {facts.zone.key}.)"


def shown(job: Job) -> str:
    return f"{job.definition.schedule!r} ({job.definition.timezone})"
