"""One lock, two sessions."""

from __future__ import annotations

from collections.abc import Callable

from celery_sched.rules.transitions import RunStatus
from celery_sched.steps.start import Verdict
from tests import invariants
from tests.store.world import FULL, Bench, together

ROUNDS = 1000 if FULL else 50


def test_two_sessions_race_for_one_lock(make_bench: Callable[..., Bench]) -> None:
    """two sessions racing for one lock: two waiting runs, a claim for each: one winner, every round."""
    bench = make_bench(max_concurrent_jobs=100)
    job = bench.client.add("job", task="t.ok", schedule="every 1h", overlap="queue")
    sessions = [bench.session(), bench.session()]
    ids = [bench.client.run("job").id, bench.client.run("job").id]
    wins = [0, 0]
    for round_number in range(ROUNDS):
        if round_number % 2:
            ids.reverse()  # neither session always has the older run
        wanted = [[(run_id, job.id)] for run_id in ids]
        claims = together(
            *(
                lambda session=session, mine=mine: session.run(  # type: ignore[misc]
                    lambda tx, now: bench.claiming(tx, now, mine)
                )
                for session, mine in zip(sessions, wanted, strict=True)
            )
        )
        won = [len(dispatches) for dispatches in claims]
        if won == [0, 0]:  # each passed over what the other had locked for a moment: nobody is harmed
            continue
        assert [0, 1] == sorted(won)
        winner = won.index(1)
        wins[winner] += 1
        (dispatch,) = claims[winner]
        row = bench.job_row()
        assert (dispatch.key.id, dispatch.key.token) == (row.locked_by, row.lock_token)
        assert ("queued", 1) == (bench.status(ids[1 - winner]), bench.in_flight())
        assert Verdict.YOURS == bench.start(dispatch.key).verdict
        assert bench.finish(dispatch.key).settled
        ids[winner] = bench.client.run("job").id
    assert sum(wins) > ROUNDS * 0.8, wins
    invariants.check(bench.database)


def test_finish_and_cancel_race(bench: Bench) -> None:
    """An outcome and a cancellation at the same time: one of them decides, lock and slot are free once."""
    session = bench.session()
    dispatch = bench.running(overlap="queue")
    for _ in range(20):
        key = dispatch.key
        finished, _run = together(
            lambda key=key: bench.finish(key, database=session),  # type: ignore[misc]
            lambda key=key: bench.client.cancel(key.id),  # type: ignore[misc]
        )
        assert finished.settled  # a cancellation of what runs is a request
        assert (RunStatus.SUCCEEDED, 0) == (bench.status(key.id), bench.in_flight())
        dispatch = bench.again()
        assert Verdict.YOURS == bench.start(dispatch.key).verdict
    invariants.check(bench.database)
