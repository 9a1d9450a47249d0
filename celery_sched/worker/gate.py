"""The gate: no body of a run starts before the database said that this message may start it.

Celery builds a tracer for every task, in the prefork child and in the main process, and assigns it to
``task.__trace__``. Here that name is a property of Celery's ``Task`` whose setter wraps the tracer, so that
no kind of task (own ``__call__``, own ``before_start``, shared, bound, made before or after) gets past.
Messages that are not of a run go through untouched.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable
from typing import Any, NoReturn

from billiard.process import current_process
from celery.app.task import Context as Request
from celery.app.task import Task
from celery.exceptions import SoftTimeLimitExceeded, WorkerShutdown, WorkerTerminate
from kombu.exceptions import EncodeError

from celery_sched import context, secrets
from celery_sched.client.events import Events
from celery_sched.errors import DatabaseUnavailable
from celery_sched.failpoints import failpoint
from celery_sched.model import RunKey
from celery_sched.rules.transitions import RunStatus
from celery_sched.steps.finish import Outcome, celery_retry, finish
from celery_sched.steps.start import Started, Verdict, start
from celery_sched.worker import exclusive, keepers, message, outcomes, soft, trust
from celery_sched.worker.board import NEVER
from celery_sched.worker.keeper import Keeper

logger = logging.getLogger("celery_sched.worker")
PAUSE = 0.25
"""Seconds between two tries while the database is away."""
DOOMED = 60.0
"""Seconds after which a child that was told to end, and is not killed, ends by itself."""
OUTAGE = 86_400.0
"""Seconds for which an outcome is tried to be written: its worker keeps the run as soon as it can again."""
_NAME = "__trace__"


class Gate:
    """The tracer of one task, behind the check."""

    def __init__(self, task: Any, tracer: Callable[..., Any]) -> None:
        self._task, self._tracer = task, tracer

    def __call__(self, uuid: str, args: Any, kwargs: Any, request: Any) -> Any:
        key = message.key_of(request)
        keeper = None if key is None else keepers.of(self._task.app)
        if key is None or keeper is None:
            return self._tracer(uuid, args, kwargs, request)
        with soft.held_off(), secrets.watching():
            return self._run(keeper, key, uuid, args, kwargs, request)

    def _run(self, keeper: Keeper, key: RunKey, uuid: str, args: Any, kwargs: Any, request: Any) -> Any:
        asked_at = trust.clock()
        try:
            started = _start(keeper, key)
        except Exception as error:
            # Not run; the message is acknowledged. The run stays dispatched until its lease ends, then the
            # sweep publishes it again.
            logger.error("run %s was not started: %s", key.id, error, exc_info=not _is_outage(error))
            return outcomes.ignored()
        if started.verdict == Verdict.EARLY:
            self._again(request, args, kwargs, key)
        elif started.verdict == Verdict.DROP:
            # another app's run is not in our database: its message came through a queue that both consume
            ours = request.get(message.APP, keeper.runtime.config.app) == keeper.runtime.config.app
            level = logging.INFO if ours else logging.WARNING
            logger.log(level, "message of run %s, attempt %d, dropped: %s", key.id, key.attempt, started.why)
        if started.verdict != Verdict.YOURS:
            return outcomes.ignored()
        failpoint("start:committed")
        if started.of_event:
            kwargs = context.wanted_by(self._task.run, kwargs)
        call = (uuid, args, kwargs, request)
        refused = exclusive.refusal(keeper, started, asked_at) if started.exclusive else None
        if refused is not None:
            logger.error("the body of run %s was not begun: %s", key.id, refused.error)
            traced = self._failed(exclusive.NotBegun(refused.error), call)
        else:
            traced = self._body(keeper, key, started, asked_at, call)
        _settle(keeper, key, refused or outcomes.of(traced), Request(request), args, kwargs)
        return outcomes.portable(traced)

    def _body(
        self, keeper: Keeper, key: RunKey, started: Started, asked_at: float, call: tuple[Any, ...]
    ) -> Any:
        """Run the tracer, which runs the body and stores its result."""
        board = keeper.board
        in_main = os.getpid() == keeper.pid
        index = board.take() if in_main else getattr(current_process(), "index", None)
        trusted = exclusive.trusted_until(keeper, started, asked_at)
        if in_main:
            soft.warn(started.job, call[3].get("timelimit"))
        deadline = time.monotonic() + _seconds(started.deadline_at, started.now)
        board.enter(index, key, trusted, deadline, trusted if started.exclusive else NEVER)
        timer = exclusive.timer(keeper, index) if started.exclusive else None
        reset = context.current.set(
            context.Context(
                run_id=key.id,
                job=started.job,
                scheduled_for=started.scheduled_for or started.now,
                attempt=key.attempt,
                fence=started.fence,
                is_lost=lambda: board.has(index) and trust.clock() >= board.trusted_until(key),
                beat=lambda: board.beat(index, key),
                log=logging.getLogger(f"celery_sched.job.{started.job}"),
                hops=started.hops,
                publisher=Events(keeper.runtime).publish_of_run,
            )
        )
        try:
            if timer is not None:
                timer.start()
            with soft.let_in():
                return self._tracer(*call)
        except SoftTimeLimitExceeded as error:  # before the body began, or as it ended
            return self._failed(error, call)
        except MemoryError as error:
            return self._failed(outcomes.OutOfMemory(f"the task ran out of memory: {error}"), call)
        except (SystemExit, KeyboardInterrupt) as error:
            if isinstance(error, WorkerShutdown | WorkerTerminate) or _of_signal(error):
                raise  # the process ends; its main process, or the sweep, settles what it left
            # the body's own: sys.exit() ends a program, and a body is none; nothing died here
            return self._failed(RuntimeError(f"the task raised {outcomes.text_of(error)}"), call)
        finally:
            if board.leave(index) if timer is None else timer.leave():
                _wait_to_be_killed()
            context.current.reset(reset)
            if in_main and index is not None:
                board.give(index)

    def _failed(self, error: Exception, call: tuple[Any, ...]) -> Any:
        """What the tracer would have done for an exception that it lets through."""
        traced = outcomes.failed(error)
        uuid, _, _, request = call
        try:
            self._task.backend.mark_as_failure(uuid, error, traced.retval.traceback, request=Request(request))
        except Exception:
            logger.exception("the result of task %s was not stored", uuid)
        return traced

    def _again(self, request: Any, args: Any, kwargs: Any, key: RunKey) -> None:
        """The attempt before this one has not ended yet: deliver the same message a second later."""
        try:
            self._task.signature_from_request(Request(request), args, kwargs, countdown=1).apply_async()
        except Exception as error:
            # the sweep publishes it again when the attempt before has ended
            logger.error("run %s, attempt %d, could not be sent again: %s", key.id, key.attempt, error)


def install() -> None:
    """Put the gate before every task of this process, those that have a tracer already too."""
    if isinstance(Task.__dict__.get(_NAME), property):
        return

    def read(task: Any) -> Any:
        tracer = task.__dict__.get(_NAME)
        if tracer is not None and not isinstance(tracer, Gate):
            tracer = task.__dict__[_NAME] = Gate(task, tracer)
        return tracer

    def write(task: Any, tracer: Any) -> None:
        gated = tracer is None or isinstance(tracer, Gate)
        task.__dict__[_NAME] = tracer if gated else Gate(task, tracer)

    setattr(Task, _NAME, property(read, write))


def _wait_to_be_killed() -> NoReturn:
    """The body was told to end, and has. What it started is killed with this process, so it waits.

    It holds no lock here that others need. It must not return: it would settle the run, or take another task.
    """
    until = time.monotonic() + DOOMED
    while time.monotonic() < until:
        try:
            time.sleep(1)
        except BaseException as error:  # a signal's: a second SIGTERM, a soft time limit
            logger.debug("while waiting to be killed: %r", error)
    os._exit(1)


def _of_signal(error: BaseException) -> bool:
    """Whether a child's handler of a terminate signal raised it: the code is then the signal - 256."""
    code = getattr(error, "code", None)
    return isinstance(code, int) and -256 < code < -128


def _is_outage(error: Exception) -> bool:
    return isinstance(error, DatabaseUnavailable)


def _seconds(until: Any, now: Any) -> float:
    return float((until - now).total_seconds()) if until is not None else float("inf")


def _start(keeper: Keeper, key: RunKey) -> Started:
    """Ask for the right to start; a database that is briefly away is asked again for a third of the lease."""
    runtime = keeper.runtime
    until = time.monotonic() + runtime.config.renew_interval.total_seconds()
    while True:
        try:
            return runtime.database.run(
                lambda tx, now: start(tx, now, runtime.config, key, keeper.node, keeper.name)
            )
        except DatabaseUnavailable:
            if time.monotonic() + PAUSE > until:
                raise
            time.sleep(PAUSE)


def _settle(
    keeper: Keeper, key: RunKey, outcome: Outcome | outcomes.Asked, request: Any, args: Any, kwargs: Any
) -> None:
    """Write how the attempt ended. While the database is away, try again, however many leases that lasts.

    After an outage the sweep waits for a lease, so that workers come first. A write that is too late after
    all does no harm, its token no longer matches. What cannot be written is logged; the lease runs out and
    the sweep settles.
    """
    failpoint("finish:begin")
    until = time.monotonic() + OUTAGE
    while True:
        try:
            if isinstance(outcome, outcomes.Asked):
                _write_retry(keeper, key, outcome, request, args, kwargs)
            else:
                _write_outcome(keeper, key, outcome)
            failpoint("finish:committed")
            return
        except EncodeError as error:
            text = f"the arguments of its retry are no JSON: {error}"
            outcome = Outcome(RunStatus.FAILED, error=text, exceptions=outcomes.names_of(error))
        except DatabaseUnavailable as error:
            if time.monotonic() + PAUSE > until:
                logger.error("run %s: its outcome is not written, its lease runs out: %s", key.id, error)
                return
            time.sleep(PAUSE)
        except Exception:
            logger.exception("run %s: its outcome is not written, its lease runs out", key.id)
            return


def _write_outcome(keeper: Keeper, key: RunKey, outcome: Outcome) -> None:
    runtime = keeper.runtime
    finished = runtime.database.run(
        lambda tx, now: finish(tx, now, runtime.config, key, outcome, keeper.node)
    )
    if finished.pool is not None:
        runtime.slots.release(finished.pool, [key.id])
    if not finished.settled:
        logger.warning(
            "run %s, attempt %d, ended as %s but was not settled: %s",
            key.id,
            key.attempt,
            outcome.status.value,
            finished.why,
        )
    elif finished.again_in is not None:
        logger.info(
            "run %s, attempt %d, is %s; the next one begins in %.1f s",
            key.id,
            key.attempt,
            outcome.status.value,
            finished.again_in.total_seconds(),
        )


def _write_retry(
    keeper: Keeper, key: RunKey, asked: outcomes.Asked, request: Any, args: Any, kwargs: Any
) -> None:
    """Celery's own retry: its message is under way already; the run waits for it."""
    sent: Any = asked.retry.sig  # type: ignore[attr-defined]  # celery-types does not know it
    runtime = keeper.runtime
    stored_args, stored_kwargs = (
        outcomes.storable(value)
        for value in ((sent.args, sent.kwargs) if sent is not None else (args, kwargs))
    )
    moved = runtime.database.run(
        lambda tx, now: celery_retry(
            tx,
            now,
            runtime.config,
            key,
            eta=outcomes.retry_at(asked.retry, now, keeper.app),
            args=stored_args,
            kwargs=stored_kwargs,
            retries=int(request.retries or 0) + 1,
            reason=asked.reason,
            error=asked.error,
        )
    )
    if not moved:
        logger.info("run %s: its retry was refused, it was stopped or taken over", key.id)
