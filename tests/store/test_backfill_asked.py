"""What people do with backfills, on each kind of database: ask, look, cancel; what is refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from celery_sched.beat.prune import prune
from celery_sched.errors import InvalidValue, NotFound
from celery_sched.rules.transitions import RunStatus
from celery_sched.steps.start import Verdict
from celery_sched.store import audit
from tests import invariants
from tests.store.filling import DAY, FIRST, HOUR, fill, hourly
from tests.store.world import START, Bench, together


@pytest.mark.parametrize("running", [False, True])
def test_cancelled(bench: Bench, running: bool) -> None:
    """It ends at once, with what has not started; what is running finishes, unless that is to stop too."""
    hourly(bench, overlap="concurrent")
    made = bench.client.backfill("job", FIRST, FIRST + 9 * HOUR, max_concurrent=3)
    bench.scheduler.poll()
    key, received, waiting = bench.messages()
    assert Verdict.YOURS == bench.start(key).verdict
    bench.receive(received)
    found = bench.client.cancel_backfill(made.id, by="ada", reason="enough", running=running)
    assert ("cancelled", "stopped by ada: enough", 1, 2) == (
        *(found.status, found.reason, found.in_flight, found.cancelled),
    )
    assert f"stopped by ada: backfill {made.id} was cancelled: enough" == bench.row(waiting.id).reason
    assert 1 == bench.in_flight()
    assert Verdict.DROP == bench.start(received).verdict
    assert ([key.id] if running else []) == list(bench.renew(key).stopped)
    status = RunStatus.CANCELLED if running else RunStatus.SUCCEEDED
    assert bench.finish(key, status).settled
    bench.scheduler.poll()
    assert 3 == len(bench.scheduler.runs("job"))
    again = bench.client.cancel_backfill(made.id, by="bob", reason="once more")
    assert "stopped by ada: enough" == again.reason
    invariants.check(bench.database)
    # what it had cancelled before it started never ran, so the next one runs it
    fill(bench, bench.client.backfill("job", FIRST, FIRST + 2 * HOUR))
    expected = {key.id: 1, received.id: 2, waiting.id: 2}
    assert expected == {run.id: run.attempt for run in bench.scheduler.runs("job")}


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"to_at": FIRST - HOUR}, "to '2026-03-01T11:00:00Z' is refused: not before from"),
        ({"to_at": START + HOUR}, "not in the future: it is now 2026-03-02T12:00:00Z"),
        ({"from_at": "yesterday"}, "from 'yesterday' is refused: an ISO 8601 time"),
        ({"from_at": FIRST + HOUR / 4, "to_at": FIRST + HOUR / 2}, "no occurrence lies from"),
        (
            {"from_at": FIRST + HOUR / 4, "to_at": FIRST + HOUR / 2},
            "The nearest are 2026-03-01T12:00:00Z and",
        ),
        ({"from_at": "1980-01-01", "name": "often"}, "occurrences lie from 1980-01-01T00:00:00Z"),
        ({"max_concurrent": 0}, "max_concurrent 0 is refused: a whole number from 1 to 1000"),
        ({"max_concurrent": True}, "max_concurrent True is refused"),
        ({"max_concurrent": 2}, "max_concurrent 2 is refused: 1, as overlap of job 'job' is 'skip'"),
        ({"reprocess": "fialed"}, "Did you mean 'failed'?"),
        ({"name": "after"}, "its schedule is 'after 5m': what has no fixed times has none in the past"),
    ],
)
def test_refused(bench: Bench, values: dict[str, Any], said: str) -> None:
    """What is not allowed is named before anything is written."""
    hourly(bench)
    bench.client.add("often", task="t.ok", schedule="* * * * *")
    bench.client.add("after", task="t.ok", schedule="after 5m")
    with pytest.raises(InvalidValue) as refused:
        bench.client.backfill(**{"name": "job", "from_at": FIRST, "to_at": START, **values})
    assert said in str(refused.value)
    assert [] == bench.client.backfills()


def test_two_of_the_same_times(bench: Bench) -> None:
    """A range that a running backfill has some of is refused, naming that; beside it, or later, it is not."""
    hourly(bench)
    first = bench.client.backfill("job", FIRST, FIRST + 3 * HOUR)
    with pytest.raises(InvalidValue, match=str(first.id)):
        bench.client.backfill("job", FIRST + 3 * HOUR, FIRST + 6 * HOUR)
    other = bench.client.backfill("job", FIRST + 4 * HOUR, FIRST + 6 * HOUR)
    fill(bench, first)
    fill(bench, other)
    again = bench.client.backfill("job", FIRST + 3 * HOUR, FIRST + 6 * HOUR)
    fill(bench, again)
    assert 4 == bench.client.get_backfill(again.id).left
    assert {first.id, other.id, again.id} == {one.id for one in bench.client.backfills("done")}
    assert [] == bench.client.backfills("running")


def test_asked_for_twice_at_the_same_time(bench: Bench) -> None:
    """Two people who ask for the same in the same moment: one gets it, the other is told."""
    hourly(bench)
    clients = [bench.another().client for _ in range(2)]

    def ask(client: Any) -> Callable[[], str]:
        def work() -> str:
            try:
                client.backfill("job", FIRST, FIRST + HOUR)
            except InvalidValue:
                return "refused"
            return "made"

        return work

    assert ["made", "refused"] == sorted(together(*(ask(client) for client in clients)))


def test_times_are_those_of_the_job(bench: Bench) -> None:
    """Without a zone they are the job's; a day as the end is all of it that has come."""
    bench.client.add("job", task="t.ok", schedule="0 0 * * *", timezone="Asia/Tokyo", overlap="concurrent")
    made = bench.client.backfill("job", "2026-02-10", "2026-02-12")
    assert 3 == made.total
    assert ("2026-02-09T15:00:00+00:00", "2026-02-12T14:59:59.999999+00:00") == (
        *(made.from_at.isoformat(), made.to_at.isoformat()),
    )
    today = bench.client.backfill("job", "2026-03-02T00:00", "2026-03-02")
    assert (START, 1) == (today.to_at, today.total)


def test_unknown_names(bench: Bench) -> None:
    """What is not there is named."""
    with pytest.raises(NotFound, match="there is no job 'job'"):
        bench.client.backfill("job", FIRST, START)
    for ask in (bench.client.get_backfill, bench.client.cancel_backfill):
        with pytest.raises(NotFound, match="there is no backfill 'nothing'"):
            ask("nothing")
    with pytest.raises(InvalidValue, match="status 'runing'"):
        bench.client.backfills("runing")


def test_it_is_on_record(bench: Bench) -> None:
    """The audit says who asked and who ended it; status shows it while it runs; old ones are pruned."""
    hourly(bench)
    made = bench.client.backfill("job", FIRST, FIRST + HOUR, by="ada")
    bench.scheduler.poll()
    (filling,) = bench.client.status().backfills
    assert (made.id, "job", 0, 2) == (filling.id, filling.job, filling.finished, filling.total)
    fill(bench, made)
    assert [] == list(bench.client.status().backfills)
    cancelled = bench.client.backfill("job", FIRST + 2 * HOUR, FIRST + 3 * HOUR, by="ada")
    bench.client.cancel_backfill(cancelled.id, by="bob")

    lines = bench.database.read(lambda tx, now: audit.newest(tx, bench.config.app))
    said = [(line.actor, line.action) for line in reversed(lines) if "backfill" in line.action]
    assert [
        ("ada", "backfill"),
        ("scheduler", "backfill_end"),
        ("ada", "backfill"),
        ("bob", "cancel_backfill"),
    ] == said
    prune(bench.scheduler.runtime)
    assert 2 == len(bench.client.backfills())
    bench.clock.advance(bench.config.keep_runs + DAY)
    prune(bench.scheduler.runtime)
    assert [] == bench.client.backfills()
