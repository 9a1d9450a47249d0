"""A32: several schedulers, a hundred jobs due at the same second: each occurrence has one run."""

from __future__ import annotations

import random
import subprocess
from collections import Counter
from collections.abc import Callable

import pytest

from tests import invariants
from tests.private_server import wait_until
from tests.race.poller import Poller
from tests.store.world import FULL, PATIENCE, Bench, together

JOBS = 100
ROUNDS = 50 if FULL else 3


def _due(make_bench: Callable[..., Bench]) -> Bench:
    bench = make_bench(max_concurrent_jobs=100_000)
    for number in range(JOBS):
        bench.client.add(f"job-{number:03}", task="t.ok", schedule="every 1h", overlap="concurrent")
    return bench


def _all_planned(bench: Bench) -> bool:
    bench.scheduler.poll()
    return all(job.next_run_at > bench.clock.now for job in bench.client.list() if job.next_run_at)


def _check(bench: Bench, rounds: int) -> None:
    runs = bench.scheduler.runs()
    assert rounds * JOBS == len(runs) == len({(run.job, run.scheduled_for) for run in runs})
    assert {"succeeded": rounds * JOBS} == Counter(run.status for run in runs)
    invariants.check(bench.database)


@pytest.mark.parametrize("schedulers", [2, 4])
def test_threads(make_bench: Callable[..., Bench], schedulers: int, caplog: pytest.LogCaptureFixture) -> None:
    """A32: schedulers as threads: one run and one message an occurrence, no error in the logs as noise."""
    bench = _due(make_bench)
    others = [bench.another() for _ in range(schedulers)]
    for _ in range(ROUNDS):
        bench.clock.advance(3600)
        planned = sum(polled.counts.planned for polled in together(*(other.poll for other in others)))
        for _ in range(20):  # what one had locked for a moment, another passed over
            if planned == JOBS and "queued" not in bench.statuses():
                break
            planned += sum(other.poll().counts.planned for other in others)
        assert JOBS == planned
        messages = bench.messages()
        assert JOBS == len(messages) == len({key.id for key in messages})
        for key in messages:
            bench.start(key)
            bench.finish(key)
    _check(bench, ROUNDS)
    assert [] == [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]


def test_processes_of_which_one_is_killed(make_bench: Callable[..., Bench]) -> None:
    """A32: schedulers as processes, one killed in every round: each occurrence one run that succeeds."""
    bench = _due(make_bench)
    dice = random.Random(32)
    pollers = [Poller(bench) for _ in range(2)]
    logs = [poller.log for poller in pollers]
    bodies = 0
    try:
        for _ in range(ROUNDS):
            for poller in pollers:
                poller.ready()
            bench.clock.advance(3600)
            for poller in pollers:
                poller.poll(2)
            victim = dice.randrange(2)
            with pytest.raises(subprocess.TimeoutExpired):
                pollers[victim].process.wait(dice.uniform(0.001, 0.3))  # killed at no particular place
            pollers[victim].end()
            pollers[1 - victim].wait()
            # rows that the dead one had locked are free once the server has noticed, and not before
            wait_until(lambda: _all_planned(bench), PATIENCE, "the survivors to plan what is left")
            pollers[victim] = Poller(bench)
            logs.append(pollers[victim].log)
            bodies += bench.work_off()
    finally:
        for poller in pollers:
            poller.end()
    for _ in range(20):
        if bodies == ROUNDS * JOBS:
            break
        bench.clock.advance(20)
        bench.scheduler.poll()
        bodies += bench.work_off()
    assert ROUNDS * JOBS == bodies
    _check(bench, ROUNDS)
    errors = [line for log in logs for line in log.read_text().splitlines() if line.startswith("ERROR")]
    assert [] == errors
