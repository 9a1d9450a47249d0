"""The answer where there is no run: a gap on record, or what the job's times and its status say."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from zoneinfo import ZoneInfo

from celery_sched.errors import SchedulerError
from celery_sched.model import Job, JobStatus
from celery_sched.rules.jitter import Jitter
from celery_sched.rules.misfire import MISSED
from celery_sched.rules.schedules import Schedule
from celery_sched.rules.schedules.zones import instant_of_wall
from celery_sched.rules.upcoming import jitter_for
from celery_sched.rules.why.asked import has, parts_of
from celery_sched.rules.why.runs import Answer, last_pass, missed
from celery_sched.rules.why.words import Facts, GapSeen, Outcome, by, command, length, local, moment, utc

_STANDING = {
    JobStatus.PAUSED: Outcome.PAUSED,
    JobStatus.DISABLED: Outcome.DISABLED,
    JobStatus.ERROR: Outcome.ERROR,
    JobStatus.EXPIRED: Outcome.OUTSIDE,
}


def of_nothing(facts: Facts) -> Answer:
    """Why there is no run. What is on record comes before what is derived."""
    job, times, at = facts.job, facts.times, facts.at
    if job is None:
        return of_gap(facts, facts.gap) if facts.gap else _deleted(facts)
    if at == pending(facts):
        return _due(facts, job, at)
    if at <= job.created_at:
        return of_gap(facts, facts.gap) if facts.gap else _before_job(facts, job)
    if job.timing_since is not None and at <= job.timing_since:
        return _before_edit(facts, job)
    if times is None:
        return of_gap(facts, facts.gap) if facts.gap else _unreadable(facts, job)
    refused = of_times(facts, job, times)
    # the ends of a gap are occurrences for certain, also an instant set by hand, which no schedule knows
    if facts.gap is not None and (refused is None or at in (facts.gap.from_at, facts.gap.to_at)):
        return of_gap(facts, facts.gap)
    return refused or _of_occurrence(facts, job, times)


def pending(facts: Facts) -> datetime | None:
    """The occurrence that the job waits for; None: for none, or nobody knows."""
    if facts.job is None or facts.times is None or facts.job.next_run_at is None:
        return None
    return facts.times.occurrence_of(facts.job.next_run_at)


def _of_occurrence(facts: Facts, job: Job, times: Jitter) -> Answer:
    """An occurrence without any record."""
    at, mark = facts.at, job.last_scheduled_for
    if at > facts.now:
        return _due(facts, job, at)
    if job.status is not JobStatus.ACTIVE:
        left = job.inactive_since or mark or job.created_at
        if at > left:
            return _inactive(facts, job)
    elif (waits := pending(facts)) is not None and at >= waits:
        return _due(facts, job, at)
    if at < facts.now - facts.keep:
        return Outcome.PRUNED, [_pruned(facts)], []
    return (
        Outcome.UNRECORDED,
        [
            "it is an occurrence, and there is no record of it, which should not be: rows were deleted by"
            " hand, or they are from before an upgrade; otherwise please report it"
        ],
        [command("doctor")],
    )


def _pruned(facts: Facts) -> str:
    return (
        f"it is an occurrence, and it is older than sched_keep_runs ({length(facts.keep)}):"
        " what became of it has been deleted"
    )


def of_gap(facts: Facts, gap: GapSeen) -> Answer:
    """It lies in a range of occurrences that were not run."""
    kind, _, rest = gap.reason.partition(": ")
    if gap.count > 1:
        span = f"from {local(gap.from_at, facts)} to {local(gap.to_at, facts)}"
        of = f"it is one of {gap.count} occurrences {span}"
    elif gap.count == 1:
        of = "it is the one occurrence that is on record"
    else:
        of = (
            f"it lies between {local(gap.from_at, facts)} and {local(gap.to_at, facts)},"
            " of which nobody can say how many occurrences there were"
        )
    if kind in list(JobStatus):
        status = JobStatus(kind)
        outcome = _STANDING.get(status, Outcome.UNRECORDED)
        who = by(facts.paused, facts) if status is JobStatus.PAUSED else ""
        return outcome, [f"the job was {kind} then{who}: {rest or 'no reason is on record'}", of], []
    outcome, said, steps = missed(facts, rest if kind == MISSED else gap.reason)
    return outcome, [said[0], of, *said[1:]], steps


def _inactive(facts: Facts, job: Job) -> Answer:
    """The job had left ``active``, and has not come back."""
    since = f" since {moment(job.inactive_since, facts)}" if job.inactive_since else ""
    reason = job.status_reason or "no reason is on record"
    who = ""
    if job.status is JobStatus.PAUSED and facts.paused is not None:
        who = f", by {facts.paused.actor}"
    said = [f"the job is {job.status.value}{since}{who}: {reason}"]
    if job.status is JobStatus.EXPIRED:
        return Outcome.OUTSIDE, said, [command("jobs", "show", job.name)]
    return _STANDING[job.status], said, [command("resume", job.name)]


def _unreadable(facts: Facts, job: Job) -> Answer:
    """The job's times cannot be read, so nobody can say what was an occurrence."""
    said = [f"nobody can say when the job was due: {facts.unreadable}"]
    if job.inactive_since is not None and facts.at > job.inactive_since:
        outcome, more, steps = _inactive(facts, job)
        return outcome, [*more, *said], steps
    return Outcome.ERROR, said, [command("jobs", "show", job.name)]


def _due(facts: Facts, job: Job, at: datetime) -> Answer:
    """It has not been decided on yet."""
    due = facts.times.due(at) if facts.times is not None and at != job.next_run_at else at
    shown = moment(due, facts)
    late = "" if due == at else f", {length(due - at)} after the occurrence by its jitter"
    if job.status is not JobStatus.ACTIVE:
        outcome, said, steps = _inactive(facts, job)
        if outcome is Outcome.OUTSIDE:
            return outcome, said, steps
        return (
            Outcome.FUTURE,
            [f"it is still to come{late}; but {said[0]}", "nothing runs before it is resumed"],
            steps,
        )
    if due > facts.now:
        said = [f"it is still to come: its run is due in {length(due - facts.now)}, at {shown}{late}"]
        left = None if job.definition.max_runs is None else job.definition.max_runs - job.planned_count
        if left is not None and facts.times is not None and facts.times.schedule.kind != "after":
            before = facts.times.schedule.count_in(facts.now, at)
            if before > left:
                said.append(
                    f"the job has {left} of its max_runs left, and by then {before} occurrences have come"
                )
        return Outcome.FUTURE, said, []
    said = [f"it was due {length(facts.now - due)} ago and no scheduler has come to it yet{last_pass(facts)}"]
    return Outcome.UNPLANNED, said, [command("status")]


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
    reason = f" ({why[1].reason})" if why[1].reason not in why[0].text else ""
    said = [f"calendar {why[0].text} excludes it{reason}"]
    to = parts.excluding.moved(at)
    if to is None:
        return Outcome.EXCLUDED, said, []
    if has(parts.whole, to):
        said.append(f"it was moved to the next business day: {local(to, facts)}")
        return Outcome.EXCLUDED, said, [command("why", job.name, utc(to))]
    return Outcome.EXCLUDED, [*said, "it would move to a day after the job's end_at"], []


def _not_an_occurrence(facts: Facts, job: Job, times: Jitter) -> Answer:
    if times.schedule.kind == "after":
        said = [
            f"there was no occurrence then: {job.definition.schedule!r} counts from the end of the last run"
        ]
        return Outcome.NOT_AN_OCCURRENCE, said, [command("runs", "--job", job.name)]
    said = [f"{local(facts.at, facts)} is not an occurrence of {_shown(job)}"]
    before, after = neighbours(facts)
    near = [local(one, facts) for one in (before, after) if one is not None]
    said.append(
        f"the nearest {'are' if len(near) > 1 else 'is'} {' and '.join(near)}" if near else "it has none near"
    )
    hint = _other_zone(facts, times.schedule)
    steps = [command("next", "--job", job.name)]
    return Outcome.NOT_AN_OCCURRENCE, [*said, *([hint] if hint else [])], steps


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


def _before_job(facts: Facts, job: Job) -> Answer:
    return Outcome.BEFORE_JOB, [f"the job was made later: at {moment(job.created_at, facts)}"], []


def _before_edit(facts: Facts, job: Job) -> Answer:
    """The times that it has now are not those that it had then."""
    gap, certain = facts.gap, facts.gap is not None and facts.at in (facts.gap.from_at, facts.gap.to_at)
    if gap is not None and (certain or facts.earlier is None):
        return of_gap(facts, gap)
    refused, was = None, ""
    if facts.earlier is not None:
        then = replace(job, definition=facts.earlier)
        was = f"then its schedule was {_shown(then)}: "
        try:
            times, zone = jitter_for(then.definition, job.anchor), ZoneInfo(then.definition.timezone)
            refused = of_times(replace(facts, job=then, times=times, zone=zone), then, times)
        except SchedulerError as error:
            refused = Outcome.ERROR, [str(error)], []
    if gap is not None and refused is None:
        return of_gap(facts, gap)
    since = job.timing_since or job.created_at
    who = "" if facts.edited is None else f" by {facts.edited.actor}"
    said = [
        f"there is no record of it, and the job's times were changed later: at {moment(since, facts)}{who}"
    ]
    if facts.earlier is None:
        said.append("what they were is not in the audit log")
    elif refused is not None:
        said.append(was + refused[1][0])
    elif facts.at < facts.now - facts.keep:
        said.append(was + _pruned(facts))
    else:
        said.append(f"{was}it was an occurrence")
    return Outcome.BEFORE_EDIT, said, []


def _shown(job: Job) -> str:
    return f"{job.definition.schedule!r} ({job.definition.timezone})"


def _deleted(facts: Facts) -> Answer:
    said = ["there is no such job any more, and no run of it at that time is on record"]
    if facts.deleted is not None:
        said.append(f"it was deleted{by(facts.deleted, facts)}")
    return Outcome.DELETED, said, [command("runs", "--job", facts.name)]
