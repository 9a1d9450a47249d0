"""Races, staged: one side has its rows, uncommitted, while the other comes; each pair in both orders.

Where rows are locked the loser waits for them or passes them over; on SQLite it waits for the database.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest
from sqlalchemy import event

from celery_sched.model import RunKey
from celery_sched.rules.transitions import RunStatus
from celery_sched.steps.finish import Outcome, finish
from celery_sched.steps.plan import plan
from celery_sched.steps.receive import receive
from celery_sched.steps.renew import renew
from celery_sched.steps.start import Verdict, start
from celery_sched.steps.stop import stop
from celery_sched.steps.sweep import sweep
from celery_sched.store import queue
from celery_sched.store.engine import Database
from tests import invariants
from tests.private_server import wait_until
from tests.store.world import PATIENCE, Bench

Step = Callable[[Any, Any], Any]


@contextmanager
def during(bench: Bench, first: Step, second: Callable[[Database], Any]) -> Iterator[tuple[Any, Future[Any]]]:
    """Inside ``first``'s transaction, before it commits, ``second`` is under way in another session."""
    one, two = bench.session(), bench.session()
    with ThreadPoolExecutor(2) as threads:
        done, go = threading.Event(), threading.Event()

        def work(tx: Any, now: Any) -> Any:
            found = first(tx, now)
            done.set()
            assert go.wait(PATIENCE)
            return found

        before = threads.submit(one.run, work)
        try:
            wait_until(lambda: done.is_set() or before.done(), PATIENCE, "the first side to have its rows")
            asked = threading.Event()
            event.listen(two.engine, "before_cursor_execute", lambda *_: asked.set())
            after = threads.submit(second, two)
            wait_until(asked.is_set, PATIENCE, "the second side to ask the database")
            if bench.database.dialect.row_locks:
                wait_until(lambda: after.done() or _waits(bench), PATIENCE, "the second side to wait")
        finally:
            go.set()
        yield before.result(PATIENCE), after


def _waits(bench: Bench) -> bool:
    """Whether somebody waits for a row's lock in this database."""
    if bench.database.dialect.name == "mariadb":
        # MariaDB shows what it saw before, until nobody has asked for a tenth of a second
        threading.Event().wait(0.11)
    statement = {
        "postgresql": "SELECT count(*) FROM pg_stat_activity"
        " WHERE datname = current_database() AND wait_event_type = 'Lock'",
        "mariadb": "SELECT count(*) FROM information_schema.innodb_trx WHERE trx_state = 'LOCK WAIT'",
    }[bench.database.dialect.name]
    return bool(bench.database.read(lambda tx, now: tx.exec_driver_sql(statement).scalar_one()))


def _expired(bench: Bench) -> RunKey:
    key = bench.running().key
    bench.clock.advance(61)
    return key


def test_the_sweep_loses_against_a_renewal_that_came_between(bench: Bench) -> None:
    """sweep's UPDATE loses against a renewal that came between: the renewal has the row."""
    key = _expired(bench)
    with during(bench, lambda tx, now: renew(tx, now, bench.config, [key], bench.node), bench.sweep) as (
        renewed,
        swept,
    ):
        assert [key.id] == list(renewed.leases)
        assert () == swept.result(PATIENCE).settled
    assert "running" == bench.status(key.id)
    assert bench.finish(key).settled
    invariants.check(bench.database)


def test_a_renewal_loses_against_the_sweep_that_came_before(bench: Bench) -> None:
    """sweep's UPDATE has the row first: the renewal waits, then finds that its token is stale."""
    key = _expired(bench)
    with during(
        bench,
        lambda tx, now: sweep(tx, now, bench.config),
        lambda session: bench.renew(key, database=session),
    ) as (swept, renewed):
        assert [key.id] == [row.id for row, _, _ in swept.settled]
        found = renewed.result(PATIENCE)
        assert ({}, frozenset({key.id})) == (found.leases, found.stale)
    assert "lost" == bench.status(key.id)
    invariants.check(bench.database)


def test_the_sweep_reads_again_what_it_has_found(bench: Bench) -> None:
    """sweep's UPDATE loses against a renewal that came between its look and its lock."""
    if not bench.database.dialect.row_locks:
        pytest.skip("one writer at a time: nothing comes between within a transaction")
    key = _expired(bench)
    session, other = bench.session(), bench.session()
    renewed = []

    def between(_conn: Any, _cursor: Any, statement: str, *_rest: Any) -> None:
        if "sched_run" in statement and "FOR UPDATE" in statement and not renewed:
            renewed.append(bench.renew(key, database=other))

    event.listen(session.engine, "before_cursor_execute", between)
    assert () == bench.sweep(session).settled
    assert [key.id] == list(renewed[0].leases)
    assert "running" == bench.status(key.id)
    invariants.check(bench.database)


def test_finish_then_sweep(bench: Bench) -> None:
    """An outcome that is being written stays, however late it is: the sweep gets nothing."""
    key = _expired(bench)
    with during(bench, _finish(bench, key), bench.sweep) as (finished, swept):
        assert finished.settled
        assert () == swept.result(PATIENCE).settled
    assert "succeeded" == bench.status(key.id)
    invariants.check(bench.database)


def test_sweep_then_finish(bench: Bench) -> None:
    """An outcome that comes while the sweep settles its run is late: nothing changes but the audit."""
    key = _expired(bench)
    with during(
        bench,
        lambda tx, now: sweep(tx, now, bench.config),
        lambda session: bench.finish(key, database=session),
    ) as (swept, finished):
        assert 1 == len(swept.settled)
        assert not finished.result(PATIENCE).settled
    assert ("lost", 1) == (bench.status(key.id), bench.totals().late_settlers)
    invariants.check(bench.database)


def test_stop_then_start(bench: Bench) -> None:
    """A run that is being cancelled does not start."""
    key = bench.claimed().key
    with during(bench, _stop(key), lambda session: bench.start(key, database=session)) as (_, started):
        assert Verdict.DROP == started.result(PATIENCE).verdict
    assert ("cancelled", 0) == (bench.status(key.id), bench.in_flight())
    invariants.check(bench.database)


def test_start_then_stop(bench: Bench) -> None:
    """A run that is being started is asked to stop, and keeps lock and slot until its worker killed it."""
    key = bench.claimed().key
    with during(
        bench,
        lambda tx, now: start(tx, now, bench.config, key, bench.node, "worker@test"),
        lambda session: session.run(_stop(key)),
    ) as (started, stopped):
        assert Verdict.YOURS == started.verdict
        assert stopped.result(PATIENCE).requested
    assert ("running", key.id, 1) == (bench.status(key.id), bench.job_row().locked_by, bench.in_flight())
    assert [key.id] == list(bench.renew(key).stopped)
    invariants.check(bench.database)


def test_two_starts(bench: Bench) -> None:
    """Of two messages that are started at the same time one starts the body."""
    key = bench.claimed().key
    with during(
        bench,
        lambda tx, now: start(tx, now, bench.config, key, bench.node, "worker@test"),
        lambda session: bench.start(key, database=session),
    ) as (first, second):
        verdicts = (first.verdict, second.result(PATIENCE).verdict)
        assert (Verdict.YOURS, Verdict.DROP) == verdicts


def test_receipt_then_mark(bench: Bench) -> None:
    """a late publish mark does not undo a receipt that is being written."""
    dispatch = bench.claimed()
    with during(
        bench,
        lambda tx, now: receive(tx, now, bench.config, [dispatch.key], bench.node),
        lambda session: bench.published(dispatch, database=session),
    ) as (received, marked):
        assert ((dispatch.key,), 0) == (received.taken, marked.result(PATIENCE))
    assert 60 == (bench.row(dispatch.key.id).lease_expires_at - bench.clock.now).total_seconds()


def test_mark_then_receipt(bench: Bench) -> None:
    """A receipt that comes while its publish is being marked shortens the lease and counts nothing."""
    dispatch = bench.claimed()
    with during(
        bench,
        lambda tx, now: bench.mark(tx, now, dispatch),
        lambda session: bench.receive(dispatch.key, database=session),
    ) as (marked, received):
        assert (1, (dispatch.key,)) == (marked, received.result(PATIENCE).taken)
    row = bench.row(dispatch.key.id)
    assert (1, 60) == (row.publish_count, (row.lease_expires_at - bench.clock.now).total_seconds())


def test_two_plans(bench: Bench) -> None:
    """Two schedulers plan the same occurrence: one run."""
    bench.job()
    with during(bench, _plan(bench), lambda session: session.run(_plan(bench))) as (first, second):
        assert (1, 0) == (first, second.result(PATIENCE))
    assert ["queued"] == bench.statuses()
    invariants.check(bench.database)


def test_two_claims(bench: Bench) -> None:
    """Two schedulers claim the same run: one dispatch, one slot."""
    bench.job()
    bench.plan()
    with during(
        bench, lambda tx, now: bench.claiming(tx, now), lambda session: bench.claim(database=session)
    ) as (first, second):
        assert (1, 0) == (len(first), len(second.result(PATIENCE)))
    assert (1, 1) == (bench.in_flight(), bench.row(first[0].key.id).fence)
    invariants.check(bench.database)


def test_two_claims_at_the_cap(make_bench: Callable[..., Bench]) -> None:
    """Two schedulers claim different runs for the last slot: one of them gets it."""
    bench = make_bench(max_concurrent_jobs=1)
    ids = []
    for name in ("one", "two"):
        job = bench.job(name)
        bench.plan()
        ids.append((bench.scheduler.runs(name)[0].id, job.id))
    with during(
        bench,
        lambda tx, now: bench.claiming(tx, now, ids[:1]),
        lambda session: session.run(lambda tx, now: bench.claiming(tx, now, ids[1:])),
    ) as (first, second):
        assert (1, 0) == (len(first), len(second.result(PATIENCE)))
    assert 1 == bench.in_flight()
    invariants.check(bench.database)


def _finish(bench: Bench, key: RunKey) -> Step:
    outcome = Outcome(RunStatus.SUCCEEDED)
    return lambda tx, now: finish(tx, now, bench.config, key, outcome, bench.node)


def _stop(key: RunKey) -> Step:
    return lambda tx, now: stop(tx, now, key.id, "somebody", "enough")


def _plan(bench: Bench) -> Step:
    return lambda tx, now: plan(tx, now, bench.config).planned


def test_what_waits_is_known(bench: Bench) -> None:
    """The look for sessions that wait sees none where none waits (else the stages above prove nothing)."""
    if bench.database.dialect.row_locks:
        assert not _waits(bench)
    assert [] == bench.database.read(lambda tx, now: queue.held_in_pools(tx, bench.config.app))
