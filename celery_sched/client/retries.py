"""The client: runs are carried out again, and their attempts looked at."""

from __future__ import annotations

from datetime import datetime

from celery_sched.client.base import Base
from celery_sched.errors import NotFound, RunRefused
from celery_sched.model import Attempt, Run, RunId
from celery_sched.steps.retry import retry
from celery_sched.store import attempts, on_lost
from celery_sched.store.engine import Tx


class Retries(Base):
    """What people do with runs that are over."""

    def retry(self, run_id: RunId, *, by: str = "python") -> Run:
        """Have a finished run carried out again now, as a new attempt, however it ended; see :meth:`wait`.

        It waits until no other run of its job is under way; ``overlap`` does not refuse it.

        :raises NotFound: no such run.
        :raises RunRefused: it is not over yet, or its job is gone; nothing was written.
        """

        def work(tx: Tx, now: datetime) -> Run:
            self._run(tx, run_id)  # of this app
            done = retry(tx, now, run_id)
            if done is None:
                raise NotFound("run", run_id, "See: sched runs.")
            if done.refused is not None:
                raise RunRefused(done.job, done.refused, run_id)
            self._note(tx, now, by, "retry", f"run:{run_id}", {"was": done.status})
            return self._run(tx, run_id)

        return self._database.run(work)

    def attempts(self, run_id: RunId) -> list[Attempt]:
        """The attempts of a run that were over before its current one, or its last one, began; in order.

        :raises NotFound: no such run.
        """

        def work(tx: Tx, now: datetime) -> list[Attempt]:
            self._run(tx, run_id)
            return attempts.of_run(tx, run_id)

        return self._database.read(work)

    def put_right_by(self, run_id: RunId) -> list[Run]:
        """The runs of its job's ``on_lost`` task that were made for a run, in order; one for each bad end.

        :raises NotFound: no such run.
        """

        def work(tx: Tx, now: datetime) -> list[Run]:
            self._run(tx, run_id)
            return on_lost.of_run(tx, self._config.app, run_id)

        return self._database.read(work)
