"""Jobs of the scheduler's own: made once, whoever needs them first, and never anybody else's."""

from __future__ import annotations

from typing import Any

import pytest

from celery_sched.errors import InvalidValue
from celery_sched.model import JobStatus, Overlap, Source
from celery_sched.store import system_jobs
from celery_sched.store.engine import Tx
from tests.store.world import APP, Bench, together

NAME = "sched:test"


def _ensure(tx: Tx, now: Any) -> int:
    return int(system_jobs.ensure(tx, now, APP, NAME, task="t.carry", priority=9).id)


def test_a_system_job_is_made_once(bench: Bench) -> None:
    """Two that need it at the same time get the same one; whoever asks later gets that too."""
    one, other = bench.session(), bench.session()
    ids = together(lambda: one.run(_ensure), lambda: other.run(_ensure))
    assert {bench.database.run(_ensure)} == set(ids)
    (made,) = (job for job in bench.client.list(system=True) if job.source is Source.SYSTEM)
    assert (NAME, "t.carry", "none", Overlap.CONCURRENT, JobStatus.ACTIVE, None, 9) == (
        *(made.name, made.definition.task, made.definition.schedule, made.definition.overlap),
        *(made.status, made.next_run_at, made.definition.priority),
    )


def test_a_system_job_is_listed_only_when_asked_for(bench: Bench) -> None:
    """It is not among people's jobs, is there by name, and `why` answers for it."""
    bench.job("mine")
    bench.database.run(_ensure)
    assert ["mine"] == [job.name for job in bench.client.list()]
    assert ["mine", NAME] == [job.name for job in bench.client.list(system=True)]
    assert NAME == bench.client.get(NAME).name
    assert NAME in str(bench.client.why(NAME, "now"))


def test_its_name_is_refused_to_people(bench: Bench) -> None:
    """Nobody adds or edits a job whose name begins as those of the scheduler's own."""
    bench.database.run(_ensure)
    for act in (
        lambda: bench.client.add("sched:mine", task="t.ok", schedule="every 1h"),
        lambda: bench.client.edit(NAME, priority=1),
    ):
        with pytest.raises(InvalidValue, match="scheduler's own jobs"):
            act()


def test_pausing_all_jobs_leaves_it_alone(bench: Bench) -> None:
    """It plans nothing that could be paused."""
    bench.job("mine")
    bench.database.run(_ensure)
    assert ("mine",) == bench.client.pause_all().jobs
    assert "active" == bench.job_row(NAME).status


def test_a_system_job_does_not_trouble_what_looks_at_all_jobs(bench: Bench) -> None:
    """A poll, a sync from code and `status` cope with a job without times."""
    bench.database.run(_ensure)
    bench.scheduler.poll()
    bench.clock.advance(3600)
    bench.scheduler.poll()
    status = bench.client.status()
    assert [] == [problem for problem in status.problems if NAME in problem]
    assert ("active", None) == (bench.job_row(NAME).status, bench.job_row(NAME).next_run_at)
