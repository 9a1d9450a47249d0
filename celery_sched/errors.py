"""What can go wrong, as people see it: one base class, data as attributes."""

from __future__ import annotations

from collections.abc import Sequence


class SchedulerError(Exception):
    """Something the scheduler cannot do."""


class InvalidValue(SchedulerError, ValueError):
    """A value that is not allowed. Names the thing, the value, what is allowed and what to do."""

    def __init__(self, what: str, value: object, allowed: str, hint: str = "") -> None:
        self.what, self.value, self.allowed, self.hint = what, value, allowed, hint
        shown = repr(value)
        if len(shown) > 200:
            shown = shown[:200] + "..."
        super().__init__(f"{what} {shown} is refused: {allowed}." + (f" {hint}" if hint else ""))


class InvalidConfig(SchedulerError, ValueError):
    """One or more settings have values that are not allowed; all of them are listed at once."""

    def __init__(self, problems: Sequence[str]) -> None:
        self.problems = tuple(problems)
        super().__init__("wrong settings:\n" + "\n".join(f"  - {line}" for line in problems))


class NotFound(SchedulerError, LookupError):
    """No job, run, pool or node of that name or id."""

    def __init__(self, what: str, name: object, hint: str = "") -> None:
        self.what, self.name, self.hint = what, name, hint
        super().__init__(f"there is no {what} {name!r}" + (f". {hint}" if hint else ""))


class AlreadyExists(SchedulerError):
    """A job of that name exists in this app."""

    def __init__(self, what: str, name: object, hint: str = "") -> None:
        self.what, self.name, self.hint = what, name, hint
        super().__init__(f"{what} {name!r} exists already" + (f". {hint}" if hint else ""))


class RunRefused(SchedulerError):
    """A job cannot be run by hand now; ``live_run`` is the id of the run in the way, if one is."""

    def __init__(self, job: str, why: str, live_run: str | None = None) -> None:
        self.job, self.why, self.live_run = job, why, live_run
        super().__init__(f"job {job!r} was not run: {why}")


class SchemaMismatch(SchedulerError):
    """The database's tables are not those of this release."""

    def __init__(self, found: str | None, expected: str, app: str) -> None:
        self.found, self.expected = found, expected
        have = f"is at revision {found}" if found else "has no celery_sched tables"
        newer = found is not None and found > expected
        self.todo = "Install the newer release" if newer else f"Run: celery -A {app} sched migrate"
        super().__init__(f"the database {have}, this release needs {expected}. {self.todo}")


class DatabaseUnavailable(SchedulerError):
    """The database cannot be reached or did not answer in time."""
