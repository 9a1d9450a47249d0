"""A Celery project of somebody else, which gets its schedules from celery_sched. Settings: environment."""

from __future__ import annotations

import json
import os

from celery import Celery

import celery_sched

app = Celery("shop")
app.conf.update(
    imports=("jobs",),
    timezone="UTC",
    # as the documentation advises: no worker sits on messages beside an idle one
    worker_prefetch_multiplier=1,
    task_acks_late=True,
    worker_cancel_long_running_tasks_on_connection_loss=False,
    broker_connection_retry_on_startup=True,
    broker_connection_max_retries=None,
    # a busy machine forks slowly
    worker_proc_alive_timeout=60.0,
    # outcomes are in the database
    task_ignore_result=True,
)
app.conf.update(json.loads(os.environ["E2E_SETTINGS"]))
celery_sched.setup(app)
