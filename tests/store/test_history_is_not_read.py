"""What every poll asks, and what lists the newest runs, is led by indexes: it never reads all history."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import event, text

from celery_sched.beat.look import look, look_closer
from celery_sched.store import queue, runs
from celery_sched.store.engine import Tx
from tests.store.world import APP, Bench

HISTORY = 4000
WAITING = 40
KEPT = timedelta(days=300)
QUESTIONS: dict[str, Callable[[Bench, Tx, datetime], Any]] = {
    "look": lambda bench, tx, now: look(tx, now, bench.config, bench.node),
    "look_closer": lambda bench, tx, now: look_closer(tx, now, bench.config, 500),
    "unreceived": lambda bench, tx, now: queue.unreceived(tx, APP, now),
    "expired": lambda bench, tx, now: runs.first_ids(tx, runs.expired(APP, now), 200),
    "outdated": lambda bench, tx, now: runs.first_ids(tx, runs.outdated(APP, now), 200),
    "newest": lambda bench, tx, now: runs.newest(tx, APP, job_name=None, status=None, limit=10),
    "newest of a job": lambda bench, tx, now: runs.newest(tx, APP, job_name="job", status=None, limit=10),
    "prune": lambda bench, tx, now: runs.prune(tx, APP, now - KEPT, 500),
}


@pytest.fixture(params=[None, "key"])
def full(request: pytest.FixtureRequest, bench: Bench) -> Bench:
    """A bench with a long history, and a queue without slots; its runs have a concurrency key, or none."""
    bench.job(overlap="concurrent", concurrency_key=request.param)
    bench.client.resize_pool("default", 0)
    row = bench.job_row()

    def fill(tx: Tx, now: datetime) -> None:
        rows = []
        for n in range(HISTORY + WAITING):
            waits = n >= HISTORY
            at = now - timedelta(minutes=HISTORY + WAITING - n)
            rows.append(
                {
                    **runs.from_job(row, at),
                    "id": str(uuid.uuid4()),
                    "trigger_kind": "manual",
                    "scheduled_for": at,
                    "status": "queued" if waits else "succeeded",
                    "expires_at": now + timedelta(days=1) if waits else at,
                    "finished_at": None if waits else at,
                }
            )
        runs.add(tx, rows)

    bench.database.run(fill)
    statistics = {"postgresql": "ANALYZE", "mariadb": "ANALYZE TABLE sched_run", "sqlite": "ANALYZE"}
    with bench.database.engine.connect() as connection:
        connection.execution_options(isolation_level="AUTOCOMMIT")
        connection.execute(text(statistics[bench.database.dialect.name]))
    return bench


def test_no_question_reads_all_history(full: Bench) -> None:
    """No plan reads the whole table of runs, or a whole index of it, or sorts the history."""
    for name, question in QUESTIONS.items():
        asked = statements_of(full, question)
        assert asked, name
        for statement, parameters in asked:
            assert [] == bad_steps(full, statement, parameters), f"{name}: {statement}"


def statements_of(bench: Bench, question: Callable[[Bench, Tx, datetime], Any]) -> list[tuple[str, Any]]:
    """What is asked of the table of runs, with its parameters."""
    asked: list[tuple[str, Any]] = []

    def note(_conn: Any, _cursor: Any, statement: str, parameters: Any, *_rest: Any) -> None:
        if statement.startswith("SELECT") and "sched_run" in statement:
            asked.append((statement, parameters))

    event.listen(bench.database.engine, "before_cursor_execute", note)
    try:
        bench.database.run(lambda tx, now: question(bench, tx, now))
    finally:
        event.remove(bench.database.engine, "before_cursor_execute", note)
    return asked


def bad_steps(bench: Bench, statement: str, parameters: Any) -> list[str]:
    """The steps of the database's plan that touch as many rows as there is history."""
    name = bench.database.dialect.name
    explain = "EXPLAIN QUERY PLAN " if name == "sqlite" else "EXPLAIN "
    with bench.database.engine.connect() as connection:
        cursor = connection.connection.cursor()
        cursor.execute(explain + statement, parameters)
        plan = [tuple(row) for row in cursor.fetchall()]
    if name == "mariadb":
        columns = ("id", "kind", "table", "type", "keys", "key", "length", "ref", "rows", "extra")
        steps = [dict(zip(columns, row, strict=True)) for row in plan]
        return [
            str(step)
            for step in steps
            if step["table"] in ("sched_run", "other", "holder")
            and (step["type"] in ("ALL", "index") or "filesort" in str(step["extra"]))
            and int(step["rows"] or 0) > HISTORY / 4
        ]
    lines = [str(row[-1]) for row in plan]
    if name == "sqlite":
        return [line for line in lines if line.startswith(("SCAN sched_run", "SCAN other", "SCAN holder"))]
    return [line for line in lines if "Seq Scan on sched_run" in line]
