"""Two polls of one scheduler overlap: both find that it is not registered yet."""

from __future__ import annotations

from dataclasses import replace

from celery_sched import runtime as runtimes
from celery_sched.beat.look import look
from celery_sched.beat.presence import Presence
from celery_sched.model import NodeKind
from celery_sched.store import nodes
from celery_sched.store.engine import Database
from tests.race.test_staged import during
from tests.store.world import APP, PATIENCE, Bench


def test_two_polls_register_one_scheduler(bench: Bench) -> None:
    """A scheduler whose first poll hangs just before its commit is registered once, and no poll fails."""
    node_id = runtimes.new_node_id()
    node = runtimes.this_process(node_id, APP, NodeKind.SCHEDULER, "beat", bench.clock(), {})

    def second(session: Database) -> bool:
        presence = Presence(replace(bench.scheduler.runtime, database=session), node, dict)
        seen = session.read(lambda tx, now: look(tx, now, bench.config, node_id))
        return presence.check(seen).registered

    with during(bench, lambda tx, now: nodes.register(tx, now, node), second) as (_, registered):
        assert registered.result(PATIENCE)
    found = bench.database.read(lambda tx, now: nodes.every(tx, APP))
    assert [node_id] == [one.id for one in found if one.id == node_id]
