"""After an outage, workers that were alive all along renew first; then the sweep works again."""

from __future__ import annotations

from datetime import timedelta

import pytest

from celery_sched.beat.look import Look
from celery_sched.steps.sweep import Outage, outage
from tests import invariants
from tests.store.world import Bench


def _hold(bench: Bench) -> object:
    return bench.totals().sweep_not_before


def _usual(bench: Bench) -> None:
    """Schedulers pass for a while; nothing is held back."""
    bench.scheduler.advance(70, step=25)
    assert _hold(bench) is None


def test_the_sweep_works_again_after_an_outage(bench: Bench) -> None:
    """the sweep works again after an outage: held for one lease, renewals win, the dead are settled then."""
    _usual(bench)
    alive, dead = bench.running("alive"), bench.running("dead")
    bench.clock.advance(300)  # database and schedulers away: no lease was renewed
    back = bench.clock.now
    assert 0 == bench.scheduler.poll().counts.swept
    assert back + timedelta(seconds=60) == _hold(bench)
    bench.clock.advance(20)
    assert [alive.key.id] == list(bench.renew(alive.key).leases)
    swept = [polled.counts.swept for polled in bench.scheduler.advance(39, step=9.75)]
    assert 0 == sum(swept)
    assert [1] == [polled.counts.swept for polled in bench.scheduler.advance(1)]
    assert ("running", "lost") == (bench.status(alive.key.id), bench.status(dead.key.id))
    assert back + timedelta(seconds=60) == _hold(bench)  # one hold, not one after the other
    bench.scheduler.advance(30)
    assert back + timedelta(seconds=60) == _hold(bench)
    invariants.check(bench.database)


def test_a_hold_is_not_renewed_while_it_is_pending(bench: Bench) -> None:
    """Schedulers that all see the same outage, or come one after the other, hold the sweep back once."""
    _usual(bench)
    bench.clock.advance(300)
    until = bench.clock.now + timedelta(seconds=60)
    first, second, third = bench.scheduler, bench.another(), bench.another()
    first.poll()
    second.poll()
    assert until == _hold(bench)
    bench.clock.advance(25)
    third.poll()
    assert until == _hold(bench)


def test_an_outage_within_a_hold_holds_the_sweep_back_again(bench: Bench) -> None:
    """Workers that were cut off again may need more time than was left of the first hold."""
    _usual(bench)
    running = bench.running()
    bench.clock.advance(300)
    bench.scheduler.poll()
    assert [running.key.id] == list(bench.renew(running.key).leases)
    bench.clock.advance(59)
    bench.scheduler.poll()
    assert bench.clock.now + timedelta(seconds=60) == _hold(bench)
    bench.clock.advance(14)
    assert 0 == bench.scheduler.poll().counts.swept
    assert [running.key.id] == list(bench.renew(running.key).leases)


def test_passes_during_a_hold_are_noted(bench: Bench) -> None:
    """A pass whose sweep is held back still counts as a pass: the hold does not begin again at its end."""
    _usual(bench)
    bench.clock.advance(300)
    bench.scheduler.poll()
    until = _hold(bench)
    bench.scheduler.advance(120, step=15)
    assert until == _hold(bench)
    assert bench.clock.now - bench.totals().last_pass_at <= timedelta(seconds=15)


def test_no_outage_is_seen_while_another_scheduler_passes(bench: Bench) -> None:
    """A scheduler that was frozen finds passes of others: nothing is held back."""
    _usual(bench)
    frozen, other = bench.scheduler, bench.another()
    bench.running("dead")
    other.advance(59, step=15)
    before = _hold(bench)
    bench.clock.advance(2)
    assert 1 == frozen.poll().counts.swept
    assert before == _hold(bench)


def test_a_jump_of_the_clock_holds_the_sweep_back(bench: Bench) -> None:
    """The database's clock leaps ahead by more than half a lease between two passes: renewals come first."""
    _usual(bench)
    running = bench.running()
    poll = bench.scheduler._poll
    poll(float("inf"))
    bench.clock.advance(61)
    assert 0 == poll(float("inf")).counts.swept
    assert bench.clock.now + timedelta(seconds=60) == _hold(bench)
    assert [running.key.id] == list(bench.renew(running.key).leases)
    bench.clock.advance(25)
    assert 0 == poll(float("inf")).counts.swept
    assert "running" == bench.status(running.key.id)


def test_a_hold_of_a_clock_that_was_ahead_ends(bench: Bench) -> None:
    """A clock that leapt a day ahead and was put right leaves no sweep that is held back for a day."""
    _usual(bench)
    bench.clock.advance(timedelta(days=1))
    bench.scheduler.poll()
    bench.clock.now -= timedelta(days=1)
    bench.scheduler.poll()
    assert _hold(bench) <= bench.clock.now + timedelta(seconds=60)
    bench.scheduler.advance(61, step=20)
    bench.running()
    bench.scheduler.advance(65, step=20)
    assert ["lost"] == bench.statuses()


def test_of_two_who_saw_one_outage_one_holds_the_sweep_back(bench: Bench) -> None:
    """A scheduler that read the app's row before another one's hold does not begin a second hold."""
    _usual(bench)
    bench.clock.advance(300)
    stale = bench.totals()

    def judge() -> Outage:
        return bench.database.run(lambda tx, now: outage(tx, now, bench.config, stale, False))

    until = bench.clock.now + timedelta(seconds=60)
    assert Outage(until, begun=True) == judge()
    bench.clock.advance(5)
    assert Outage(until) == judge()
    assert until == _hold(bench)


def test_a_poll_that_looked_before_another_one_saw_the_outage(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two polls of one scheduler overlap: the one that looked first does not sweep on what it saw."""
    _usual(bench)
    running = bench.running()
    bench.clock.advance(300)
    poll = bench.scheduler._poll
    poll.presence.forget()
    usual = poll.presence.check
    others: list[int] = []

    def check(seen: Look) -> Look:
        monkeypatch.undo()
        others.append(poll(float("inf")).counts.swept)
        return usual(seen)

    monkeypatch.setattr(poll.presence, "check", check)
    assert (0, [0]) == (poll(float("inf")).counts.swept, others)
    assert "running" == bench.status(running.key.id)
