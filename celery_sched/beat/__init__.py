"""Celery beat's side: re-arm, one poll in a thread, sleep."""

from celery_sched.beat.scheduler import Scheduler

__all__ = ["Scheduler"]
