"""Exclusion calendars: when a job is not due. A term in, spans of time out. One kind a file; pure, no I/O."""

from celery_sched.rules.calendars.base import Calendar, Span
from celery_sched.rules.calendars.texts import FORMS, canonical, read_calendar

__all__ = ["FORMS", "Calendar", "Span", "canonical", "read_calendar"]
