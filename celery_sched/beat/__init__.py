"""Celery beat's side: re-arm, one poll in a thread, sleep."""

import logging

# a scheduler looks at the schema's revision at its start; what Alembic says about itself then helps nobody
logging.getLogger("alembic").setLevel(logging.WARNING)

from celery_sched.beat.scheduler import Scheduler  # noqa: E402

__all__ = ["Scheduler"]
