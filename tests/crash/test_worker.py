"""A worker's child dies, or fails, around a body: the run is settled, and everything it held is free."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from celery_sched.rules.transitions import TERMINAL
from tests import invariants
from tests.flow.conftest import make_world
from tests.flow.worker_world import PATIENCE, World
from tests.private_server import wait_until

__all__ = ["make_world"]


@pytest.mark.parametrize("death", ["raise", "kill"])
@pytest.mark.parametrize("name", ["start:committed", "finish:begin", "finish:committed"])
def test_a_child_dies_around_a_body(
    make_world: Callable[..., World], monkeypatch: pytest.MonkeyPatch, name: str, death: str
) -> None:
    """Between start and body, body and outcome, outcome and slot: not left running, not run a second time."""
    world = make_world(database="postgresql", broker="redis")
    monkeypatch.setenv("CELERY_SCHED_FAILPOINTS", f"{name}={death}@1")
    world.worker("-c", "1")
    run_id = world.run("plain")

    def settled() -> bool:
        world.sweep()
        return world.status(run_id) in TERMINAL

    wait_until(settled, PATIENCE, "the run to be settled")
    ends = ("succeeded",) if name == "finish:committed" else ("failed", "lost")
    assert world.status(run_id) in ends
    bodies = [] if name == "start:committed" else ["plain"]
    assert bodies == world.marks()
    invariants.check(world.database)
    if death == "raise":  # a child that was killed has a successor that dies as well
        assert "succeeded" == world.wait(world.run("plain")).status
        assert [*bodies, "plain"] == world.marks()
    invariants.check(world.database)
