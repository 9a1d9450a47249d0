"""``@job(...)``: jobs defined in code, beside the function or the Celery task that they run.

Decorating registers a definition and touches neither database nor broker; a scheduler syncs what is
registered into the database when it starts.
"""

from __future__ import annotations

import functools
import inspect
import sys
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from celery import Celery, Task, shared_task
from celery.local import PromiseProxy, Proxy

from celery_sched import context
from celery_sched.calendar_files import names_a_file, with_files
from celery_sched.errors import AlreadyExists, InvalidValue
from celery_sched.model import JobDefinition
from celery_sched.rules import schedules
from celery_sched.rules.definition import checked
from celery_sched.rules.readers import refuse_unknown

Body = Callable[..., Any]

_FIELDS = {field.name for field in fields(JobDefinition)} - {"name", "task", "schedule", "options", "on"}
# of the Celery task that a function becomes; beside these, every public attribute of Task
_TASK_OPTIONS = {
    *("bind", "base", "pydantic", "pydantic_strict", "pydantic_context", "pydantic_dump_kwargs", "throws"),
    *("autoretry_for", "dont_autoretry_for", "retry_kwargs", "retry_backoff", "retry_backoff_max"),
    "retry_jitter",
}


@dataclass(frozen=True)
class Registration:
    """A job in code: its fields, the task (or its name), and where it stands."""

    given: Mapping[str, Any]
    task: Any
    place: str
    spec: object
    """What the module was loaded from: another one when it is loaded again."""

    def belongs_to(self, app: Celery) -> bool:
        """A shared task is every app's; a task of an app is that app's. ``app`` must be finalized."""
        if _is_name(self.task) or type(self.task) is Proxy:
            return True
        if type(self.task) is PromiseProxy and not self.task.__evaluated__():
            return False  # `app` has made all of its own
        return self.task.app is app

    def definition(self) -> JobDefinition:
        """The definition; makes a task that Celery has not made yet, so not for import time.

        Calendar files are read here, in a scheduler: a worker need not have them.
        """
        task = _name_of(self.task)
        given = with_files(self.given, Path(self.place.rpartition(":")[0]).parent)
        if "on_lost" in given:
            given["on_lost"] = _name_of(given["on_lost"])
        return checked(**{"name": task, **given, "task": task})


_lock = threading.Lock()
_registered: list[Registration] = []


def job(
    schedule: str | Sequence[str] | None = None,
    *,
    on: Any = None,
    task: Any = None,
    name: str | None = None,
    queue: str | None = None,
    options: Mapping[str, Any] | None = None,
    **policies: Any,
) -> Any:
    """Define a job: above a function, above a Celery task, or called with one.

    ::

        @job("*/5 * * * *", overlap="skip")       # makes the Celery task `module.function`
        def sample(ctx): ...                      # `ctx` is optional: run id, attempt, fencing number, ...

        @job("every 10s", name="probe")           # over a task: returned unchanged
        @app.task
        def probe(): ...

        job("@daily", task=probe, name="probe-daily", kwargs={"deep": True})

        @job(on="orders.*")                       # whenever an event is published on one of these topics
        def bill(event): ...                      # `event`: id, topic, payload, key, published_at

    :param schedule: text form of a schedule, in ``timezone``, or several: due whenever one of them is. May be
        left out with ``on``.
    :param on: the events that it subscribes to, see docs/events.md.
    :param name: unique in its app; default the task's name.
    :param policies: the fields of :class:`~celery_sched.model.JobDefinition`; ``on_lost`` takes a Celery task
        or its name. Above a function also the options of the Celery task that it becomes (``bind``,
        ``autoretry_for``, ``max_retries``, ...).
    :param queue: the queue its messages go to; ``options`` has the other message options.
    :raises InvalidValue: at once, where the definition stands.
    :raises AlreadyExists: another job of that name stands elsewhere; both places are named.
    """
    if not isinstance(schedule, str | list | tuple) and (schedule is not None or on is None):
        raise InvalidValue("the schedule of @job", schedule, schedules.FORMS, 'Write @job("*/5 * * * *").')
    given = {key: policies.pop(key) for key in _FIELDS & policies.keys()}
    if schedule is not None:
        given["schedule"] = schedule
    if on is not None:
        given["on"] = on
    if name is not None:
        given["name"] = name
    if queue is not None or options is not None:
        given["options"] = {**(options or {}), **({} if queue is None else {"queue": queue})}
    frame = sys._getframe(1)
    place = f"{Path(frame.f_code.co_filename)}:{frame.f_lineno}"
    spec = frame.f_globals.get("__spec__")

    def decorate(target: Any) -> Any:
        if _is_task(target):
            _refuse_task_options(policies, name, ())
            _register(Registration(given, target, place, spec))
            return target
        _check_body(target, name)
        _refuse_task_options(policies, name, _task_options())
        task_name = f"{target.__module__}.{target.__name__}"
        _register(Registration(given, task_name, place, spec))
        make: Callable[[Body], Any] = shared_task(name=task_name, **policies)
        return make(_with_context(target))

    return decorate if task is None else decorate(task)


def definitions(app: Celery) -> list[JobDefinition]:
    """The jobs that code defines for ``app``, by name. Finalizes the app: not for import time.

    :raises AlreadyExists: two of them got the same name.
    """
    app.finalize()
    with _lock:
        registered = list(_registered)
    found: dict[str, tuple[JobDefinition, str]] = {}
    for registration in registered:
        if registration.belongs_to(app):
            definition = registration.definition()
            if definition.name in found:
                raise _twice(definition.name, found[definition.name][1], registration.place)
            found[definition.name] = definition, registration.place
    return [found[name][0] for name in sorted(found)]


# type(), not isinstance(): that would make a lazy task, and so read its app's settings, too early


def _is_name(task: Any) -> bool:
    return type(task) is str


def _name_of(task: Any) -> Any:
    """The name of a task, which Celery makes now unless it has; what is no task is left as it is."""
    return task.name if _is_task(task) else task


def _is_task(target: Any) -> bool:
    return issubclass(type(target), Task | Proxy)


def _check_body(target: Any, name: str | None) -> None:
    what = f"job {name!r}: the target" if name else "the target of @job"
    allowed = "a function, or a Celery task, is decorated"
    if not inspect.isfunction(target):
        hint = "Call @job(...) with the schedule." if target is None else "Give the task, not its class."
        raise InvalidValue(what, target, allowed, hint if isinstance(target, type) else "")
    if inspect.iscoroutinefunction(target) or inspect.isasyncgenfunction(target):
        raise InvalidValue(what, target, allowed, "Celery runs no coroutines: call asyncio.run() in it.")


def _task_options() -> set[str]:
    return _TASK_OPTIONS | {key for key in dir(Task) if not key.startswith("_")} - {"name", "run", "app"}


def _refuse_task_options(policies: Mapping[str, Any], name: str | None, allowed: Iterable[str]) -> None:
    allowed = set(allowed)
    for key in policies:
        if key not in allowed:
            what = f"job {name!r}: option" if name else "option of @job"
            refuse_unknown(key, sorted({*_FIELDS, "name", "on", "queue", "options", "task"}), what, allowed)


def _register(new: Registration) -> None:
    """Check at once what can be checked before Celery has made the task, and keep it."""
    known = new.task if _is_name(new.task) else None
    given = dict(new.given)
    if isinstance(given.get("exclude"), list | tuple | str):
        terms = [given["exclude"]] if isinstance(given["exclude"], str) else given["exclude"]
        given["exclude"] = [term for term in terms if not names_a_file(term)]
    if _is_task(given.get("on_lost")):
        given["on_lost"] = "unnamed"
    trial = checked(**{"name": known or "unnamed", **given, "task": known or "unnamed"})
    name = trial.name if known or "name" in new.given else None
    with _lock:
        for old in _registered:
            old_name = old.given.get("name") or (old.task if _is_name(old.task) else None)
            if name is None or old_name != name or not _may_share_app(old.task, new.task):
                continue
            if old.place == new.place and old.spec is not new.spec:  # its module was loaded again
                _registered.remove(old)
                break
            raise _twice(name, old.place, new.place)
        _registered.append(new)


def _may_share_app(one: Any, other: Any) -> bool:
    """Whether two tasks may be in one app, as far as can be known before Celery has made them."""
    made = [task for task in (one, other) if not _is_name(task) and type(task) not in (Proxy, PromiseProxy)]
    return len(made) < 2 or made[0].app is made[1].app


def _twice(name: str, first: str, second: str) -> AlreadyExists:
    hint = f"It is defined at {first} and again at {second}: give one of them another name"
    return AlreadyExists("job", name, hint)


def _with_context(body: Body) -> Body:
    """Give the run's context to a function that has a parameter ``ctx``; callers see a function without it.

    A caller that has a context of its own passes it by keyword. Outside of a run ``ctx`` is its default,
    or None.
    """
    signature = inspect.signature(body)
    ctx = signature.parameters.get("ctx")
    if ctx is None or ctx.kind in (ctx.VAR_POSITIONAL, ctx.VAR_KEYWORD):
        return body
    others = [parameter for parameter in signature.parameters.values() if parameter is not ctx]
    at = None if ctx.kind is ctx.KEYWORD_ONLY else list(signature.parameters).index("ctx")
    outside = None if ctx.default is ctx.empty else ctx.default

    @functools.wraps(body)
    def with_context(*args: Any, **kwargs: Any) -> Any:
        if "ctx" in kwargs:
            value = kwargs.pop("ctx")
        else:
            value = context.current.get() or outside
        if at is not None and len(args) >= at:
            return body(*args[:at], value, *args[at:], **kwargs)
        return body(*args, ctx=value, **kwargs)

    # what Celery checks the arguments of a message against
    with_context.__signature__ = signature.replace(parameters=others)  # type: ignore[attr-defined]
    return with_context
