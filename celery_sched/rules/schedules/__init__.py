"""Kinds of schedule: text in, ``next_after(instant)`` out. One kind a file; pure, no I/O."""

from celery_sched.rules.schedules.base import Schedule, between, count_in, latest_in
from celery_sched.rules.schedules.texts import FORMS, parse
from celery_sched.rules.schedules.zones import check_zone

__all__ = ["FORMS", "Schedule", "between", "check_zone", "count_in", "latest_in", "parse"]
