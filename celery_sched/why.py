"""Why a job did or did not run at a time: what the database says of it is read here; the rules judge."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import datetime
from typing import Any

from celery_sched.config import Config
from celery_sched.errors import InvalidValue
from celery_sched.model import Job, JobDefinition, JobId, Overlap, Run, RunId, Source
from celery_sched.rules import why as rules
from celery_sched.rules.definition import checked
from celery_sched.rules.identity import occurrence_key
from celery_sched.rules.jitter import Jitter
from celery_sched.rules.schedules import check_zone
from celery_sched.rules.transitions import RunStatus
from celery_sched.rules.upcoming import TIMES, jitter_for, jitter_of, remedy
from celery_sched.rules.why import Act, Asked, Facts, GapSeen, Recorded, Slots, Why
from celery_sched.rules.why.asked import MINUTE
from celery_sched.store import (
    apps,
    deliveries,
    gaps,
    history,
    job_forms,
    jobs,
    on_lost,
    pools,
    queue,
    runs,
    waiting,
)
from celery_sched.store.engine import Row, Tx

MOST_ACTIVE = 5
"""Runs under way that an answer names; of more it says how many."""
_IN_THE_WAY = re.compile(r"(?:overlap|queue_one): run (\S+) ")


def look_why(
    tx: Tx, now: datetime, config: Config, name: str, given: str | datetime, run_id: RunId | None = None
) -> Why:
    """Answer for a job of the app, which may be deleted by now, and a TIME as typed.

    :param run_id: the run of that time which is meant.
    :raises InvalidValue: a TIME that cannot be read.
    """
    row = jobs.get(tx, config.app, name)
    job = None if row is None else job_forms.from_row(row)
    times, unreadable, cure = _times(row)
    zone = check_zone("UTC" if job is None or times is None else job.definition.timezone)
    asked = rules.read_asked(given, zone, now)
    acts = history.acts(tx, config.app, name)
    earlier = _earlier(job, acts, asked.at)
    at, found = now, None
    if run_id is not None:
        at, found = asked.at, runs.find(tx, [run_id]).get(run_id)
    elif not asked.is_now:
        at, found = _meant(tx, config.app, name, job, _then(job, times, earlier, asked.at), asked)
    earlier = _earlier(job, acts, at)
    recorded = None if found is None else _recorded(found)
    active, active_count = ([], 0) if job is None else history.unfinished(tx, job.id, MOST_ACTIVE)
    app_row = apps.get(tx, config.app)
    last_pass_at = None if app_row is None else app_row.last_pass_at
    return rules.answer(
        Facts(
            name=name,
            asked=asked,
            at=at,
            now=now,
            zone=zone,
            keep=config.keep_runs,
            job=job,
            times=times,
            unreadable=unreadable,
            remedy=cure,
            recorded=recorded,
            gap=_gap(tx, config.app, name, job, at),
            other=None if recorded is None else _in_the_way(tx, job, recorded.run),
            slots=None if recorded is None else _slots(tx, config.app, recorded.run.pool),
            waits=None if recorded is None or row is None else _waits(tx, now, row, recorded.run),
            last_pass_at=last_pass_at,
            down=last_pass_at is None or now - last_pass_at > config.lease / 2,
            enabled=config.enabled,
            earlier=earlier,
            then=_then(job, times, earlier, at),
            edited=_edited(job, acts),
            deleted=_last(acts, "delete"),
            paused=_last([act for act in acts if act.at <= at], "pause"),
            active=[runs.from_row(one) for one in active],
            active_count=active_count,
            deliveries=(
                {} if job is None or not asked.is_now else deliveries.counts(tx, config.app, JobId(job.id))
            ),
            put_right_by=[] if recorded is None else on_lost.of_run(tx, config.app, RunId(recorded.run.id)),
            last_end=None if job is None else history.last_end(tx, config.app, name),
        )
    )


def _times(row: Row | None) -> tuple[Jitter | None, str | None, str]:
    """The job's times; where they cannot be read, why, and what is to be done."""
    if row is None:
        return None, None, ""
    try:
        times = jitter_of(row)
        times.schedule.next_after(row.created_at)
    except (
        Exception
    ) as error:  # a zone that vanished, a broken calendar: as the plan, which puts it to `error`
        return None, f"{type(error).__name__}: {error}", remedy(row.name, error)
    return times, None, ""


def _then(
    job: Job | None, times: Jitter | None, earlier: JobDefinition | None, at: datetime
) -> Jitter | None:
    """The times that the job had at an instant; None: nobody knows them."""
    if job is None or job.timing_since is None or at > job.timing_since:
        return times
    try:
        return None if earlier is None else jitter_for(earlier, job.anchor)
    except InvalidValue:
        return None


def _meant(
    tx: Tx, app: str, name: str, job: Job | None, times: Jitter | None, asked: Asked
) -> tuple[datetime, Row | None]:
    """The instant to answer for, and its run: that very instant first, else one of the same minute."""

    def run_of(at: datetime) -> Row | None:
        found = None if job is None else history.with_key(tx, occurrence_key(job.id, at))
        return found or history.at_instant(tx, app, name, at)

    for instant in (asked.at, asked.second):
        if instant is not None and (found := run_of(instant)) is not None:
            return instant, found
    at = None if times is None else rules.exact(times, asked)
    if at is not None:
        return at, run_of(at)
    start = asked.at.replace(second=0, microsecond=0)
    later = history.first_from(tx, app, name, asked.at, start + MINUTE)
    earlier = history.last_before(tx, app, name, start, asked.at)
    rows = [row for row in (earlier, later) if row is not None]
    nearest = min(rows, key=lambda row: abs(row.scheduled_for - asked.at), default=None)
    changed = job is not None and job.timing_since is not None and asked.at <= job.timing_since
    if times is not None and not (changed and nearest is not None):
        at = rules.within_minute(times, asked)
        if at is not None:
            return at, run_of(at)
    if nearest is not None:
        return nearest.scheduled_for, nearest
    waits = None if job is None else job.next_run_at  # an instant set by hand, not planned yet
    return (waits if waits is not None and start <= waits < start + MINUTE else asked.at), None


def _recorded(row: Row) -> Recorded:
    return Recorded(
        runs.from_row(row),
        expires_at=row.expires_at,
        at_capacity_at=row.at_capacity_at,
        backfill_id=row.backfill_id,
        publish_count=row.publish_count,
        eta=row.eta,
    )


def _gap(tx: Tx, app: str, name: str, job: Job | None, at: datetime) -> GapSeen | None:
    row: Any
    if job is None or at <= job.created_at:
        row = history.gap_of_name(tx, app, name, at)
    else:
        row = gaps.covering(tx, job.id, at)
    return None if row is None else GapSeen(row.from_at, row.to_at, row.count, row.reason)


def _in_the_way(tx: Tx, job: Job | None, run: Run) -> Run | None:
    """The run that skipped this one, or that this one waits for."""
    named = _IN_THE_WAY.match(run.reason or "")
    if named is not None:
        row: Any = runs.find(tx, [RunId(named.group(1))]).get(RunId(named.group(1)))
    elif (
        run.status == RunStatus.QUEUED
        and job is not None
        and job.definition.overlap is not Overlap.CONCURRENT
    ):
        row = history.holder(tx, run.job_id)
    else:
        return None
    return None if row is None else runs.from_row(row)


def _slots(tx: Tx, app: str, name: str) -> Slots:
    known = pools.every(tx, app).get(name)
    return Slots(
        name, None if known is None else known.slots, queue.held_counts(tx, app, [name]).get(name, 0)
    )


def _waits(tx: Tx, now: datetime, job_row: Row, run: Run) -> str | None:
    """What a queued run whose time has come waits for, in words."""
    if run.status != RunStatus.QUEUED or run.ready_at > now:
        return None
    return waiting.of(tx, now, job_row, run.id)[0]


def _earlier(job: Job | None, acts: Sequence[Row], at: datetime) -> JobDefinition | None:
    """The times that the job had at an instant before they were changed, put together from the audit.

    Only of a job that people made: what a deploy changes is not in the audit.
    """
    if job is None or job.source is not Source.OPERATOR or job.timing_since is None or at > job.timing_since:
        return None
    fields: dict[str, Any] = {}
    for act in acts:
        if job.created_at <= act.at <= at and act.action in ("add", "edit"):
            fields |= {name: act.detail[name] for name in TIMES if name in act.detail}
    if "schedule" not in fields:
        return None
    try:
        return checked(name=job.name, task=job.definition.task, **fields)
    except InvalidValue:  # what an older release took and this one does not
        return None


def _edited(job: Job | None, acts: Sequence[Row]) -> Act | None:
    """Who changed the times last; None: a deploy."""
    if job is None or job.timing_since is None:
        return None
    return _last([act for act in acts if act.at == job.timing_since], "edit")


def _last(acts: Sequence[Row], action: str) -> Act | None:
    found = [act for act in acts if act.action == action]
    return Act(found[-1].at, found[-1].actor, action) if found else None
