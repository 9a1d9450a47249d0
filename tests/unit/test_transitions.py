"""Run statuses: one table, on which code and schema agree (tests/docs compares the diagram)."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest
from sqlalchemy import Engine, create_engine, insert
from sqlalchemy.exc import IntegrityError

from celery_sched.model import JobStatus, Misfire, NodeKind, Overlap, Source, Trigger
from celery_sched.rules import transitions
from celery_sched.rules.transitions import (
    ACTIVE,
    ALLOWED,
    FAILURES,
    FINISHED_RUNS,
    HELD,
    TERMINAL,
    RunStatus,
)
from celery_sched.store import schema
from celery_sched.store.tables import job, node, run

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
S = RunStatus


def test_the_table_is_total() -> None:
    """Every status has its line; every status but the first is reached from another one."""
    assert set(RunStatus) == set(ALLOWED)
    assert set(RunStatus) == set().union(*ALLOWED.values())


def test_the_groups_of_statuses() -> None:
    """Active and terminal share nothing and leave nothing out; held ones are active; failures are counted."""
    assert {S.QUEUED, S.DISPATCHED, S.RUNNING} == ACTIVE
    assert set(RunStatus) - ACTIVE == TERMINAL
    assert ACTIVE - {S.QUEUED} == HELD
    assert {S.FAILED, S.TIMED_OUT, S.LOST} == FAILURES
    assert TERMINAL - {S.SKIPPED, S.CANCELLED} == FINISHED_RUNS


@pytest.mark.parametrize("status", sorted(TERMINAL))
def test_the_end_is_left_only_for_a_new_attempt(status: RunStatus) -> None:
    """From a terminal status a run goes back to `queued`, and nowhere else."""
    assert {S.QUEUED} == ALLOWED[status]


def test_a_run_starts_only_when_it_is_dispatched() -> None:
    """`running` and `succeeded` have one way in; a queued run is claimed, or ends."""
    into = {target: {source for source in ALLOWED if target in ALLOWED[source]} for target in RunStatus}
    assert {S.DISPATCHED, S.RUNNING} == into[S.RUNNING]
    assert {S.RUNNING} == into[S.SUCCEEDED]
    assert {S.DISPATCHED, S.CANCELLED, S.SKIPPED} == ALLOWED[S.QUEUED]


@pytest.mark.parametrize(("source", "target"), list(itertools.product(RunStatus, RunStatus)))
def test_what_is_not_in_the_table_is_refused(source: RunStatus, target: RunStatus) -> None:
    """`check` lets through exactly what the table has, also when only one of several sources is wrong."""
    if target in ALLOWED[source]:
        transitions.check([source], target)
    else:
        with pytest.raises(ValueError, match=f"never goes from {source.value} to {target.value}"):
            transitions.check([*(s for s in RunStatus if target in ALLOWED[s]), source], target)


# -- the schema ----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    """A database made by the migrations."""
    url = f"sqlite:///{tmp_path_factory.mktemp('schema') / 'sched.sqlite3'}"
    schema.upgrade(url)
    made = create_engine(url)
    yield made
    made.dispose()


def accepted(engine: Engine, **values: Any) -> bool:
    """Whether the database takes such a run."""
    row = {
        "id": "r",
        "app": "app",
        "job_id": 1,
        "job": "job",
        "task": "task",
        "trigger_kind": "manual",
        "scheduled_for": NOW,
        "pool": "default",
        "priority": 5,
        "queued_at": NOW,
        "ready_at": NOW,
        **values,
    }
    with engine.connect() as connection:
        try:
            connection.execute(insert(run).values(row))
        except IntegrityError:
            return False
        finally:
            connection.rollback()
    return True


@pytest.mark.parametrize("status", RunStatus)
def test_the_schema_knows_the_same_statuses(engine: Engine, status: RunStatus) -> None:
    """The database takes a row in the one form that its status allows: an end, a lease, or neither."""
    forms: dict[str, dict[str, Any]] = {
        "plain": {},
        "ended": {"finished_at": NOW},
        "held": {"token": "t", "lease_expires_at": NOW},
        "token only": {"token": "t"},
        "lease only": {"lease_expires_at": NOW},
        "both": {"token": "t", "lease_expires_at": NOW, "finished_at": NOW},
    }
    right = "held" if status in HELD else "ended" if status in TERMINAL else "plain"
    taken = [name for name, values in forms.items() if accepted(engine, status=status.value, **values)]
    assert [right] == taken


def test_only_a_claimed_run_holds_its_job(engine: Engine) -> None:
    """`holds_job` without a token is refused: the lock would have no holder."""
    assert not accepted(engine, status="queued", holds_job=1)
    assert accepted(engine, status="running", holds_job=1, token="t", lease_expires_at=NOW)


def test_every_word_fits_its_column() -> None:
    """Statuses and policies fit the columns that keep them (SQLite would not notice)."""
    kept = {
        run.c.status: RunStatus,
        run.c.trigger_kind: Trigger,
        job.c.status: JobStatus,
        job.c.last_status: RunStatus,
        job.c.overlap: Overlap,
        job.c.misfire: Misfire,
        job.c.source: Source,
        node.c.kind: NodeKind,
    }
    for column, words in kept.items():
        too_long = [word for word in words if len(word.value) > column.type.length]
        assert [] == too_long, column.name


def test_the_diagram_has_every_transition() -> None:
    """The generated diagram has one line for each allowed transition, and the two ways in."""
    lines = [line.strip() for line in transitions.diagram().splitlines()]
    arrows = {tuple(line.split(" --> ")) for line in lines[1:]}
    ways_in = {("[*]", "queued"), ("[*]", "skipped")}
    table = {(source.value, target.value) for source, targets in ALLOWED.items() for target in targets}
    assert "stateDiagram-v2" == lines[0]
    assert table | ways_in == arrows
