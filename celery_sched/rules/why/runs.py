"""The answer where a run's row is there: it says what happened beyond doubt."""

from __future__ import annotations

from datetime import timedelta

from celery_sched.model import Job, Misfire, Overlap, Run, Trigger
from celery_sched.rules.misfire import MISSED, SKIP_GRACE
from celery_sched.rules.transitions import RunStatus
from celery_sched.rules.why.asked import has
from celery_sched.rules.why.words import Facts, Outcome, Recorded, command, length, local, moment, utc

ON_TIME = timedelta(seconds=1)
"""What started within this is not said to be late."""

Answer = tuple[Outcome, list[str], list[str]]
"""Outcome, sentences, next steps."""


def of_run(facts: Facts, recorded: Recorded) -> Answer:
    """What a run's row says."""
    run = recorded.run
    outcome, said, steps = _of_status(facts, recorded)
    if run.trigger is Trigger.MANUAL:
        said.append("it was run by hand, beside the schedule")
    elif recorded.backfill_id is not None:
        again = "" if run.trigger is Trigger.BACKFILL else " again"
        said.append(f"it was made to run{again} by backfill {recorded.backfill_id}")
    elif run.trigger is Trigger.ON_LOST:
        said.append(f"it puts right what run {run.parent_id} left behind")
    if run.status != RunStatus.SKIPPED and run.attempt > 1:
        said.append(f"this is attempt {run.attempt}")
    for one in facts.put_right_by:
        said.append(f"what it left behind is put right by run {one.id} ({one.task}): {_named(one.status)}")
    return outcome, said, steps


def _of_status(facts: Facts, recorded: Recorded) -> Answer:
    run = recorded.run
    match run.status:
        case RunStatus.QUEUED | RunStatus.DISPATCHED:
            return _waiting(facts, recorded)
        case RunStatus.RUNNING:
            said = [f"run {run.id} is running{_where(facts, recorded)}"]
            if run.stop_requested_at is not None:
                said.append(f"{run.stop_requested_by} asked it to stop{_because(run.stop_reason)}")
            return Outcome.RUNNING, [*said, *_waited(facts, recorded)], [_show(run)]
        case RunStatus.SKIPPED:
            return _skipped(facts, recorded)
        case RunStatus.CANCELLED:
            return _cancelled(facts, recorded)
    if run.started_at is None:
        said = [f"run {run.id} is {_named(run.status)} and never started", *_reasons(recorded)]
        return Outcome.NOT_STARTED, said, [command("status"), *_retry(facts, run)]
    how = ("was " if run.status == RunStatus.LOST else "") + _named(run.status)
    said = [f"it ran: run {run.id} {how}{_where(facts, recorded)}"]
    if run.finished_at is not None:
        said[0] += f" and took {length(run.finished_at - run.started_at)}"
    steps = [] if run.status == RunStatus.SUCCEEDED else _retry(facts, run)
    return Outcome.RAN, [*said, *_reasons(recorded), *_waited(facts, recorded)], steps


def _where(facts: Facts, recorded: Recorded) -> str:
    """``: it started 2m late, at ..., on w@host``."""
    run = recorded.run
    if run.started_at is None:
        return ""
    late = ""
    if run.trigger is Trigger.SCHEDULE and recorded.backfill_id is None and run.attempt == 1:
        due = run.scheduled_for
        if facts.then is not None and facts.then.amount:
            due = facts.then.due(run.scheduled_for)
            late = f" ({length(due - run.scheduled_for)} after the occurrence, by its jitter)"
        behind = run.started_at - due
        # without the times that it had then nobody knows whether it was late, or had a jitter
        how = "late" if facts.then is not None else "after its occurrence"
        late = f"{' on time' if behind < ON_TIME else f' {length(behind)} {how}'}{late},"
    on = "" if run.worker is None else f" on {run.worker}"
    return f"; it started{late} at {moment(run.started_at, facts)}{on}"


def _waited(facts: Facts, recorded: Recorded) -> list[str]:
    """That it had to wait for a slot."""
    since, until = recorded.at_capacity_at, recorded.run.dispatched_at
    if since is None or until is None or until <= since:
        return []
    return [
        f"before that it waited for a slot of pool {recorded.run.pool!r} from {moment(since, facts)}"
        f" to {moment(until, facts)} (capped)"
    ]


def _reasons(recorded: Recorded) -> list[str]:
    run = recorded.run
    error = (run.error or "").strip().splitlines()
    # the last line of a traceback says most
    return [text for text in dict.fromkeys((run.reason or "", error[-1] if error else "")) if text]


def _show(run: Run) -> str:
    return command("runs", "show", run.id)


def _retry(facts: Facts, run: Run) -> list[str]:
    """Look at a run that did not succeed, and have it carried out again; that needs its job."""
    return [_show(run), *([] if facts.job is None else [command("retry", run.id)])]


def _waiting(facts: Facts, recorded: Recorded) -> Answer:
    run = recorded.run
    outcome = Outcome.WAITING
    steps = [command("status")]
    if run.status == RunStatus.DISPATCHED:
        return outcome, [_dispatched(facts, recorded)], steps
    slots, job, other = facts.slots, facts.job, facts.other
    waits = f"it has not started yet: run {run.id} waits"
    if run.ready_at > facts.now:
        again = f" for attempt {run.attempt}" if run.attempt > 1 else ""
        said = f"{waits} until {moment(run.ready_at, facts)}{again}"
    elif other is not None and other.id != run.id:
        said = (
            f"{waits} for run {other.id} (of {local(other.scheduled_for, facts)}), which is {other.status}:"
            f" overlap is {_overlap(job)!r}"
        )
    elif slots is not None and (slots.slots is None or (slots.held >= slots.slots and _light(job))):
        outcome, steps = Outcome.CAPPED, [command("pools")]
        said = f"{waits} for a slot of pool {slots.name!r}"
        if slots.slots is None:
            said += ", which does not exist"
        else:
            since = recorded.at_capacity_at
            seen = "" if since is None else f" since {moment(since, facts)}"
            said += f"{seen}: {slots.held} of {slots.slots} are taken"
    elif run.priority < 0:
        said = f"{waits} behind the regular runs, as those of a backfill do"
    elif facts.waits is not None:  # for several slots, for a key, for one that is overdue
        outcome, steps = Outcome.CAPPED, [command("pools", "show", run.pool), _show(run)]
        said = f"{waits} {facts.waits}"
    else:
        said = f"{waits}, and nothing is in its way: the next pass of a scheduler takes it{last_pass(facts)}"
    return outcome, [said], steps


def _light(job: Job | None) -> bool:
    """A run of it takes one slot, and has no key."""
    return job is None or (job.definition.weight == 1 and job.definition.concurrency_key is None)


def _dispatched(facts: Facts, recorded: Recorded) -> str:
    run, job = recorded.run, facts.job
    waits = f"it has not started yet: run {run.id}"
    if recorded.eta is not None and recorded.eta > facts.now:
        eta = moment(recorded.eta, facts)
        return f"{waits} waits for a retry that its task asked Celery for, not before {eta}"
    if run.published_at is None:
        claimed = "" if run.dispatched_at is None else f" at {moment(run.dispatched_at, facts)}"
        return f"{waits} was claimed{claimed} and is being published"
    if run.received_at is None:
        queue = None if job is None else job.definition.options.get("queue")
        named = "its queue" if queue is None else f"queue {queue!r}"
        return (
            f"{waits} was published at {moment(run.published_at, facts)} and no worker has received it:"
            f" does one consume {named}, and is one free?"
        )
    return (
        f"{waits} was received by a worker at {moment(run.received_at, facts)}"
        " and waits there for a free process"
    )


def last_pass(facts: Facts) -> str:
    """When a scheduler was there last."""
    if not facts.enabled:
        return " (sched_enabled is off: nothing is planned)"
    if facts.last_pass_at is None:
        return " (none has ever passed: start one with celery -A APP beat -S sched)"
    ago = length(facts.now - facts.last_pass_at)
    dead = "no scheduler is alive, " if facts.down else ""
    return f" ({dead}the last pass was {ago} ago, at {moment(facts.last_pass_at, facts)})"


def _skipped(facts: Facts, recorded: Recorded) -> Answer:
    run, job = recorded.run, facts.job
    kind, _, rest = (run.reason or "").partition(": ")
    if kind == MISSED:
        return missed(facts, rest)
    said = [f"it was skipped: {run.reason}"]
    if kind != "expired" and facts.other is not None:
        other = facts.other
        ended = "" if other.finished_at is None else f" at {moment(other.finished_at, facts)}"
        said.append(
            f"that run, of {local(other.scheduled_for, facts)}, is {_named(other.status)}{ended};"
            f" overlap is {_overlap(job)!r}"
        )
    if kind != "expired":
        return Outcome.SKIPPED, said, []
    if recorded.expires_at is not None:
        said.append(f"it had to start by {moment(recorded.expires_at, facts)} (the job's expires)")
    if recorded.at_capacity_at is None:
        return Outcome.SKIPPED, said, _again(facts)
    said.append(
        f"it waited for a slot of pool {run.pool!r} from {moment(recorded.at_capacity_at, facts)} on (capped)"
    )
    return Outcome.CAPPED, said, [command("pools"), *_again(facts)]


def missed(facts: Facts, why: str) -> Answer:
    """It was given up by the misfire policy."""
    said = [f"it was missed{f': {why}' if why else ''}"]
    if facts.job is not None:
        definition = facts.job.definition
        grace = definition.misfire_grace
        if grace is None and definition.misfire is Misfire.SKIP:
            grace = SKIP_GRACE
        within = "" if grace is None else f" with a grace of {length(grace)}"
        said.append(f"what is found late is dealt with by misfire={definition.misfire.value!r}{within}")
    return Outcome.MISSED, said, _again(facts)


def _again(facts: Facts) -> list[str]:
    """Make good an occurrence that did not run: by a backfill where the job's times have it, else a retry."""
    run, at = None if facts.recorded is None else facts.recorded.run, utc(facts.at)
    by_hand = run is not None and run.trigger is Trigger.MANUAL
    if facts.job is None or facts.times is None:
        return []
    if has(facts.times.schedule, facts.at) and not by_hand:
        return [command("backfill", facts.name, "--from", at, "--to", at)]
    return [] if run is None else _retry(facts, run)


def _cancelled(facts: Facts, recorded: Recorded) -> Answer:
    run = recorded.run
    said = [f"run {run.id} was cancelled: {run.reason or 'no reason is on record'}"]
    if run.stop_requested_at is not None:
        said.append(f"that was asked for at {moment(run.stop_requested_at, facts)}")
    if run.started_at is None:
        said.append("it had not started")
    elif run.finished_at is not None:
        said.append(
            f"it had run for {length(run.finished_at - run.started_at)} then"
            f" (from {moment(run.started_at, facts)} on)"
        )
    return Outcome.CANCELLED, said, _retry(facts, run)


def _named(status: str) -> str:
    return status.replace("_", " ")


def _overlap(job: Job | None) -> str:
    return (Overlap.SKIP if job is None else job.definition.overlap).value


def _because(reason: str | None) -> str:
    return f" ({reason})" if reason else ""
