"""Celery's request in the main process, which learns what a child could not say itself.

Everything here runs in the thread of Celery's event loop, so it waits for nothing and tells the keeper.
"""

from __future__ import annotations

from typing import Any

from celery.exceptions import Terminated, TimeLimitExceeded, WorkerLostError
from celery.utils.imports import symbol_by_name
from celery.worker import request as celery_request
from celery.worker.state import task_ready

from celery_sched.model import RunKey
from celery_sched.rules.transitions import RunStatus
from celery_sched.steps.finish import Outcome
from celery_sched.worker import keepers, killer, message, outcomes, trust
from celery_sched.worker.endings import Absent, Ending
from celery_sched.worker.keeper import Keeper


class Settling:
    """What is added to a request class: runs whose child died, timed out or was revoked are settled."""

    def _run(self: Any) -> tuple[Keeper, RunKey] | None:
        keeper = keepers.of(self._app)
        key = None if keeper is None else message.key_of(self._request_dict)
        return None if keeper is None or key is None else (keeper, key)

    def on_failure(self: Any, exc_info: Any, send_failed_event: bool = True, return_ok: bool = False) -> Any:
        run = self._run()
        inherited = super().on_failure  # type: ignore[misc]
        error = outcomes.unwrapped(exc_info)
        if run is not None and isinstance(error, MemoryError):
            # passed on it would stop the whole worker, and its message would come again
            error = outcomes.OutOfMemory(f"the task ran out of memory: {error}")
            exc_info = outcomes.info_of(error)
        if run is None or return_ok:  # told by the child, which has settled it
            return inherited(exc_info, send_failed_event, return_ok)
        keeper, key = run
        ending = keeper.killed(key)
        if ending is not None and isinstance(error, Terminated | WorkerLostError):
            return self._on_killed(ending)
        if isinstance(error, TimeLimitExceeded):
            self._kill_started()
            seconds = float(error.args[0])
            self._end(keeper, key, RunStatus.TIMED_OUT, f"ran longer than its time_limit ({seconds:g} s)")
        elif isinstance(error, Terminated):
            if not self._already_cancelled:
                self._end(keeper, key, RunStatus.CANCELLED, "terminated by Celery's remote control")
        elif isinstance(error, WorkerLostError | SystemExit | KeyboardInterrupt):
            place = keeper.board.find(key)
            by_timer = place is not None and place.timer
            died = f"the child process died: {outcomes.text_of(error)}"
            self._end(keeper, key, RunStatus.LOST, trust.WHY if by_timer else died)
        else:
            # outside the gate, in a child that lives: its message or its answer could not be read
            text, names = outcomes.error_text(error, exc_info), outcomes.names_of(error)
            keeper.settle(key, Outcome(RunStatus.FAILED, error=text, exceptions=names))
        return inherited(exc_info, send_failed_event, return_ok)

    def _on_killed(self: Any, ending: Ending) -> None:
        """The keeper's own kill, which it settles itself: only Celery has to be told."""
        outcome = ending.outcome
        if outcome is None:
            # the run has gone on elsewhere under the same task id: its result is not ours to write
            task_ready(self)
            self.acknowledge()
        elif outcome.status is RunStatus.TIMED_OUT:
            info = outcomes.info_of(TimeLimitExceeded(ending.why))
            super().on_failure(info)  # type: ignore[misc]
        elif not self._already_cancelled:
            super()._announce_revoked("terminated", True, "SIGKILL", False)  # type: ignore[misc]

    def _end(
        self: Any, keeper: Keeper, key: RunKey, status: RunStatus, text: str, absent: Absent = Absent.WRITE
    ) -> None:
        """Have a run settled once its child is dead, and what the child started with it."""
        cancelled = status is RunStatus.CANCELLED
        outcome = Outcome(status, error=None if cancelled else text, reason=text)
        dying = self.worker_pid if absent is Absent.WRITE else None
        keeper.end(Ending(key, outcome, text, absent, dying))

    def _kill_started(self: Any) -> None:
        """Kill what the child has started: Celery kills the child itself in a moment.

        Not left to the keeper, which may be waiting for the database: once the child is dead, a process with
        a session of its own cannot be told from others.
        """
        if self.worker_pid is not None:
            killer.kill_leftovers(self.worker_pid)

    def terminate(self: Any, pool: Any, signal: Any = None) -> None:
        """Celery's remote control: kill exactly this run, and announce it when it is dead."""
        run = self._run()
        if run is None:
            super().terminate(pool, signal)  # type: ignore[misc]
        elif self.time_start is None:
            self._terminate_on_ack = pool, signal
        else:
            self._end(*run, RunStatus.CANCELLED, "terminated by Celery's remote control", Absent.WAIT)

    def cancel(self: Any, pool: Any, signal: Any = None, emit_retry: bool = True) -> None:
        """A cold shutdown, or a lost broker connection where the app wants its tasks cancelled then."""
        if self._run() is not None and self.time_start is not None:
            self._kill_started()
        super().cancel(pool, signal, emit_retry)  # type: ignore[misc]
        run = self._run()
        if run is not None and self.time_start is not None:
            self._end(*run, RunStatus.LOST, "cancelled by its worker (shutdown, or broker connection lost)")

    def _announce_revoked(self: Any, reason: str, terminated: bool, signum: Any, expired: bool) -> None:
        super()._announce_revoked(reason, terminated, signum, expired)  # type: ignore[misc]
        run = self._run()
        if run is not None and not terminated:
            keeper, key = run
            status = RunStatus.SKIPPED if expired else RunStatus.CANCELLED
            text = "expired: it could not start in time" if expired else "revoked by Celery's remote control"
            keeper.settle(key, Outcome(status, reason=text))


class Request(Settling, celery_request.Request):
    """The request of every task whose class does not name one of its own."""


def adopt(task: Any) -> None:
    """Have a task whose class names a request class of its own settle its runs too."""
    named: Any = symbol_by_name(task.Request)
    if not issubclass(named, Settling):
        task.Request = type(named.__name__, (Settling, named), {})
