"""Celery's Scheduler: hands each poll to a thread and returns on time, whatever the poll is stuck in."""

from __future__ import annotations

import logging
import socket
import threading
import time
from collections.abc import Callable
from typing import Any

from celery.beat import Scheduler as CeleryScheduler

from celery_sched import decorators, doctor
from celery_sched.beat.deadlines import Watcher
from celery_sched.beat.notices import Teller
from celery_sched.beat.poll import DeadlinePassed, Poll, Polled
from celery_sched.beat.prune import Pruner
from celery_sched.errors import DatabaseUnavailable, SchedulerError, SchemaMismatch
from celery_sched.model import NodeKind
from celery_sched.runtime import new_node_id, of, this_process
from celery_sched.steps.define import Synced, sync
from celery_sched.store import schema
from celery_sched.store.engine import SQLAlchemyError

logger = logging.getLogger("celery_sched.beat")
MOST_AT_ONCE = 2
"""Polls that may overlap: one that hangs and the one that works meanwhile."""


class _Turn:
    """One poll in a thread of its own. Nothing waits for it longer than it wants to."""

    def __init__(self, poll: Callable[[float], Polled], seconds: float) -> None:
        self.began = time.monotonic()
        self.done = threading.Event()
        self.result: Polled | None = None
        self.error: BaseException | None = None
        self._poll, self._deadline = poll, self.began + seconds
        # a daemon: a poll that hangs must not keep a process that was told to stop
        threading.Thread(target=self._run, name="sched-poll", daemon=True).start()

    def _run(self) -> None:
        try:
            self.result = self._poll(self._deadline)
        except BaseException as error:
            self.error = error
        finally:
            self.done.set()


class Scheduler(CeleryScheduler):
    """``celery beat -S sched``: any number of them side by side, none of them a leader."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._turns: list[_Turn] = []
        self._ready = False
        self._unavailable = self._stuck = False
        self._pruner: Pruner | None = None
        self._teller: Teller | None = None
        self._watcher: Watcher | None = None
        super().__init__(*args, **kwargs)

    # Celery's own entries are not kept here: jobs live in the database
    schedule = {}

    def setup_schedule(self) -> None:
        """Check the settings and the schema; both stop the start when they are wrong.

        :raises SystemExit: wrong settings, or a schema that is not this release's.
        """
        try:
            self._runtime = of(self.app)
        except Exception as error:
            logger.critical("%s", error)
            raise SystemExit(2) from error
        config = self._runtime.config
        self._interval = config.poll_interval.total_seconds()
        self.max_interval = self._interval  # type: ignore[assignment]  # Celery sleeps any float
        self._longest = config.session_timeout.total_seconds() * 2
        self.node_id = new_node_id()
        self._poll: Poll | None = None
        if not config.enabled:
            logger.warning("sched_enabled is off: this scheduler plans, claims and sweeps nothing")
        own = list(self.app.conf.beat_schedule or {})
        if own:
            logger.warning(
                "beat_schedule has %d entr%s that this scheduler does not run: %s",
                len(own),
                "y" if len(own) == 1 else "ies",
                ", ".join(sorted(own)[:10]),
            )
        self._prepare()

    def tick(self, *_args: Any, **_kwargs: Any) -> float:
        """Start a poll, wait for it at most ``sched_poll_interval``, return seconds until the next one."""
        began = time.monotonic()
        if not self._ready and not self._prepare():
            return self._interval
        self._turns = [turn for turn in self._turns if not self._collect(turn)]
        if len(self._turns) >= MOST_AT_ONCE:
            if not self._stuck:
                since = began - min(turn.began for turn in self._turns)
                logger.error("%d polls hang, one for %.0f s: no other is begun", MOST_AT_ONCE, since)
            self._stuck = True
            return self._interval
        self._stuck = False
        poll = self._poll
        if poll is None:
            return self._interval
        turn = _Turn(poll, self._longest)
        if not turn.done.wait(self._interval):
            self._turns.append(turn)
            return 0.0
        if not self._collect(turn) or turn.result is None:
            return max(0.0, self._interval - (time.monotonic() - began))
        if turn.result.stop_requested:
            logger.warning("this scheduler was asked to stop: no more plans and claims")
            raise SystemExit(0)
        next_in = turn.result.next_in
        return self._interval if next_in is None else min(self._interval, max(0.0, next_in))

    def sync(self) -> None:
        """Nothing is kept in memory."""

    def close(self) -> None:
        """Let the polls that run end (bounded), then leave."""
        if self._pruner is not None:
            self._pruner.stop()
        if self._teller is not None:
            self._teller.stop()
        if self._watcher is not None:
            self._watcher.stop()
        deadline = time.monotonic() + self._longest
        for turn in self._turns:
            turn.done.wait(max(0.0, deadline - time.monotonic()))
        if self._poll is not None:
            try:
                self._poll.presence.leave()
            except DatabaseUnavailable as error:
                logger.warning("could not sign off: %s", error)
            self._poll.close()
            self._poll = None
        self._ready = False

    def _prepare(self) -> bool:
        """Schema, jobs in code, doctor; false while the database is away or refuses (the next tick tries).

        :raises SystemExit: jobs in code that contradict each other, or a schema that is not this release's.
        """
        runtime = self._runtime
        try:
            # before the transaction: somebody's modules may take their time
            definitions = decorators.definitions(self.app)
        except SchedulerError as error:
            logger.critical("%s", error)
            raise SystemExit(2) from error
        try:
            runtime.database.read(lambda tx, now: schema.check(tx, runtime.config.app))
            synced = runtime.database.run(lambda tx, now: sync(tx, now, runtime.config, definitions))
            now = runtime.database.read(lambda tx, now: now)
        except SchemaMismatch as error:
            logger.critical("%s", error)
            raise SystemExit(1) from error
        except (DatabaseUnavailable, SQLAlchemyError) as error:
            if not self._unavailable:
                logger.error("%s; trying again every %g s", error, self._interval)
                if isinstance(error, SQLAlchemyError):  # a right that is missing, above all: say which ones
                    self._start_examination()
            self._unavailable = True
            return False
        self._unavailable = False
        _report(synced)
        name = f"beat@{socket.gethostname()}"
        node = this_process(self.node_id, runtime.config.app, NodeKind.SCHEDULER, name, now, {})
        self._poll = Poll(runtime, self.app, node)
        self._pruner = Pruner(runtime)
        self._pruner.start()
        self._teller = Teller(runtime)
        self._teller.start()
        self._watcher = Watcher(runtime)
        self._watcher.start()
        self._start_examination()
        self._ready = True
        logger.info(
            "scheduler %s of app %r: %s",
            self.node_id,
            runtime.config.app,
            runtime.database.shown,
        )
        return True

    def _start_examination(self) -> None:
        threading.Thread(target=self._examine, name="sched-doctor", daemon=True).start()

    def _examine(self) -> None:
        """Run the doctor beside the first polls: a slow check must not delay the first job."""
        try:
            for finding in doctor.examine(self._runtime, self.app):
                if finding.level in ("warning", "error"):
                    logger.warning("doctor: %s: %s", finding.subject, finding.message)
        except Exception:
            logger.exception("the doctor could not examine this set-up")

    def _collect(self, turn: _Turn) -> bool:
        """Whether a poll has ended; its error is logged, an outage of the database once."""
        if not turn.done.is_set():
            return False
        error = turn.error
        if error is None:
            if self._unavailable:
                logger.warning("the database is back")
            self._unavailable = False
        elif isinstance(error, DatabaseUnavailable):
            if not self._unavailable:
                logger.error("%s", error)
            self._unavailable = True
        elif isinstance(error, DeadlinePassed):
            logger.warning("a poll took longer than %g s; the next one goes on", self._longest)
        else:
            logger.error("a poll failed", exc_info=error)
        return True


def _report(synced: Synced) -> None:
    """Say what the sync from code did."""
    for what in ("added", "changed", "disabled"):
        names = getattr(synced, what)
        if names:
            logger.info("jobs %s from code: %s", what, ", ".join(names))
    for name, fields in synced.kept:
        logger.warning("job %r keeps what was changed by hand: %s", name, ", ".join(fields))
    for name in synced.taken:
        logger.warning("job %r is in code, but a job of that name was added by hand: it is left alone", name)
