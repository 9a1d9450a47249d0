"""The client: named sets of slots."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from celery_sched.client.base import Base, near
from celery_sched.errors import AlreadyExists, InvalidValue, NotFound, SchedulerError
from celery_sched.model import Pool
from celery_sched.rules import readers
from celery_sched.store import jobs, pools, queue
from celery_sched.store.engine import Tx
from celery_sched.store.pools import DEFAULT

SHOWN = 5
"""Most jobs named where a pool cannot be deleted."""


@dataclass(frozen=True)
class PoolUse:
    """A pool's ``slots``, who has them and waits for them, and its ``jobs``."""

    name: str
    slots: int
    taken: int
    """Slots that are taken: the weights of the runs in flight."""
    in_flight: int
    """Runs that are dispatched or running."""
    waiting: int
    """Runs of it that are queued, whatever they wait for."""
    heaviest: int
    """The largest ``weight`` of its jobs; 0: it has none."""
    too_heavy: Sequence[str]
    """Jobs whose ``weight`` is more than its slots: their runs never start."""
    jobs: Sequence[str]


class Pools(Base):
    """What people do with pools."""

    def pools(self) -> list[Pool]:
        """All pools of the app, by name."""
        return self._database.read(lambda tx, now: list(pools.every(tx, self._config.app).values()))

    def pools_in_use(self) -> list[PoolUse]:
        """How all pools of the app are used, by name."""
        return self._database.read(self._uses)

    def get_pool(self, name: str) -> PoolUse:
        """How a pool is used. :raises NotFound: no such pool."""

        def work(tx: Tx, now: datetime) -> PoolUse:
            for found in self._uses(tx, now):
                if found.name == name:
                    return found
            raise self._no_pool(tx, name)

        return self._database.read(work)

    def _uses(self, tx: Tx, now: datetime) -> list[PoolUse]:
        app = self._config.app
        uses, weights = queue.use_of_pools(tx, app), jobs.weights(tx, app)
        found = []
        for pool in pools.every(tx, app).values():
            use, of_jobs = uses.get(pool.name, queue.Use()), weights.get(pool.name, {})
            heavy = [name for name, weight in of_jobs.items() if weight > pool.slots]
            found.append(
                PoolUse(
                    name=pool.name,
                    slots=pool.slots,
                    taken=use.taken,
                    in_flight=use.running,
                    waiting=use.waiting,
                    heaviest=max(of_jobs.values(), default=0),
                    # a pool of no slots is closed to all alike
                    too_heavy=heavy if pool.slots else [],
                    jobs=list(of_jobs),
                )
            )
        return found

    def create_pool(self, name: str, slots: int, *, by: str = "python") -> Pool:
        """Make a pool, for jobs to name in ``pool``.

        :raises InvalidValue: a name or a number of slots that is not allowed.
        :raises AlreadyExists: a pool of that name.
        """
        readers.a_name(name, "the name of a pool", 100)
        _check_slots(slots)

        def work(tx: Tx, now: datetime) -> Pool:
            if not pools.ensure(tx, self._config.app, name, slots):
                raise AlreadyExists("pool", name, f"To change it: sched pools resize {name} {slots}")
            self._note(tx, now, by, "create", f"pool:{name}", {"slots": slots})
            return Pool(self._config.app, name, slots)

        return self._database.run(work)

    def resize_pool(self, name: str, slots: int, *, by: str = "python") -> Pool:
        """Change a pool's slots while everything runs.

        :raises InvalidValue: not a whole number from 0 to 100000.
        :raises NotFound: no such pool.
        """
        _check_slots(slots)

        def work(tx: Tx, now: datetime) -> Pool:
            old = pools.resize(tx, self._config.app, name, slots)
            if old is None:
                raise self._no_pool(tx, name)
            self._note(tx, now, by, "resize", f"pool:{name}", {"old": old, "new": slots})
            return Pool(self._config.app, name, slots)

        return self._database.run(work)

    def delete_pool(self, name: str, *, by: str = "python") -> None:
        """Delete a pool that nothing uses.

        :raises NotFound: no such pool.
        :raises InvalidValue: it is ``default``, where jobs go that name none.
        :raises SchedulerError: jobs name it, or runs of it are not finished.
        """
        if name == DEFAULT:
            raise InvalidValue("pool", name, "it cannot be deleted: jobs that name no pool go there")

        def work(tx: Tx, now: datetime) -> None:
            app = self._config.app
            slots = pools.lock(tx, app, [name]).get(name)  # nobody gives it a job meanwhile
            if slots is None:
                raise self._no_pool(tx, name)
            using = jobs.names(tx, app, pool=name)
            if using:
                named = ", ".join(using[:SHOWN]) + (", ..." if len(using) > SHOWN else "")
                raise SchedulerError(
                    f"pool {name!r} is used by {len(using)} job(s) ({named}): give them another one first"
                )
            use = queue.use_of_pools(tx, app).get(name, queue.Use())
            unfinished = use.running + use.waiting
            if unfinished:
                raise SchedulerError(
                    f"pool {name!r} has {unfinished} run(s) that are not finished: wait, or cancel them"
                )
            pools.remove(tx, app, name)
            self._note(tx, now, by, "delete", f"pool:{name}", {"slots": slots})

        self._database.run(work)

    def _no_pool(self, tx: Tx, name: str) -> NotFound:
        known = list(pools.every(tx, self._config.app))
        return NotFound("pool", name, near(name, known) or f"There are: {', '.join(known) or 'none'}.")


def _check_slots(slots: int) -> None:
    if isinstance(slots, bool) or not isinstance(slots, int) or not 0 <= slots <= 100_000:
        raise InvalidValue("slots", slots, "a whole number from 0 to 100000")
