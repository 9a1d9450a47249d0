"""Races around stopping, staged: what replaces or pauses meets a finish, a claim or a start, both ways."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from celery_sched.client import Client
from celery_sched.model import RunId, RunKey
from celery_sched.rules.transitions import RunStatus
from celery_sched.runtime import Runtime
from celery_sched.steps.finish import Outcome, finish
from celery_sched.steps.plan import plan
from celery_sched.steps.start import Verdict, start
from celery_sched.store.engine import Database
from tests import invariants
from tests.race.test_staged import Step, during
from tests.store.world import PATIENCE, Bench


def _due(bench: Bench) -> None:
    """An hour later; what is held was renewed meanwhile."""
    later = bench.clock.advance(3600) + timedelta(minutes=10)
    for run in bench.scheduler.runs():
        if run.lease_expires_at is not None:
            bench.set_run(run.id, lease_expires_at=later, deadline_at=run.deadline_at and later)


def _plan(bench: Bench) -> Step:
    return lambda tx, now: plan(tx, now, bench.config)


def _finish(bench: Bench, key: RunKey) -> Step:
    outcome = Outcome(RunStatus.SUCCEEDED)
    return lambda tx, now: finish(tx, now, bench.config, key, outcome, bench.node)


def _start(bench: Bench, key: RunKey) -> Step:
    return lambda tx, now: start(tx, now, bench.config, key, bench.node, "worker@test")


def _client(bench: Bench, session: Database) -> Client:
    """A client whose connection is that session's."""
    return Client(Runtime(bench.config, session, bench.scheduler.runtime.slots))


def _newest(bench: Bench) -> RunId:
    return max(bench.scheduler.runs("job"), key=lambda run: run.scheduled_for).id


def _whole(bench: Bench) -> None:
    """Whatever happened: the run of the occurrence is there once, and it is carried out in the end."""
    newest = _newest(bench)
    for _ in range(3):
        bench.scheduler.poll()
        bench.work_off()
    assert "succeeded" == bench.status(newest)
    assert (2, 0) == (len(bench.scheduler.runs("job")), bench.in_flight())
    invariants.check(bench.database)


def test_a_finish_then_what_replaces(bench: Bench) -> None:
    """An outcome that is being written stays: its job is left to the next pass, and nothing is replaced."""
    key = bench.running(overlap="replace").key
    _due(bench)
    with during(bench, _finish(bench, key), lambda session: session.run(_plan(bench))) as (finished, planned):
        assert finished.settled
        # SQLite waited for the finish; elsewhere the job, locked by it, was passed over
        assert () == planned.result(PATIENCE).replaced
    assert ("succeeded", None) == (bench.status(key.id), bench.row(key.id).stop_requested_at)
    bench.plan()
    _whole(bench)


def test_what_replaces_then_a_finish(bench: Bench) -> None:
    """A run that ends while it is being replaced has its own outcome, and the new one may start at once."""
    key = bench.running(overlap="replace").key
    _due(bench)
    with during(bench, _plan(bench), lambda session: bench.finish(key, database=session)) as (
        planned,
        finished,
    ):
        assert [(key.id, True)] == [(one.run_id, one.requested) for one in planned.replaced]
        assert finished.result(PATIENCE).settled
    assert "succeeded" == bench.status(key.id)
    _whole(bench)


def test_a_claim_then_what_replaces(bench: Bench) -> None:
    """A claim that is under way keeps what it claims until the next pass, which cancels it."""
    bench.job(overlap="replace")
    bench.plan()
    old = _newest(bench)
    _due(bench)
    with during(
        bench, lambda tx, now: bench.claiming(tx, now), lambda session: session.run(_plan(bench))
    ) as (claimed, planned):
        assert [old] == [dispatch.key.id for dispatch in claimed]
        planned.result(PATIENCE)
    bench.plan()
    assert "cancelled" == bench.status(old)
    assert Verdict.DROP == bench.start(claimed[0].key).verdict
    _whole(bench)


def test_what_replaces_then_a_claim(bench: Bench) -> None:
    """What is being cancelled is not claimed; two runs of the job never hold it."""
    bench.job(overlap="replace")
    bench.plan()
    old = _newest(bench)
    wanted = [(old, bench.scheduler.job("job").id)]
    _due(bench)
    with during(
        bench,
        _plan(bench),
        lambda session: session.run(lambda tx, now: bench.claiming(tx, now, wanted)),
    ) as (planned, claimed):
        assert [(old, True)] == [(one.run_id, one.settled) for one in planned.replaced]
        assert () == claimed.result(PATIENCE)
    assert "cancelled" == bench.status(old)
    _whole(bench)


def test_a_start_then_what_replaces(bench: Bench) -> None:
    """A body that is being started is not cancelled as if it had not: the next pass asks it to stop."""
    key = bench.claimed(overlap="replace").key
    _due(bench)
    with during(bench, _start(bench, key), lambda session: session.run(_plan(bench))) as (started, planned):
        assert Verdict.YOURS == started.verdict
        planned.result(PATIENCE)
    bench.plan()
    assert ("running", "the scheduler") == (bench.status(key.id), bench.row(key.id).stop_requested_by)
    assert [key.id] == list(bench.renew(key).stopped)
    assert () == bench.claim(), "nothing starts before it is gone"
    assert bench.finish(key, RunStatus.CANCELLED).settled
    _whole(bench)


def test_what_replaces_then_a_start(bench: Bench) -> None:
    """A message that comes while its run is being replaced starts nothing."""
    key = bench.claimed(overlap="replace").key
    _due(bench)
    with during(bench, _plan(bench), lambda session: bench.start(key, database=session)) as (
        planned,
        started,
    ):
        assert [(key.id, True)] == [(one.run_id, one.freed) for one in planned.replaced]
        assert Verdict.DROP == started.result(PATIENCE).verdict
    assert "cancelled" == bench.status(key.id)
    _whole(bench)


@pytest.mark.parametrize("how", ["pause", "cancel_job", "run"])
def test_a_start_then_a_person(bench: Bench, how: str) -> None:
    """Whoever stops a run that is being started waits for that, then asks it to stop."""
    key = bench.claimed(overlap="replace").key
    with during(bench, _start(bench, key), lambda session: _act(bench, session, how)) as (started, acted):
        assert Verdict.YOURS == started.verdict
        acted.result(PATIENCE)
    assert ("running", "ada") == (bench.status(key.id), bench.row(key.id).stop_requested_by)
    assert (key.id, 1) == (bench.job_row().locked_by, bench.in_flight())
    assert [key.id] == list(bench.renew(key).stopped)
    invariants.check(bench.database)


@pytest.mark.parametrize("how", ["pause", "cancel_job", "run"])
def test_a_person_then_a_start(bench: Bench, how: str) -> None:
    """What a person is stopping does not start; its lock and its slot are free."""
    key = bench.claimed(overlap="replace").key
    session = bench.session()
    held: list[Any] = []

    def first(tx: Any, now: Any) -> Any:
        # the client's own transaction is this one: what it does stays open until the other side has come
        held.append(_client(bench, _Within(tx, now, session)))
        return _act(bench, None, how, held[0])

    with during(bench, first, lambda other: bench.start(key, database=other)) as (_, started):
        assert Verdict.DROP == started.result(PATIENCE).verdict
    assert ("cancelled", 0) == (bench.status(key.id), bench.in_flight())
    assert None is bench.job_row().locked_by
    invariants.check(bench.database)


def test_a_pause_then_a_plan(bench: Bench) -> None:
    """A job that is being paused is not planned: nothing new comes behind the cancellation."""
    key = bench.running(overlap="queue").key
    _due(bench)
    session = bench.session()

    def first(tx: Any, now: Any) -> Any:
        return _act(bench, None, "pause", _client(bench, _Within(tx, now, session)))

    with during(bench, first, lambda other: other.run(_plan(bench))) as (_, planned):
        assert 0 == planned.result(PATIENCE).planned
    assert [key.id] == [run.id for run in bench.scheduler.runs("job")]
    assert 0 == bench.plan()
    invariants.check(bench.database)


class _Within(Database):
    """A database whose every transaction is one that is open already."""

    def __init__(self, tx: Any, now: Any, other: Database) -> None:
        self._tx, self._now = tx, now
        self.dialect, self.engine = other.dialect, other.engine

    def run(self, work: Any, *, limit: float | None = None) -> Any:
        return work(self._tx, self._now)

    read = run


def _act(bench: Bench, session: Database | None, how: str, client: Client | None = None) -> Any:
    acting = client or _client(bench, session) if session else client
    assert acting is not None
    if how == "pause":
        return acting.pause("job", running="cancel", by="ada")
    if how == "cancel_job":
        return acting.cancel_job("job", by="ada")
    return acting.run("job", by="ada")
