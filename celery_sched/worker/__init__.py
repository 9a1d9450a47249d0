"""The worker's side: the gate around every task, the lease keeper and the killer.

:func:`install` is all that others need. What cannot be killed where: prefork children are killed exactly;
threads and solo cannot be, there the lease of a hung run ends and the sweep settles it while its thread
goes on until it ends by itself.
"""

from __future__ import annotations

from typing import Any

from celery import signals
from celery.app.task import Task

from celery_sched.worker import bootsteps, closed, gate


def install(app: Any) -> None:
    """Make every worker of ``app`` ask before it runs a body. Any time, any number of times."""
    gate.install()
    closed.install()
    Task.Request = "celery_sched.worker.request:Request"
    steps: Any = app.steps["worker"]
    for step in (bootsteps.KeeperStep, bootsteps.KeeperStart):
        steps.add(step)
    for signal, receiver in (
        (signals.worker_process_init, bootsteps.in_child),
        (signals.task_received, bootsteps.on_received),
        (signals.task_unknown, bootsteps.on_unknown),
        (signals.task_rejected, bootsteps.on_rejected),
    ):
        signal.connect(receiver, weak=False, dispatch_uid=f"celery_sched:{receiver.__name__}")
