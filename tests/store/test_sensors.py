"""What sensors have seen: it moves together with the events, by its holder only, and never back."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor, wait
from typing import Any

import pytest
from sqlalchemy import func, select

from celery_sched.model import Dispatch, JobId
from celery_sched.store import sensors
from celery_sched.store.engine import Database
from celery_sched.store.sensors import Holder, News, Seen, SeenElsewhere
from celery_sched.store.tables import event, sensor
from tests.store.world import APP, PATIENCE, Bench


def holder(dispatch: Dispatch) -> Holder:
    return Holder(dispatch.key.id, dispatch.key.attempt, dispatch.fence)


def read(bench: Bench, dispatch: Dispatch) -> Seen:
    return bench.database.read(lambda tx, now: sensors.read(tx, holder(dispatch)))


def move(
    bench: Bench,
    dispatch: Dispatch,
    before: Seen,
    value: Any,
    *payloads: Any,
    database: Database | None = None,
) -> Seen:
    news = [News(payload, key="k") for payload in payloads]
    return (database or bench.database).run(
        lambda tx, now: sensors.move(tx, now, holder(dispatch), before, value, "t", news)
    )


def events(bench: Bench) -> list[Any]:
    return bench.database.read(
        lambda tx, now: [
            (row.topic, row.payload, row.key, row.run_id, row.hops)
            for row in tx.execute(select(event).where(event.c.app == APP).order_by(event.c.id))
        ]
    )


def test_seen_and_events_together(bench: Bench) -> None:
    """The first look makes the row, later ones move it; each publishes events that name the run."""
    run = bench.running()
    before = read(bench, run)
    assert (0, None) == (before.version, before.value)
    first = move(bench, run, before, {"at": 1}, "a", "b")
    second = move(bench, run, first, {"at": 2}, "c")
    assert (2, {"at": 2}) == (second.version, second.value)
    assert second == read(bench, run)
    assert [("t", text, "k", run.key.id, 1) for text in "abc"] == events(bench)


def test_next_run_goes_on(bench: Bench) -> None:
    """What a run has seen is what the next one starts from."""
    run = bench.running()
    seen = move(bench, run, read(bench, run), [1, 2])
    bench.finish(run.key)
    again = bench.again()
    bench.start(again.key)
    assert seen == read(bench, again)


def test_stale_holder_changes_nothing(bench: Bench) -> None:
    """A run whose lease was given away neither publishes nor moves what was seen."""
    run = bench.running()
    before = read(bench, run)
    bench.clock.advance(bench.config.lease.total_seconds() + 1)
    assert 1 == len(bench.sweep().settled)
    with pytest.raises(SeenElsewhere, match="no longer this worker's"):
        move(bench, run, before, 1, "a")
    with pytest.raises(SeenElsewhere):
        read(bench, run)
    assert [] == events(bench)


@pytest.mark.parametrize("attempt", [True, False])
def test_earlier_claim_of_the_same_run(bench: Bench, attempt: bool) -> None:
    """The attempt and the fencing number are looked at, not only the run's id."""
    run = bench.running()
    old = Holder(run.key.id, run.key.attempt - attempt, run.fence - (not attempt))
    before = read(bench, run)
    with pytest.raises(SeenElsewhere):
        bench.database.run(lambda tx, now: sensors.move(tx, now, old, before, 1, "t", [News("a")]))
    assert [] == events(bench)


@pytest.mark.parametrize("first", [True, False])
def test_faster_run_wins(bench: Bench, first: bool) -> None:
    """Of two runs at once (overlap concurrent) that read the same, one publishes; the other does not."""
    one = bench.running(overlap="concurrent")
    if not first:
        move(bench, one, read(bench, one), 0)
    two = bench.again()
    bench.start(two.key)
    before = read(bench, one)
    assert before == read(bench, two)
    move(bench, two, before, 2, "from two")
    with pytest.raises(SeenElsewhere, match="another run of the job"):
        move(bench, one, before, 1, "from one")
    assert ["from two"] == [payload for _, payload, *_ in events(bench)]
    assert 2 == read(bench, one).value


def test_nothing_half(bench: Bench) -> None:
    """Where an event cannot be written, what was seen does not move either."""
    run = bench.running()
    before = move(bench, run, read(bench, run), 1)

    def work(tx: Any, now: Any) -> None:
        sensors.move(tx, now, holder(run), before, 2, "t", [News("a")])
        raise KeyError("the process dies here")

    with pytest.raises(KeyError):
        bench.database.run(work)
    assert (before, []) == (read(bench, run), events(bench))


def test_deleted_job_is_forgotten(bench: Bench) -> None:
    """With its job goes what was seen; a new job of that name begins anew."""
    run = bench.running()
    move(bench, run, read(bench, run), 1)
    bench.finish(run.key)
    job_id = JobId(bench.job_row().id)
    bench.client.delete("job")
    left = bench.database.read(lambda tx, now: tx.execute(select(func.count()).select_from(sensor)).scalar())
    assert 0 == left
    assert 0 == read(bench, bench.running()).version
    assert job_id != bench.job_row().id


def test_sweep_waits_for_the_move(bench: Bench) -> None:
    """A run is not given away between the look at its lease and the commit of what it publishes."""
    run = bench.running()
    before, other = read(bench, run), bench.session()
    bench.clock.advance(bench.config.lease.total_seconds() + 1)
    meanwhile: list[str] = []
    with ThreadPoolExecutor(1) as pool:
        swept: list[Any] = []

        def work(tx: Any, now: Any) -> None:
            sensors.move(tx, now, holder(run), before, 1, "t", [News("a")])
            swept.append(pool.submit(bench.sweep, other))
            wait(swept, 1.0)  # it waits for the row, or leaves it out
            meanwhile.append(bench.status(run.key.id))

        bench.database.run(work)
        swept[0].result(PATIENCE)
    bench.sweep()
    assert (["running"], "lost") == (meanwhile, bench.status(run.key.id))
    assert 1 == len(events(bench))
