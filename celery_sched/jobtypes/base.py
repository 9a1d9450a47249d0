"""What a job type is made of.

A type of your own is a class like this, and one line of packaging (see docs/jobtypes.md)::

    @dataclass(frozen=True, kw_only=True)
    class Greeting:
        name: str = option(FILLED, "whom to greet")

    class Greet(JobType[Greeting]):
        name = "greet"
        description = "greets somebody"
        config = Greeting

        def run(self, config, ctx):
            return f"Hello {config.name}"
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar, Generic, TypeVar

from celery_sched import secrets
from celery_sched.config import Config
from celery_sched.context import EVENTS, Context
from celery_sched.jobtypes import options

C = TypeVar("C")


@dataclass(frozen=True, kw_only=True)
class JobContext(Context):
    """What a type is told about a run, beside its configuration: also what its worker is set to."""

    settings: Config = field(repr=False)
    app: Any = field(repr=False)
    """The Celery app."""
    event: Any = None
    """The event that started the run, a list of several, or nothing."""


def job_context(ctx: Context, settings: Config, app: Any, event: Any) -> JobContext:
    """The context of a run, for its type."""
    known = {one.name: getattr(ctx, one.name) for one in fields(Context)}
    return JobContext(**known, settings=settings, app=app, event=event)


class JobType(ABC, Generic[C]):
    """A kind of job: its fields, how they are checked, and what it does."""

    name: ClassVar[str]
    """What people write: ``--type NAME``; the task of its jobs is ``celery_sched.NAME``."""
    description: ClassVar[str]
    """One line."""
    config: ClassVar[type[Any]]
    """A frozen dataclass whose fields are made with :func:`celery_sched.jobtypes.options.option`."""

    @abstractmethod
    def run(self, config: C, ctx: JobContext) -> Any:
        """Do it, on a worker; references to secrets have been looked up.

        Return what shall stand in the history (JSON, at most 64 KiB); raise what shall make the run fail.
        """

    def check(self, config: C) -> None:
        """What the fields say together, where one alone is right. Texts may still be references to secrets.

        :raises InvalidValue: naming the field, the value and what is allowed.
        """

    def warnings(self, config: C, settings: Config) -> list[str]:
        """What is allowed and will fail, or looks like a mistake, with these settings; told to people."""
        return []

    def read(self, kwargs: Mapping[str, Any]) -> C:
        """The configuration in a job's ``kwargs``, checked; references to secrets are left as they are.

        :raises InvalidValue: naming the field, the value and what is allowed.
        """
        config: C = options.read(self.config, kwargs, self.name)
        self.check(config)
        return config

    def carry_out(self, kwargs: Mapping[str, Any], ctx: Context, settings: Config, app: Any) -> Any:
        """Check once more (rows can be written by anybody), look up secrets, run."""
        names = {one.name for one in options.fields_of(self.config)}
        given = {key: value for key, value in kwargs.items() if key in names or key not in EVENTS}
        came = [kwargs[key] for key in EVENTS if key in kwargs and key not in names]
        self.read(given)
        open_fields = {one.name for one in options.fields_of(self.config) if one.secret}
        resolved = {
            key: secrets.resolve(value, settings) if key in open_fields else value
            for key, value in given.items()
        }
        config: C = options.read(self.config, resolved, self.name, resolved=True)
        self.check(config)
        return self.run(config, job_context(ctx, settings, app, came[0] if came else None))
