"""``sched jobtypes``, and the options ``--type``, ``--set`` and ``--unset`` of a job."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import click

from celery_sched.cli import did_you_mean
from celery_sched.cli.access import app_of, runtime_of
from celery_sched.cli.output import json_option, print_json, print_table, say
from celery_sched.errors import InvalidValue, NotFound
from celery_sched.jobtypes import registry
from celery_sched.jobtypes.base import JobType
from celery_sched.jobtypes.options import fields_of
from celery_sched.model import Job, JobDefinition
from celery_sched.rules.jobtypes import PREFIX

F = TypeVar("F", bound=Callable[..., Any])

_OPTIONS = (
    click.option("--type", "job_type", metavar="TYPE", help="Instead of --task: http, shell, sql, ..."),
    click.option(
        "--set",
        "set_fields",
        multiple=True,
        metavar="FIELD=VALUE",
        help="A field of the type, or an argument by name: url=https://..., headers.X-Token=secret:TOKEN.",
    ),
    click.option("--unset", "unset_fields", multiple=True, metavar="FIELD", help="Take a field out."),
)


@click.command("jobtypes")
@click.argument("name", required=False)
@json_option
@click.pass_context
def jobtypes_command(ctx: click.Context, name: str | None, as_json: bool) -> None:
    """The types of jobs; with a NAME its fields. Those of installed packages too."""
    app_of(ctx)  # its modules may install some
    if name is not None:
        _print_fields(ctx, _usable(name), as_json)
        return
    types, broken = registry.types(), registry.broken()
    if as_json:
        print_json(
            [_type_json(kind) for kind in types]
            + [{"name": one.name, "origin": one.origin, "broken": one.why} for one in broken]
        )
        return
    rows = [((kind.name, "bold"), kind.description) for kind in types]
    print_table(ctx, ("type", "what it does"), rows)
    for one in broken:
        say(f"Warning: {one.name} of {one.origin} cannot be used: {one.why}", colour="yellow")


def type_options(function: F) -> F:
    """The options that make a job one of a type, and set its fields."""
    for option in reversed(_OPTIONS):
        function = option(function)
    return function


def with_type(fields: dict[str, Any], present: JobDefinition | None) -> None:
    """Make ``task`` and ``kwargs`` of what was given with the options of a type.

    :param present: the job as it is, where one is changed: fields that are not named stay.
    """
    name = fields.pop("job_type", None)
    given, gone = fields.pop("set_fields", ()), fields.pop("unset_fields", ())
    if name is not None:
        if "task" in fields:
            raise click.UsageError("--type and --task: give one of them")
        fields["task"] = PREFIX + _known(name)
    if not given and not gone:
        return
    task = fields.get("task", None if present is None else present.task)
    if task is None:
        raise click.UsageError("--set is for a job of a type, or with --task: give --type")
    same = present is not None and present.task == task
    start = fields.get("kwargs", present.kwargs if present is not None and same else {})
    kwargs: dict[str, Any] = json.loads(json.dumps(start))
    kind = registry.of_task(task)
    for text in given:
        _put(kwargs, text, kind if isinstance(kind, JobType) else None)
    for path in gone:
        _take(kwargs, path)
    fields["kwargs"] = kwargs


def warn_of_type(ctx: click.Context, job: Job) -> None:
    """Say what is allowed in a job and will fail, or looks like a mistake, as it is set here."""
    kind = registry.of_task(job.definition.task)
    if isinstance(kind, registry.Broken):
        say(f"Warning: the type {kind.name} of {kind.origin} cannot be used: {kind.why}", colour="yellow")
    if isinstance(kind, JobType):
        settings = runtime_of(ctx).config
        for text in kind.warnings(kind.read(job.definition.kwargs), settings):
            say(f"Warning: {text}.", colour="yellow")


def _known(name: str) -> str:
    if name not in registry.names():
        raise NotFound("job type", name, _others(name))
    return name


def _usable(name: str) -> JobType[Any]:
    found = registry.find(_known(name))
    if not isinstance(found, JobType):
        assert found is not None
        raise registry.JobTypeBroken(f"the job type {name!r} of {found.origin} cannot be used: {found.why}")
    return found


def _others(name: str) -> str:
    known = registry.names()
    return did_you_mean(name, known).strip() or f"There are {', '.join(known)}."


def _print_fields(ctx: click.Context, kind: JobType[Any], as_json: bool) -> None:
    if as_json:
        print_json(_type_json(kind))
        return
    click.echo(f"{kind.name}: {kind.description}. The task of its jobs is {PREFIX}{kind.name}.")
    rows = [
        (
            (field.name, "bold"),
            field.form.words,
            ("must be given", "yellow") if field.required else registry.shown(field.default),
            field.doc,
        )
        for field in fields_of(kind.config)
    ]
    print_table(ctx, ("field", "written as", "default", "meaning"), rows)


def _type_json(kind: JobType[Any]) -> dict[str, Any]:
    return {
        "name": kind.name,
        "description": kind.description,
        "task": PREFIX + kind.name,
        "fields": [
            {
                "name": field.name,
                "form": field.form.words,
                "required": field.required,
                "default": None if field.required else field.default,
                "secrets": field.secret,
                "doc": field.doc,
            }
            for field in fields_of(kind.config)
        ],
    }


def _put(kwargs: dict[str, Any], text: str, kind: JobType[Any] | None) -> None:
    """Set ``a.b=value``. A value that is JSON is that; a field that is a text takes it as it is."""
    path, separator, written = text.partition("=")
    parts = path.split(".", 1)
    if not separator or not all(parts):
        raise InvalidValue(
            "--set", text, "FIELD=VALUE, such as url=https://... or headers.X-Token=secret:TOKEN"
        )
    found: Any = written
    known = [] if kind is None else [field for field in fields_of(kind.config) if field.name == parts[0]]
    if not (len(parts) == 1 and known and known[0].form.text):
        try:
            found = json.loads(written)
        except ValueError:
            found = written
    if len(parts) == 1:
        kwargs[path] = found
        return
    within = kwargs.setdefault(parts[0], {})
    if not isinstance(within, dict):
        raise InvalidValue("--set", text, f"{parts[0]} is {json.dumps(within)}, which has no fields")
    within[parts[1]] = found


def _take(kwargs: dict[str, Any], path: str) -> None:
    name, _, rest = path.partition(".")
    within: Mapping[str, Any] | Any = kwargs.get(name) if rest else kwargs
    key = rest or name
    if not isinstance(within, dict) or key not in within:
        raise InvalidValue("--unset", path, f"a field that is set; there are {', '.join(kwargs) or 'none'}")
    del within[key]
