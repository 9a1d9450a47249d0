"""How long a lease is trusted, and when an exclusive body is ended."""

from __future__ import annotations

import time
from datetime import timedelta

import pytest

from celery_sched.config import Config, load
from celery_sched.errors import InvalidConfig
from celery_sched.model import RunId, RunKey, Token
from celery_sched.testing import START
from celery_sched.worker import trust
from celery_sched.worker.board import NEVER, Board

KEY = RunKey(RunId("run-1"), Token("token-1"), 1)


def config(**settings: str) -> Config:
    return load({f"sched_{name}": value for name, value in settings.items()}, "proj", {})


@pytest.mark.parametrize(
    ("asked_at", "left", "margin", "expected"),
    [
        (100.0, 60, 0.0, 160.0),
        (100.0, 60, 10.0, 150.0),
        (100.0, 5, 10.0, 95.0),  # over before it began: the answer says so
        (100.0, -3, 0.0, 97.0),  # the lease had ended when the database answered
        (0.0, 60, 0.5, 59.5),
    ],
)
def test_trust_is_counted_from_before_the_question(
    asked_at: float, left: float, margin: float, expected: float
) -> None:
    """Only the database's own two times and this host's time before the call matter, not the answer's."""
    assert expected == trust.until(asked_at, START, START + timedelta(seconds=left), margin)


@pytest.mark.parametrize(
    ("lease", "margin", "kill_grace", "expected", "grace", "timer"),
    [
        ("60s", None, None, 10.0, 3.0, 7.5),
        ("60s", "5s", "1s", 5.0, 1.0, 3.75),
        ("60s", "6s", "3s", 6.0, 0.0, 4.5),  # SIGTERM would not leave the time for SIGKILL
        ("60s", "20s", "13s", 20.0, 13.0, 15.0),
        ("60s", "20s", "13.1s", 20.0, 0.0, 15.0),
        ("60s", "30s", "0", 30.0, 0.0, 22.5),
        ("3s", None, None, 0.5, 0.0, 0.375),
        ("6s", "2s", None, 2.0, 0.0, 1.5),
    ],
)
def test_the_whole_kill_fits_in_the_margin(
    lease: str, margin: str | None, kill_grace: str | None, expected: float, grace: float, timer: float
) -> None:
    """The default margin; SIGTERM only where SIGKILL and the child's own timer come in time after it."""
    given = {"lease": lease, "poll_interval": "100ms", "exclusive_margin": margin, "kill_grace": kill_grace}
    made = config(**{name: value for name, value in given.items() if value is not None})
    assert (expected, 0.0) == (trust.margin_of(made, True), trust.margin_of(made, False))
    assert (grace, timer) == (trust.grace(made), pytest.approx(trust.timer_after(made)))


@pytest.mark.parametrize(
    ("lease", "margin", "said"),
    [
        ("60s", "0.5s", None),
        ("60s", "30s", None),
        (
            "60s",
            "0.49s",
            "sched_exclusive_margin 0.49 s is too short: at least 0.5 s, in which a job's process is killed.",
        ),
        (
            "60s",
            "30.1s",
            "sched_exclusive_margin 30.1 s is too long for sched_lease (60 s): at most 30 s. A renewal comes "
            "every third of the lease and has to be answered before exclusive jobs are killed.",
        ),
        (
            "3s",
            "2s",
            "sched_exclusive_margin 2 s is too long for sched_lease (3 s): at most 1.5 s. A renewal comes "
            "every third of the lease and has to be answered before exclusive jobs are killed.",
        ),
    ],
)
def test_margin_and_lease_fit_together(lease: str, margin: str, said: str | None) -> None:
    """Too short for a kill, or so long that the next renewal would come too late: refused at the start."""
    if said is None:
        assert config(lease=lease, exclusive_margin=margin).exclusive_margin.total_seconds() > 0
        return
    with pytest.raises(InvalidConfig) as caught:
        config(lease=lease, poll_interval="100ms", exclusive_margin=margin)
    assert (said,) == caught.value.problems


def test_the_clock_goes_on_while_the_host_sleeps() -> None:
    """It is no clock that people set; time that the host was suspended for counts."""
    before, boot = trust.clock(), time.clock_gettime(time.CLOCK_BOOTTIME)
    assert before <= boot <= trust.clock()


def test_a_renewal_moves_the_end_of_an_exclusive_body_only() -> None:
    """On the board: a renewal moves both its trust and its end; of another body there is no such end."""
    board = Board(2)
    other = RunKey(RunId("run-2"), Token("token-2"), 1)
    board.enter(0, KEY, 50.0, NEVER, 50.0)
    board.enter(1, other, 60.0, NEVER)
    for key in (KEY, other):
        board.trust(key, 70.0, 90.0)
    found = {place.key: place for place in board.places()}
    assert 2 == len(found)
    assert {(70.0, 90.0, 70.0, True), (70.0, 90.0, NEVER, False)} == {
        (place.trusted_until, place.deadline, place.kill_at, place.exclusive) for place in found.values()
    }
    assert 70.0 == board.kill_at(0)


def test_a_body_that_shall_end_keeps_the_time_of_its_end() -> None:
    """Told to end it is lost at once, and has the time up to the end of its lease for that, not less."""
    board = Board(1)
    board.enter(0, KEY, 50.0, 40.0, 50.0)
    board.distrust(KEY)
    place = board.find(KEY)
    assert place is not None
    assert (0.0, NEVER, 50.0) == (place.trusted_until, place.deadline, place.kill_at)
    board.leave(0)
    board.distrust(KEY)  # nobody is in it: nothing happens
    assert board.find(KEY) is None
