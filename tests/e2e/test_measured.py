"""The measurements that the scheduler must pass, scaled down: real processes, both set-ups, one body each.

``script/measure`` runs the same bodies as they are written.
"""

from __future__ import annotations

import pytest

from tests.e2e import caps, consumers, faults, measurements, starving, storm
from tests.e2e.site import Site

pytestmark = pytest.mark.measure


def test_1_a_fast_job_beside_a_slow_and_five_hung_ones(site: Site) -> None:
    """Measurement 1: as many runs as alone, plus or minus one, lateness no worse than three times."""
    measurements.fast_beside_hung(site)


def test_2_two_schedulers_one_killed_half_way(site: Site) -> None:
    """Measurement 2: each occurrence has one run that succeeds, at the latest one lease later."""
    measurements.two_schedulers(site, kill=True)


def test_3_a_worker_killed_in_mid_run_and_with_a_message_not_started(site: Site) -> None:
    """Measurement 3: lost or elsewhere within a lease, lock free, next occurrence runs, in-flight zero."""
    measurements.killed_worker(site)


def test_4_a_full_cap(site: Site) -> None:
    """Measurement 4: cap 5, 20 due jobs: 5 in flight, 15 at capacity, later, oldest first."""
    caps.full_cap(site)


def test_5_a_cap_full_of_hung_jobs(site: Site) -> None:
    """Measurement 5: after sched_max_runtime slots are free, processes and children gone, others run."""
    caps.hung_cap(site)


def test_6_a_late_settler(site: Site) -> None:
    """Measurement 6: a run whose lease was taken over finishes: nothing changes but one audit line."""
    faults.late_settler(site)


def test_7_broker_down(site: Site) -> None:
    """Measurement 7: broker away while jobs come due: one run each, within lease + 5 s of its return."""
    faults.broker_down(site)


@pytest.mark.parametrize("site", ["postgres"], indirect=True)
def test_7_broker_black_holed(site: Site) -> None:
    """Measurement 7, black-holed rather than refused: the same."""
    faults.broker_black_hole(site)


def test_8_the_database_falls_silent_during_a_tick(site: Site) -> None:
    """Measurement 8: the next tick starts on time, what was locked runs within the session time-outs."""
    faults.silent_database(site)


def test_9_an_idle_worker_beside_a_hung_one(site: Site) -> None:
    """Measurement 9: nothing waits behind five hung jobs in another worker."""
    measurements.idle_worker_beside(site)


@pytest.mark.parametrize("kind", starving.KINDS)
def test_10_a_healthy_job_while_hung_ones_hold_every_slot(site: Site, kind: str) -> None:
    """Measurement 10: it waits for one lease (crashed), one max_runtime (silent), one timeout (beating)."""
    starving.healthy_beside_hung(site, kind)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("site", ["postgres"], indirect=True)
def test_11_no_slot_is_lost(site: Site) -> None:
    """Measurement 11: workers, schedulers and Redis are killed under hundreds of runs: no slot is lost."""
    storm.no_slot_is_lost(site)


def test_12_a_slow_and_a_hung_consumer(site: Site) -> None:
    """Measurement 12: they delay neither schedules nor other deliveries, and hung jobs delay no delivery."""
    consumers.slow_consumers_delay_nobody(site)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("site", ["postgres"], indirect=True)
def test_13_no_event_is_lost(site: Site) -> None:
    """Measurement 13: workers and schedulers are killed: each event is delivered, twice only after a kill."""
    consumers.no_event_is_lost(site)
