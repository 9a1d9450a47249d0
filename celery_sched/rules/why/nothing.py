"""The answer where there is no run: a gap on record, or what the job's times and its status say."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime
from zoneinfo import ZoneInfo

from celery_sched.errors import SchedulerError
from celery_sched.model import Job, JobStatus
from celery_sched.rules.jitter import Jitter
from celery_sched.rules.misfire import MISSED
from celery_sched.rules.upcoming import jitter_for
from celery_sched.rules.why.runs import Answer, last_pass, missed
from celery_sched.rules.why.times import held_back, of_times, pending, shown
from celery_sched.rules.why.words import Facts, GapSeen, Outcome, by, command, length, local, moment

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
        return of_gap(facts, facts.gap) if facts.gap else deleted(facts)
    if at == pending(facts):
        return due(facts, job, at)
    if at <= job.created_at:
        return of_gap(facts, facts.gap) if facts.gap else _before_job(facts, job)
    if job.timing_since is not None and at <= job.timing_since:
        return _before_edit(facts, job)
    if times is None:
        return of_gap(facts, facts.gap) if facts.gap else unreadable(facts, job)
    refused = of_times(facts, job, times)
    # the ends of a gap are occurrences for certain, also an instant set by hand, which no schedule knows
    if facts.gap is not None and (refused is None or at in (facts.gap.from_at, facts.gap.to_at)):
        return of_gap(facts, facts.gap)
    return refused or _of_occurrence(facts, job, times)


def _of_occurrence(facts: Facts, job: Job, times: Jitter) -> Answer:
    """An occurrence without any record."""
    at, mark = facts.at, job.last_scheduled_for
    if at > facts.now:
        return due(facts, job, at)
    if job.status is not JobStatus.ACTIVE:
        left = job.inactive_since or mark or job.created_at
        if at > left:
            return inactive(facts, job)
    elif (waits := pending(facts)) is not None and at >= waits:
        return due(facts, job, at)
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
        return (
            outcome,
            [f"the job was {_adjective(status)} then{who}: {rest or 'no reason is on record'}", of],
            [],
        )
    outcome, said, steps = missed(facts, rest if kind == MISSED else gap.reason)
    return outcome, [said[0], of, *said[1:]], steps


def inactive(facts: Facts, job: Job) -> Answer:
    """The job had left ``active``, and has not come back."""
    since = f" since {moment(job.inactive_since, facts)}" if job.inactive_since else ""
    reason = job.status_reason or "no reason is on record"
    who = ""
    if job.status is JobStatus.PAUSED and facts.paused is not None:
        who = f", by {facts.paused.actor}"
    said = [f"the job is {_adjective(job.status)}{since}{who}: {reason}"]
    if job.status is JobStatus.EXPIRED:
        return Outcome.OUTSIDE, said, [command("jobs", "show", job.name)]
    return _STANDING[job.status], said, [command("resume", job.name)]


def _adjective(status: JobStatus) -> str:
    return "in error" if status is JobStatus.ERROR else status.value


def unreadable(facts: Facts, job: Job) -> Answer:
    """The job's times cannot be read, so nobody can say what was an occurrence."""
    said = [f"nobody can say when the job was due: {facts.unreadable}", f"to repair it: {facts.remedy}"]
    if job.inactive_since is not None and facts.at > job.inactive_since:
        outcome, more, steps = inactive(facts, job)
        return outcome, [*more, *said], steps
    return Outcome.ERROR, said, [command("jobs", "show", job.name)]


def due(facts: Facts, job: Job, at: datetime, it: str = "it is still to come") -> Answer:
    """It has not been decided on yet."""
    due_at = facts.times.due(at) if facts.times is not None and at != job.next_run_at else at
    when = moment(due_at, facts)
    late = "" if due_at == at else f", {length(due_at - at)} after the occurrence by its jitter"
    if job.status is not JobStatus.ACTIVE:
        outcome, said, steps = inactive(facts, job)
        if outcome is Outcome.OUTSIDE:
            return outcome, said, steps
        return (
            Outcome.FUTURE,
            [f"{it}{late}; but {said[0]}", "nothing runs before it is resumed"],
            steps,
        )
    if due_at > facts.now:
        said = [
            f"{it}: its run is due in {length(due_at - facts.now)}, at {when}{late}",
            *held_back(facts, at),
        ]
        left = None if job.definition.max_runs is None else job.definition.max_runs - job.planned_count
        if left is not None and facts.times is not None and facts.times.schedule.kind != "after":
            before = facts.times.schedule.count_in(facts.now, at)
            if before > left:
                said.append(
                    f"the job has {left} of its max_runs left, and by then {before} occurrences have come"
                )
        return Outcome.FUTURE, said, []
    said = [
        f"it was due {length(facts.now - due_at)} ago and no scheduler has come to it yet{last_pass(facts)}"
    ]
    return Outcome.UNPLANNED, said, [command("status")]


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
        was = f"then its schedule was {shown(then)}: "
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


def deleted(facts: Facts) -> Answer:
    said = ["there is no such job any more, and no run of it at that time is on record"]
    if facts.deleted is not None:
        said.append(f"it was deleted{by(facts.deleted, facts)}")
    return Outcome.DELETED, said, [command("runs", "--job", facts.name)]
