"""What the gate does for an exclusive run: whether its body may begin here, until when, and its timer."""

from __future__ import annotations

import os

from billiard.process import current_process

from celery_sched.rules.transitions import RunStatus
from celery_sched.steps.finish import Outcome
from celery_sched.steps.start import Started
from celery_sched.worker import trust
from celery_sched.worker.deadman import DeadMan
from celery_sched.worker.keeper import Keeper


class NotBegun(Exception):
    """The body of a run was not begun; the message says why."""


def trusted_until(keeper: Keeper, started: Started, asked_at: float) -> float:
    """Until when the lease that the start gave is trusted. An exclusive body is killed then."""
    assert started.lease_expires_at is not None
    margin = trust.margin_of(keeper.runtime.config, started.exclusive)
    return trust.until(asked_at, started.now, started.lease_expires_at, margin)


def refusal(keeper: Keeper, started: Started, asked_at: float) -> Outcome | None:
    """What becomes of an exclusive run whose body must not begin here; ``None``: it may.

    Not where nobody could kill it, and not when what is left of its lease is needed for the kill already.
    """
    in_child = os.getpid() != keeper.pid and keeper.board.has(getattr(current_process(), "index", None))
    if not in_child:
        text = (
            f"job {started.job!r} is exclusive, and worker {keeper.name} cannot kill what it runs, which "
            "would go on beside the next run once its lease is lost: only prefork workers can. Give the job "
            "a queue that only those consume, or take exclusive out."
        )
        return Outcome(RunStatus.FAILED, error=text, reason="its worker cannot keep exclusive jobs")
    return trust.LOST if trust.clock() >= trusted_until(keeper, started, asked_at) else None


def timer(keeper: Keeper, index: int | None) -> DeadMan:
    """The dead-man timer of the body that this child is about to begin."""
    assert index is not None  # else it was refused
    return DeadMan(keeper.board, index, trust.timer_after(keeper.runtime.config))
