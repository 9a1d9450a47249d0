"""Job files: definitions of jobs in TOML, JSON or YAML, read as a whole before anything is written.

A file has a table (a list of them, or a table of tables by name) called ``jobs``; the fields are those of
:class:`~celery_sched.model.JobDefinition`, as everywhere::

    [jobs.nightly]
    task = "app.tasks.nightly"
    schedule = "30 2 * * *"
    timezone = "Europe/Berlin"
    exclude = ["holidays:DE", "ics:closed.ics"]   # paths begin at the file's folder
"""

from __future__ import annotations

import importlib
import json
import tomllib
from collections.abc import Mapping
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any

from celery_sched.calendar_files import with_files
from celery_sched.errors import InvalidValue
from celery_sched.model import JobDefinition
from celery_sched.rules.definition import checked

LARGEST_FILE = 10_000_000
KINDS = (".toml", ".json", ".yaml", ".yml")
SHAPE = 'a file of jobs has "jobs": a list of tables with a name each, or a table of tables by name'


def read_jobs(path: Path) -> list[JobDefinition]:
    """The definitions in a file, by name.

    :raises InvalidValue: the file cannot be read; or all that is wrong with its jobs, one a line.
    """
    found: dict[str, JobDefinition] = {}
    wrong: list[str] = []
    for given in _tables(path, _parsed(path)):
        try:
            definition = checked(**with_files(given, path.parent))
            if definition.name in found:
                wrong.append(f"job {definition.name!r} is there twice")
            found[definition.name] = definition
        except InvalidValue as error:
            wrong.append(str(error))
    if wrong:
        raise InvalidValue("the job file", str(path), "\n  ".join(["", *wrong]).rstrip("."))
    return [found[name] for name in sorted(found)]


def shown(definition: JobDefinition, values: Mapping[str, Any]) -> dict[str, Any]:
    """What a job file has to say about a job: its fields (``values``, as JSON) that are not the defaults."""
    wanted = {}
    for field in fields(JobDefinition):
        default = field.default if field.default_factory is MISSING else field.default_factory()
        value = getattr(definition, field.name)
        if default is MISSING or (list(value) if isinstance(value, list) else value) != (
            list(default) if isinstance(default, tuple) else default
        ):
            wanted[field.name] = values[field.name]
    if definition.on is not None:  # else it would be read with another default
        wanted["retries"] = values["retries"]
    return wanted


def _parsed(path: Path) -> Any:
    suffix = path.suffix.lower()
    if suffix not in KINDS:
        raise InvalidValue("the job file", str(path), f"its name ends in {', '.join(KINDS)}")
    try:
        if path.stat().st_size > LARGEST_FILE:
            raise InvalidValue("the job file", str(path), f"at most {LARGEST_FILE} bytes are read")
        text = path.read_text(encoding="utf-8-sig")
    except FileNotFoundError as error:
        raise InvalidValue("the job file", str(path), "there is no such file") from error
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidValue("the job file", str(path), f"it cannot be read: {error}") from error
    try:
        match suffix:
            case ".toml":
                return tomllib.loads(text)
            case ".json":
                return json.loads(text)
        return _yaml(path, text)
    except ValueError as error:
        if isinstance(error, InvalidValue):
            raise
        raise InvalidValue("the job file", str(path), f"it is no {suffix[1:].upper()}: {error}") from error


def _yaml(path: Path, text: str) -> Any:
    try:
        yaml = importlib.import_module("yaml")
    except ImportError as error:
        hint = "Run: pip install PyYAML. TOML and JSON need nothing."
        raise InvalidValue("the job file", str(path), "reading YAML needs PyYAML", hint) from error
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise InvalidValue("the job file", str(path), f"it is no YAML: {error}") from error


def _fields(given: Mapping[Any, Any]) -> dict[str, Any]:
    """A job's fields; what YAML reads as true was written ``on:``."""
    return {"on" if key is True else str(key): value for key, value in given.items()}


def _tables(path: Path, content: Any) -> list[dict[str, Any]]:
    jobs = content.get("jobs") if isinstance(content, Mapping) else None
    unknown = [str(key) for key in content if key != "jobs"] if isinstance(content, Mapping) else []
    if unknown:
        raise InvalidValue("the job file", str(path), f"{SHAPE}; it also has {', '.join(unknown)}")
    if isinstance(jobs, Mapping) and all(isinstance(given, Mapping) for given in jobs.values()):
        return [{"name": name, **_fields(given)} for name, given in jobs.items()]
    if isinstance(jobs, list) and all(isinstance(given, Mapping) for given in jobs):
        return [_fields(given) for given in jobs]
    raise InvalidValue("the job file", str(path), SHAPE)
