"""The keeper's place among the parts of a Celery worker."""

from __future__ import annotations

import logging
import os
from typing import Any

import celery
from celery import bootsteps
from celery.concurrency.prefork import TaskPool
from celery.exceptions import ImproperlyConfigured
from celery.worker.components import Pool

from celery_sched import runtime as runtimes
from celery_sched.rules.transitions import RunStatus
from celery_sched.steps.finish import Outcome
from celery_sched.worker import keepers, message
from celery_sched.worker.keeper import Keeper
from celery_sched.worker.request import adopt

logger = logging.getLogger("celery_sched.worker")


class KeeperStep(bootsteps.StartStopStep):
    """Makes the keeper; first to start and so last to stop, when the running tasks have finished."""

    def __init__(self, w: Any, **kwargs: Any) -> None:
        super().__init__(w, **kwargs)
        if getattr(w, "pool_start_method", "fork") != "fork":
            raise ImproperlyConfigured(
                f"worker_pool_start_method {w.pool_start_method!r} is refused: celery_sched kills hung "
                "runs by memory shared with the children, which needs 'fork'. Remove the setting."
            )
        self._keeper = Keeper(
            w.app,
            runtimes.of(w.app),
            w.hostname,
            facts=lambda: facts(w),
            terminate_job=lambda pid, signum: w.pool.terminate_job(pid, signum),
        )
        keepers.add(w.app, self._keeper)

    def include(self, parent: Any) -> bool:
        parent.steps.insert(0, self)
        return True

    def start(self, parent: Any) -> None:
        for task in parent.app.tasks.values():
            adopt(task)
        _settle_unreadable(parent.consumer, self._keeper)

    def stop(self, parent: Any) -> None:
        self._keeper.stop(cold=False)

    def terminate(self, parent: Any) -> None:
        self._keeper.stop(cold=True)


class KeeperStart(bootsteps.StartStopStep):
    """Starts the keeper's thread when the pool has forked: a fork beside a thread is best avoided."""

    requires = (Pool,)

    def start(self, parent: Any) -> None:
        keeper = keepers.of(parent.app)
        if keeper is not None:
            keeper.start()


def facts(w: Any) -> dict[str, Any]:
    """What a worker tells others about itself: what it consumes, and how."""
    pool = w.pool_cls
    return {
        "queues": sorted(str(name) for name in w.app.amqp.queues.consume_from),
        "prefetch": int(w.prefetch_multiplier),
        "acks_late": bool(w.app.conf.task_acks_late),
        "pool": f"{pool.__module__}:{pool.__qualname__}" if isinstance(pool, type) else str(pool),
        "concurrency": w.concurrency,
        # whether a body that hangs can be killed: only where it is in a process of its own
        "kills": isinstance(pool, type) and issubclass(pool, TaskPool),
        "gate": True,
        "celery": celery.__version__,
    }


def in_child(**_: Any) -> None:
    """A child leads a process group, so that a kill reaches what its job started."""
    ours = keepers.every()
    if ours and all(keeper.pid != os.getpid() for keeper in ours):
        try:
            os.setsid()
        except PermissionError:
            logger.debug("child %d leads a group already", os.getpid())


def on_received(sender: Any, request: Any, **_: Any) -> None:
    """The message of a run arrived (one that waits for its eta is noted when that has come)."""
    keeper, key = keepers.of(sender.app), message.key_of(request.request_dict)
    if keeper is not None and key is not None and request.eta is None:
        keeper.received(key)


def on_unknown(sender: Any, message: Any, name: str, **_: Any) -> None:
    """The task of a run is not registered here."""
    _fail(sender.app, message, f"task {name!r} is not registered on worker {sender.hostname}")


def on_rejected(sender: Any, message: Any, exc: BaseException | None = None, **_: Any) -> None:
    """The message of a run is no valid task message."""
    _fail(sender.app, message, f"worker {sender.hostname} cannot read its message: {exc!r}")


def _settle_unreadable(consumer: Any, keeper: Keeper) -> None:
    """Celery acknowledges a message that it cannot decode, and tells nobody."""
    inherited = consumer.on_decode_error

    def on_decode_error(unreadable: Any, exc: Exception) -> Any:
        _fail(keeper.app, unreadable, f"worker {keeper.name} cannot decode its message: {exc!r}")
        return inherited(unreadable, exc)

    consumer.on_decode_error = on_decode_error


def _fail(app: Any, received: Any, text: str) -> None:
    keeper, key = keepers.of(app), message.key_of(received.headers)
    if keeper is not None and key is not None:
        keeper.settle(key, Outcome(RunStatus.FAILED, error=text))
