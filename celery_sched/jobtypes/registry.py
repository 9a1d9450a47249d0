"""Which job types there are: our own, and those that installed packages bring (entry points).

A type's module is imported when it is first asked for: a package that is broken is named then, and stops
nothing but its own jobs.
"""

from __future__ import annotations

import functools
import logging
import threading
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass, is_dataclass
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from celery_sched import context, runtime, secrets
from celery_sched.errors import InvalidValue, SchedulerError
from celery_sched.jobtypes.base import JobType
from celery_sched.jobtypes.options import fields_of
from celery_sched.rules import jobtypes as rules

logger = logging.getLogger("celery_sched.jobtypes")
GROUP = "celery_sched.jobtypes"
"""The group of entry points: the name is the type's, the object its class."""
BUILT_IN: dict[str, str] = {
    "http": "celery_sched.jobtypes.http:Http",
    "shell": "celery_sched.jobtypes.shell:Shell",
    "sql": "celery_sched.jobtypes.sql:Sql",
    "task": "celery_sched.jobtypes.task:TaskCall",
    "agent": "celery_sched.jobtypes.agent:AgentType",
    "files": "celery_sched.jobtypes.files:Files",
    "sql_rows": "celery_sched.jobtypes.sql_rows:SqlRows",
    "http_changed": "celery_sched.jobtypes.http_changed:HttpChanged",
}
"""Our own: name -> ``module:class``."""
TAKEN = ("ping", "notify")
"""Tasks of ours that are no types."""


class JobTypeBroken(SchedulerError):
    """A job type that is installed and cannot be used."""


@dataclass(frozen=True)
class Broken:
    """A type that is installed and cannot be used."""

    name: str
    origin: str
    """The package and the object that its entry point names."""
    why: str


_lock = threading.RLock()
_loaded: dict[str, JobType[Any] | Broken] = {}


def names() -> tuple[str, ...]:
    """The names of all types; nothing is imported."""
    return (*BUILT_IN, *sorted(_installed()))


def find(name: str) -> JobType[Any] | Broken | None:
    """The type of that name, imported; ``None``: there is none. Never raises for a broken one."""
    with _lock:
        if name not in _loaded:
            point = _points().get(name)
            if point is None:
                return None
            _loaded[name] = _load(point)
        return _loaded[name]


def types() -> list[JobType[Any]]:
    """All types that can be used."""
    return [found for name in names() if isinstance(found := find(name), JobType)]


def broken() -> list[Broken]:
    """All types that cannot."""
    return [found for name in names() if isinstance(found := find(name), Broken)]


def forget() -> None:
    """Look again which packages are installed (tests)."""
    with _lock:
        _loaded.clear()
        _installed.cache_clear()


def of_task(task: str) -> JobType[Any] | Broken | None:
    """The type of the jobs that have this task; ``None``: they are of none."""
    return find(task.removeprefix(rules.PREFIX)) if task.startswith(rules.PREFIX) else None


def add_tasks(app: Any) -> None:
    """Register the task of every type in a Celery app. Imports none of them."""
    for name in names():
        app.task(name=rules.PREFIX + name, shared=False)(_body(app, name))


def reference(kind: JobType[Any]) -> str:
    """A type's fields as a Markdown table (docs/jobtypes.md holds it; a test compares)."""
    lines = ["| field | written as | default | meaning |", "| --- | --- | --- | --- |"]
    for field in fields_of(kind.config):
        if field.required:
            default = "(must be given)"
        else:
            default = "" if field.default in (None, "", [], {}) else f"`{shown(field.default)}`"
        lines.append(f"| `{field.name}` | {field.form.words} | {default} | {field.doc} |")
    return "\n".join(lines)


def shown(default: Any) -> str:
    """A default as people write it."""
    if isinstance(default, bool):
        return "true" if default else "false"
    return "" if default in (None, MISSING) else str(default)


def _points() -> dict[str, EntryPoint]:
    own = {name: EntryPoint(name, target, GROUP) for name, target in BUILT_IN.items()}
    return {**_installed(), **own}


@functools.cache
def _installed() -> dict[str, EntryPoint]:
    """Entry points of installed packages; one that has a name of ours is said once and left out."""
    found: dict[str, EntryPoint] = {}
    for point in entry_points(group=GROUP):
        if point.name in BUILT_IN or point.name in TAKEN:
            logger.error("job type %r of %s is left out: the name is ours", point.name, _origin(point))
        else:
            found[point.name] = point
    return found


def _origin(point: EntryPoint) -> str:
    package = point.dist.name if point.dist is not None else "celery_sched"
    return f"{package} ({point.value})"


def _load(point: EntryPoint) -> JobType[Any] | Broken:
    try:
        return _made(point.name, point.load())
    except (Exception, SystemExit) as error:  # somebody's code: whatever it raises, all else goes on
        found = Broken(point.name, _origin(point), f"{type(error).__name__}: {error}")
        logger.error("job type %r of %s cannot be used: %s", found.name, found.origin, found.why)
        return found


def _made(name: str, found: Any) -> JobType[Any]:
    if not (isinstance(found, type) and issubclass(found, JobType)):
        raise InvalidValue("its entry point", found, "a subclass of celery_sched.jobtypes.base.JobType")
    kind = found()
    if getattr(kind, "name", None) != name:
        hint = "The entry point and the class say the same name."
        raise InvalidValue("its name", getattr(kind, "name", None), repr(name), hint)
    if not is_dataclass(getattr(kind, "config", None)):
        raise InvalidValue("its config", getattr(kind, "config", None), "a frozen dataclass")
    fields_of(kind.config)  # each made with option()
    return kind


def _body(app: Any, name: str) -> Any:
    def body(*args: Any, **kwargs: Any) -> Any:
        return carry_out(app, name, args, kwargs)

    body.__doc__ = f"A job of the type {name!r}."
    return body


@secrets.kept
def carry_out(app: Any, name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """The body of every type's task.

    :raises JobTypeBroken: the type's package cannot be imported.
    :raises SchedulerError: it was sent by somebody else than the scheduler.
    """
    ctx = context.current.get()
    if ctx is None:
        raise SchedulerError(
            f"the task {rules.PREFIX}{name} is carried out for a job only: add a job of the type {name!r}"
        )
    found = find(name)
    if not isinstance(found, JobType):
        why = f"{found.origin}: {found.why}" if found is not None else "its package is not installed"
        raise JobTypeBroken(f"the job type {name!r} cannot be used on this worker: {why}")
    _check_no_args(name, args)
    return found.carry_out(kwargs, ctx, runtime.of(app).config, app)


def _check_no_args(name: str, args: Sequence[Any]) -> None:
    if args:
        raise InvalidValue(f"{name}: args", list(args), "a job of a type has kwargs only: its fields")


def _check_of(task: str) -> rules.Check | None:
    """A broken type's jobs are not checked: a package that is broken here must not stop a scheduler."""
    kind = of_task(task)
    if not isinstance(kind, JobType):
        return None
    found = kind

    def check(args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        _check_no_args(found.name, args)
        found.read(kwargs)

    return check


rules.use(_check_of)
