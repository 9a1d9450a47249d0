"""The answer to ``now``: how a job stands, when it is due next, and what it has under way."""

from __future__ import annotations

from celery_sched.model import DeliveryStatus, Job, JobStatus, Run
from celery_sched.rules.why.nothing import deleted, due, inactive, unreadable
from celery_sched.rules.why.runs import Answer
from celery_sched.rules.why.times import pending
from celery_sched.rules.why.words import Facts, Outcome, command, local, moment, utc

_UNDER_WAY = {"running": Outcome.RUNNING, "dispatched": Outcome.WAITING, "queued": Outcome.WAITING}


def of_now(facts: Facts) -> Answer:
    """The job's status and its reason; of an active one when it is due next; its runs that are not over."""
    job = facts.job
    if job is None:
        return deleted(facts)
    outcome, said, steps = _of_status(facts, job)
    if job.status is JobStatus.ACTIVE and job.overdue_since is not None:
        since = moment(job.overdue_since, facts)
        said.append(f"it is overdue: no run had succeeded by {since} (must_succeed_by)")
    for run in facts.active:
        said.append(_shown(run, facts))
        if run.status != "running":
            steps = [*steps, command("why", job.name, utc(run.scheduled_for))]
    more = facts.active_count - len(facts.active)
    if more > 0:
        said.append(f"{more} more {'wait' if more > 1 else 'waits'}")
    said += _of_events(facts)
    if facts.deliveries.get(DeliveryStatus.DEAD):
        steps = [*steps, command("deliveries", "--job", job.name, "--status", "dead")]
    if outcome is Outcome.FUTURE and facts.active:
        outcome = _UNDER_WAY[facts.active[0].status]
    return outcome, said, steps


def _of_status(facts: Facts, job: Job) -> Answer:
    if job.status is not JobStatus.ACTIVE:
        outcome, said, steps = inactive(facts, job)
        if facts.unreadable is not None:  # a job in error says why by its reason
            said += [] if facts.unreadable in (job.status_reason or "") else [facts.unreadable]
            said.append(f"to repair it: {facts.remedy}")
        return outcome, said, steps
    if facts.times is None:
        return unreadable(facts, job)
    waits = pending(facts)
    if waits is None and facts.times.schedule.kind == "none":
        how = "when an event comes, or by hand" if job.definition.on is not None else "by hand"
        said = [f"the job is active; it has no times: it runs {how}"]
        return Outcome.FUTURE, said, [command("run", job.name)]
    if waits is None:  # `after`, whose run is not over
        return Outcome.FUTURE, ["the job is active: it is due again when its run is over"], []
    outcome, said, steps = due(
        facts, job, waits, f"the job is active, and its next occurrence is {local(waits, facts)}"
    )
    return outcome, said, steps


def _of_events(facts: Facts) -> list[str]:
    """What events want of it, apart from what its runs carry already."""
    said = []
    waiting, dead = (facts.deliveries.get(one, 0) for one in (DeliveryStatus.PENDING, DeliveryStatus.DEAD))
    if waiting:
        said.append(f"deliveries of events that wait for a run: {waiting}")
    if dead:
        said.append(f"deliveries of events that are dead, and need somebody: {dead}")
    return said


def _shown(run: Run, facts: Facts) -> str:
    of = f"run {run.id} (of {local(run.scheduled_for, facts)})"
    if run.status == "running" and run.started_at is not None:
        on = "" if run.worker is None else f" on {run.worker}"
        return f"{of} is running since {moment(run.started_at, facts)}{on}"
    return f"{of} is {run.status} since {moment(run.dispatched_at or run.queued_at, facts)}"
