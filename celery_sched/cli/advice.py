"""What is allowed and yet looks like a mistake: said when a job is made or changed, and nothing else."""

from __future__ import annotations

from datetime import timedelta

import click

from celery_sched.cli import did_you_mean
from celery_sched.cli.access import app_of
from celery_sched.cli.output import say
from celery_sched.model import Job, JobStatus
from celery_sched.rules.schedules import between
from celery_sched.rules.upcoming import jitter_for

FREQUENT = timedelta(seconds=10)
CRON_WITH_SECONDS = 6


def warn_of_unknown_task(ctx: click.Context, task: str) -> None:
    """Say so when this app, as it is installed here, has no such task; a worker elsewhere may have it."""
    app = app_of(ctx)
    try:
        app.loader.import_default_modules()
    except Exception as error:  # somebody's code: whatever it raises, the job is made
        say(f"Warning: whether there is a task {task!r} is not known: {error}", colour="yellow")
        return
    if task not in app.tasks:
        known = sorted(name for name in app.tasks if not name.startswith("celery."))
        say(f"Warning: this app has no task {task!r}.{did_you_mean(task, known)}", colour="yellow")


def warn_of_times(job: Job) -> None:
    """Say so when a job is never due, or more often than anybody is likely to want."""
    if job.status is JobStatus.EXPIRED:
        say(f"Warning: {job.name} will never run: {job.status_reason}.", colour="yellow")
    if job.next_run_at is None:
        return
    schedule = jitter_for(job.definition, job.anchor).schedule
    if schedule.kind == "after":
        return
    found = between(schedule, job.next_run_at, job.next_run_at + FREQUENT, 1)
    pause = min((occurrence - job.next_run_at for occurrence in found), default=FREQUENT)
    if pause >= FREQUENT:
        return
    hint = ""
    if schedule.kind == "cron" and len(schedule.text.split()) >= CRON_WITH_SECONDS:
        hint = " The sixth field of cron is the seconds; Quartz and Spring have them first: quartz:..."
    text = f"Warning: {job.name} is due again {pause.total_seconds():g} s after its next run.{hint}"
    say(text, colour="yellow")
