"""A scheduler dies while it makes messages of notifications: each is in one message, no more and no less."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from celery_sched import failpoints
from celery_sched.failpoints import FailpointReached
from celery_sched.rules.transitions import RunStatus
from celery_sched.steps import tell
from celery_sched.store import notices
from tests import invariants
from tests.race.poller import Poller
from tests.store.world import Bench


@pytest.fixture
def shop(make_bench: Any) -> Iterator[Bench]:
    """Three jobs have failed, and nobody was told yet."""
    bench = make_bench(notify_targets={"ops": "json://127.0.0.1:1"}, notify={"to": ["ops"]})
    for name in "abc":
        dispatch = bench.running(name)
        bench.finish(dispatch.key, RunStatus.FAILED, error="no")
    yield bench
    for name in ("tell:decided", "tell:committed"):
        failpoints.disarm(name)


@pytest.mark.parametrize("death", ["raise", "kill"])
@pytest.mark.parametrize("name", ["tell:decided", "tell:committed"])
def test_telling_dies(shop: Bench, name: str, death: str) -> None:
    """Before the commit nothing is written; after it all is, and the next scheduler adds nothing."""
    if death == "kill":
        poller = Poller(shop, failpoints=f"{name}=kill")
        try:
            poller.ready()
            poller.do("tell")
            assert -9 == poller.wait()
        finally:
            poller.end()
    else:
        failpoints.arm(name, _fail)
        with pytest.raises(FailpointReached):
            shop.scheduler.tell()
        failpoints.disarm(name)
    expected = ["sending"] * 3 if name == "tell:committed" else ["new"] * 3
    assert expected == [one.status for one in shop.client.notifications()]
    shop.another().tell()
    shop.scheduler.tell()
    (message,) = (run for run in shop.scheduler.runs() if run.job == notices.JOB)
    carried = shop.row(message.id).kwargs["notifications"]
    assert sorted(one.id for one in shop.client.notifications()) == sorted(carried)
    (dispatch,) = shop.claim(pool=tell.POOL)
    shop.start(dispatch.key)
    shop.finish(dispatch.key)
    assert ["sent"] * 3 == [one.status for one in shop.client.notifications()]
    invariants.check(shop.database)


def _fail() -> None:
    raise FailpointReached
