"""How an attempt ended, read off what Celery's tracer returned."""

from __future__ import annotations

from celery import states
from celery.app.trace import TraceInfo, trace_ok_t
from celery.exceptions import Reject, Retry
from celery.utils.serialization import get_pickleable_exception

from celery_sched.errors import InvalidValue, SchedulerError
from celery_sched.rules.transitions import RunStatus
from celery_sched.steps.finish import Outcome
from celery_sched.worker import outcomes


class Outer:
    """A class with an exception in it."""

    class Inner(ConnectionResetError):
        """Below three of Python's."""


def _traced(status: str, error: BaseException) -> object:
    return trace_ok_t(outcomes.info_of(error), TraceInfo(status, error), 0.0, None)


def test_names_are_those_of_the_class_and_its_bases() -> None:
    """With their module, those of builtins without; from the class itself up."""
    expected = (
        f"{__name__}.Outer.Inner",
        *("ConnectionResetError", "ConnectionError", "OSError", "Exception", "BaseException"),
    )
    assert expected == outcomes.names_of(Outer.Inner("as asked"))


def test_out_of_memory_stands_for_pythons_own() -> None:
    """`retry_on=["MemoryError"]` means a task that ran out of memory, however that reached us."""
    assert "MemoryError" in outcomes.names_of(outcomes.OutOfMemory("as asked"))
    assert "MemoryError" not in outcomes.names_of(ValueError("as asked"))


def test_a_failure_carries_its_names() -> None:
    """An exception, and a rejected message, are told with the names that `retry_on` looks at."""
    failed = outcomes.of(_traced(states.FAILURE, KeyError("gone")))
    assert isinstance(failed, Outcome)
    assert (RunStatus.FAILED, ("KeyError", "LookupError", "Exception", "BaseException")) == (
        failed.status,
        failed.exceptions,
    )
    rejected = outcomes.of(_traced(states.REJECTED, Reject("no", requeue=False)))
    assert isinstance(rejected, Outcome)
    assert ("rejected", "celery.exceptions.Reject") == (rejected.reason, rejected.exceptions[0])


def test_a_traceback_ends_with_the_errors_own_class() -> None:
    """Also where Celery could not pass on the error itself, and took one of its bases for it."""
    error = InvalidValue("url", 5, "a text")
    passed_on = get_pickleable_exception(error)
    assert type(passed_on) is SchedulerError  # what this is about
    text = outcomes.error_text(error, outcomes.info_of(passed_on))
    assert text.startswith("InvalidValue: url 5 is refused: a text.\nTraceback")
    assert text.endswith("\ncelery_sched.errors.InvalidValue: url 5 is refused: a text.")
    for other in (ValueError("as it is"), ValueError()):  # nothing to put right
        info = outcomes.info_of(other)
        assert outcomes.error_text(other, info).endswith(f"\n{info.traceback.rstrip()}")


def test_a_retry_says_why_it_was_asked_for() -> None:
    """With the exception that the task gave, or that autoretry caught, where there is one."""
    plain = outcomes.of(_traced(states.RETRY, Retry("again")))
    caught = outcomes.of(_traced(states.RETRY, Retry("again", exc=ValueError("bad value"))))
    assert isinstance(plain, outcomes.Asked) and isinstance(caught, outcomes.Asked)
    assert "its task asked Celery for a retry" == plain.reason
    assert "its task asked Celery for a retry: ValueError: bad value" == caught.reason
    assert caught.error.startswith("Retry: ")
