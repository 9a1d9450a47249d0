"""Retries: which attempt is tried again, and after which pause."""

from __future__ import annotations

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from celery_sched.model import Backoff, JobDefinition, RunId
from celery_sched.rules.retry import Again, GiveUp, decide, matches, pause
from celery_sched.rules.transitions import FAILURES, RunStatus

RUN = RunId("0b8c2f4e")
TIMEOUT = (
    "requests.exceptions.Timeout",
    "requests.exceptions.RequestException",
    "OSError",
    "Exception",
    "BaseException",
)
NOW, SECOND = timedelta(0), timedelta(seconds=1)


def job(**policies: object) -> JobDefinition:
    """A job whose first pause is a second and never jittered, unless it says so."""
    given: dict[str, object] = {"retry_delay": SECOND, "retry_jitter": False, **policies}
    return JobDefinition("job", "t.ok", "every 1h", **given)  # type: ignore[arg-type]


def judged(
    definition: JobDefinition,
    status: RunStatus = RunStatus.FAILED,
    exceptions: tuple[str, ...] = TIMEOUT,
    retried: int = 0,
    requeued: int = 0,
) -> Again | GiveUp:
    return decide(definition, status, exceptions, run_id=RUN, attempt=1, retried=retried, requeued=requeued)


@pytest.mark.parametrize("status", list(RunStatus))
def test_only_failures_are_tried_again(status: RunStatus) -> None:
    """Failed, timed out and lost are; what succeeded, was skipped or cancelled, or still goes on, is not."""
    expected = Again(SECOND, 1, 0) if status in {"failed", "timed_out", "lost"} else GiveUp()
    assert expected == judged(job(retries=1, requeue=False), status)


@pytest.mark.parametrize(
    ("retries", "retried", "expected"),
    [
        (0, 0, GiveUp()),  # no retries: nothing to say
        (1, 0, Again(SECOND, 1, 0)),
        (1, 1, GiveUp("given up after 1 retry")),
        (3, 2, Again(4 * SECOND, 3, 0)),
        (3, 3, GiveUp("given up after 3 retries")),
        (1, 3, GiveUp("given up after 3 retries")),  # the policy was edited meanwhile
    ],
)
def test_retries_are_counted(retries: int, retried: int, expected: Again | GiveUp) -> None:
    """As often as the job says, and then the run ends with how often it was."""
    assert expected == judged(job(retries=retries), retried=retried)


@pytest.mark.parametrize(
    ("retry_on", "give_up_on", "expected"),
    [
        ([], [], Again(SECOND, 1, 0)),
        (["Timeout"], [], Again(SECOND, 1, 0)),
        (["requests.exceptions.Timeout"], [], Again(SECOND, 1, 0)),
        (["OSError"], [], Again(SECOND, 1, 0)),  # a base counts
        (["RequestException"], [], Again(SECOND, 1, 0)),
        (["ValueError", "Exception"], [], Again(SECOND, 1, 0)),
        (["ValueError"], [], GiveUp("not tried again: retry_on names only ValueError")),
        (["urllib3.exceptions.Timeout"], [], GiveUp("not tried again: retry_on names only "
                                                    "urllib3.exceptions.Timeout")),
        (["out"], [], GiveUp("not tried again: retry_on names only out")),  # whole names, no ends of them
        ([], ["Timeout"], GiveUp("not tried again: give_up_on names Timeout")),
        ([], ["ValueError"], Again(SECOND, 1, 0)),
        # a name in both: giving up wins, whichever is nearer to the exception
        (["Timeout"], ["OSError"], GiveUp("not tried again: give_up_on names OSError")),
        (["OSError"], ["Timeout"], GiveUp("not tried again: give_up_on names Timeout")),
    ],
)  # fmt: skip
def test_exceptions_are_named(retry_on: list[str], give_up_on: list[str], expected: Again | GiveUp) -> None:
    """`retry_on` and `give_up_on` name a class or a base of it, with or without its module."""
    assert expected == judged(job(retries=5, retry_on=retry_on, give_up_on=give_up_on))


@pytest.mark.parametrize("status", [RunStatus.TIMED_OUT, RunStatus.LOST])
def test_what_has_no_exception_is_tried_again(status: RunStatus) -> None:
    """Names of exceptions say nothing about a run that timed out or was lost."""
    definition = job(retries=1, retry_on=["ValueError"], give_up_on=["Exception"])
    assert Again(SECOND, 1, 0) == judged(definition, status, exceptions=())


def test_a_failure_without_an_exception_is_not_among_those_named() -> None:
    """A run that failed before its body (no such task): tried again, unless only some exceptions are."""
    assert Again(SECOND, 1, 0) == judged(job(retries=1), exceptions=())
    assert GiveUp("not tried again: retry_on names only OSError") == judged(
        job(retries=1, retry_on=["OSError"]), exceptions=()
    )


@pytest.mark.parametrize(
    ("retries", "retried", "requeued", "expected"),
    [
        (0, 0, 0, Again(NOW, 0, 1)),
        (0, 0, 2, Again(NOW, 0, 3)),
        (0, 0, 3, GiveUp("lost 4 times in a row")),
        (2, 2, 2, Again(NOW, 2, 3)),  # its retries are used up, a requeue needs none
        (2, 1, 3, Again(2 * SECOND, 2, 3)),  # from then on it costs retries
        (2, 2, 3, GiveUp("given up after 2 retries")),
    ],
)
def test_a_lost_run_of_an_idempotent_job_is_queued_at_once(
    retries: int, retried: int, requeued: int, expected: Again | GiveUp
) -> None:
    """`requeue` costs no retry and no pause, but three times in a row at most."""
    definition = job(retries=retries, requeue=True)
    assert expected == judged(definition, RunStatus.LOST, (), retried, requeued)


def test_requeue_is_for_lost_runs_only() -> None:
    """What failed or timed out is not queued again by `requeue`."""
    for status in (RunStatus.FAILED, RunStatus.TIMED_OUT):
        assert GiveUp() == judged(job(requeue=True), status, requeued=3)


@pytest.mark.parametrize(
    ("backoff", "expected"),
    [
        (Backoff.FIXED, [3, 3, 3, 3, 3]),
        (Backoff.LINEAR, [3, 6, 9, 12, 15]),
        (Backoff.EXPONENTIAL, [3, 6, 12, 20, 20]),
    ],
)
def test_pauses_grow(backoff: Backoff, expected: list[int]) -> None:
    """Not at all, by the first pause, or twofold, and never beyond the longest."""
    definition = job(backoff=backoff, retry_delay=3 * SECOND, retry_max_delay=20 * SECOND)
    pauses = [pause(definition, number, RUN, number).total_seconds() for number in range(1, 6)]
    assert expected == pauses


@given(
    backoff=st.sampled_from(Backoff),
    first=st.timedeltas(timedelta(0), timedelta(days=1000)),
    longest=st.timedeltas(timedelta(0), timedelta(days=1000)),
    number=st.integers(1, 100_000),
    attempt=st.integers(1, 100_000),
    run_id=st.text(max_size=36),
)
def test_jitter_shortens_by_up_to_half(
    backoff: Backoff, first: timedelta, longest: timedelta, number: int, attempt: int, run_id: str
) -> None:
    """However far: between half of the pause and all of it, the same for the same run and attempt."""
    policy = {"backoff": backoff, "retry_delay": first, "retry_max_delay": longest}
    whole = pause(job(**policy), number, RunId(run_id), attempt)
    jittered = pause(job(**policy, retry_jitter=True), number, RunId(run_id), attempt)
    assert NOW <= whole <= longest
    rounding = timedelta(microseconds=1)
    assert whole / 2 - rounding <= jittered <= whole
    assert jittered == pause(job(**policy, retry_jitter=True), number, RunId(run_id), attempt)


def test_jitter_spreads_runs_and_attempts() -> None:
    """A thousand runs that failed together come back spread over half of the pause, not together."""
    definition = job(retry_jitter=True, retry_delay=100 * SECOND, backoff=Backoff.FIXED)
    pauses = [pause(definition, 1, RunId(f"run-{number}"), 1).total_seconds() for number in range(1000)]
    tenths = {int(seconds / 5) for seconds in pauses}
    assert set(range(10, 20)) == tenths
    assert pause(definition, 1, RUN, 1) != pause(definition, 1, RUN, 2)


@given(
    retries=st.integers(0, 5),
    requeue=st.booleans(),
    endings=st.lists(st.sampled_from(sorted(FAILURES)), min_size=30, max_size=30),
)
def test_every_run_comes_to_an_end(retries: int, requeue: bool, endings: list[RunStatus]) -> None:
    """However its attempts end, a run has at most `retries` retries, and three requeues in a row."""
    definition = job(retries=retries, requeue=requeue, retry_on=["OSError"])
    retried = requeued = in_row = attempts = 0
    for ended in endings:
        attempts += 1
        choice = judged(definition, ended, TIMEOUT, retried, requeued)
        if isinstance(choice, GiveUp):
            break
        free = choice.retried == retried
        in_row = in_row + free if ended is RunStatus.LOST else 0
        assert (retried + (not free), in_row) == (choice.retried, choice.requeued)
        assert in_row <= 3
        retried, requeued = choice.retried, choice.requeued
    assert retried <= retries
    if set(endings[:attempts]) == {RunStatus.LOST}:
        assert 1 + retries + (3 if requeue else 0) == attempts


@given(st.lists(st.sampled_from(TIMEOUT), max_size=3))
def test_a_name_matches_itself(names: list[str]) -> None:
    """The full name of the class or of any base is always found, and nothing is found by no name."""
    assert (names[0] if names else None) == matches(names, TIMEOUT)
