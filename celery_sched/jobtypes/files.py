"""``files``: a sensor that publishes new and changed files of a folder.

It looks at the folder each time it runs, and remembers what it saw: a restart, a scheduler that was away or a
file system that tells nobody of its changes (network shares) lose no file.
"""

from __future__ import annotations

import errno
import fnmatch
import os
import stat
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path, PurePosixPath
from typing import Any

from celery_sched.errors import InvalidValue, SchedulerError
from celery_sched.jobtypes import options
from celery_sched.jobtypes.base import JobContext
from celery_sched.jobtypes.options import option
from celery_sched.jobtypes.sensor import Memory, Sensor, SensorConfig, Start, key_of
from celery_sched.rules import sightings
from celery_sched.rules.sightings import Merged, Sighting, Signature
from celery_sched.store.engine import Database
from celery_sched.store.sensors import News

MOST_FILES = 50_000
"""Files that one sensor remembers."""
LONGEST_WAIT = timedelta(seconds=60)
"""A run waits this long for files to settle; for longer, the next run looks again."""
SLICE = 1.0
UNFINISHED = (".*", "*.tmp", "*.part", "*.partial", "*.crdownload", "*.swp", "*~")
"""Names under which programs write what is not finished."""


class TooManyFiles(SchedulerError):
    """The folder has more files than a sensor can remember."""


def _folder(value: Any, what: str) -> str:
    text: str = options.FILLED.read(value, what)
    if not os.path.isabs(text):
        raise InvalidValue(what, value, "an absolute path, on the worker")
    return os.path.normpath(text)


def _pattern(value: Any, what: str) -> str:
    text: str = options.FILLED.read(value, what)
    if text.startswith("/") or ".." in PurePosixPath(text).parts:
        raise InvalidValue(what, value, 'a pattern within the folder: "*.csv", "**/*.csv"')
    return text


@dataclass(frozen=True, kw_only=True)
class FilesConfig(SensorConfig):
    """Which files."""

    folder: str = option(options.Form("absolute path", _folder, text=True), "the folder, on the worker")
    pattern: str = option(
        options.Form("pattern", _pattern),
        "names that are looked for; `*.csv` in the folder itself, `**/*.csv` in those below it too",
        "*",
    )
    ignore: Sequence[str] = option(
        options.TEXTS, "names of files and folders that are left out", list(UNFINISHED)
    )
    settle: timedelta = option(
        options.duration("1d"),
        "a file is published when its size and time have not changed for so long: half-written ones are not",
        "5s",
    )
    changed: bool = option(options.TRUTH, "publish a file again when it has changed", True)
    most: int = option(options.count(1, 10_000), "most events of one run; the rest comes with the next", 1000)


class Files(Sensor[FilesConfig]):
    """New and changed files."""

    name = "files"
    description = "publishes an event for each new or changed file of a folder"
    config = FilesConfig

    def sense(self, config: FilesConfig, ctx: JobContext, database: Database) -> dict[str, Any]:
        """Look; where files are still to settle, wait for them and look once more."""
        memory = Memory(database, ctx, config, [self.name, config.folder])
        if memory.value is None and config.start is Start.NOW:
            found = look(config, ctx.heartbeat)
            memory.move(_written(sightings.first(found)), [])
            return {"published": 0, "files": len(found), "first": True}
        merged, published = self._once(config, ctx, memory)
        if merged.wait is not None and merged.wait <= LONGEST_WAIT and not merged.left:
            _wait(merged.wait, ctx)
            merged, more = self._once(config, ctx, memory)
            published += more
        unsettled = sum(one.waiting is not None for one in merged.sightings.values()) - merged.left
        return {
            "published": published,
            "files": sum(one.gone_since is None for one in merged.sightings.values()),
            "unsettled": unsettled,
            "left": merged.left,
        }

    def _once(self, config: FilesConfig, ctx: JobContext, memory: Memory) -> tuple[Merged, int]:
        began = memory.clock()
        found = look(config, ctx.heartbeat)
        before = _read(memory.value)
        news: list[News] = []
        merged = sightings.merged(before, found, began, memory.clock(), config.settle, config.most)
        for name, signature, change in merged.ready:
            if config.changed or change is sightings.Change.NEW:
                news.append(News(_payload(config.folder, name, signature, change), key_of(name)))
        memory.move(_written(merged.sightings), news)
        return merged, len(news)


def look(config: FilesConfig, alive: Callable[[], object]) -> dict[str, Signature]:
    """The regular files of the folder that match, by their path within it, with ``/`` between its parts.

    :raises OSError: the folder is not there or cannot be read: that is no empty folder.
    :raises TooManyFiles: more than can be remembered.
    """
    found: dict[str, Signature] = {}
    for name, status in _walk(Path(config.folder), "", config, alive):
        if _matches(name, config.pattern):
            found[name] = (status.st_mtime_ns, status.st_size)
            if len(found) > MOST_FILES:
                raise TooManyFiles(
                    f"{config.folder} has more than {MOST_FILES} files that match {config.pattern!r}: move "
                    "away those that are dealt with, or give several sensors a pattern each"
                )
    return found


def _walk(
    folder: Path, within: str, config: FilesConfig, alive: Callable[[], object]
) -> Iterator[tuple[str, os.stat_result]]:
    alive()
    with os.scandir(folder) as listed:
        children = sorted(listed, key=lambda child: child.name)
    for child in children:
        if any(fnmatch.fnmatchcase(child.name, one) for one in config.ignore) or not _is_text(child.name):
            continue
        name = f"{within}{child.name}"
        try:
            if child.is_dir(follow_symlinks=False):
                if "**" in config.pattern or "/" in config.pattern:
                    yield from _walk(Path(child.path), f"{name}/", config, alive)
                continue
            status = child.stat()
        except OSError as error:
            if error.errno not in (errno.ENOENT, errno.ELOOP):
                raise
            continue  # it went away while we looked, or leads nowhere
        if stat.S_ISREG(status.st_mode):
            yield name, status


def _is_text(name: str) -> bool:
    """Whether a name can stand in an event: some file systems have bytes that are no text."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def _matches(name: str, pattern: str) -> bool:
    """``*`` stays within one folder; ``**`` as a part stands for any folders, none too."""
    return _parts_match(name.split("/"), pattern.split("/"))


def _parts_match(names: Sequence[str], patterns: Sequence[str]) -> bool:
    if not patterns:
        return not names
    if patterns[0] == "**":
        if len(patterns) == 1:
            return bool(names)
        return any(_parts_match(names[at:], patterns[1:]) for at in range(len(names)))
    return (
        bool(names) and fnmatch.fnmatchcase(names[0], patterns[0]) and _parts_match(names[1:], patterns[1:])
    )


def _payload(folder: str, name: str, signature: Signature, change: sightings.Change) -> dict[str, Any]:
    changed, size = signature
    seconds, nanoseconds = divmod(changed, 1_000_000_000)
    at = datetime.fromtimestamp(seconds, UTC) + timedelta(microseconds=nanoseconds // 1000)
    return {
        "path": os.path.join(folder, name),
        "name": name,
        "size": size,
        "modified_at": at.isoformat(),
        "change": change.value,
    }


def _wait(pause: timedelta, ctx: JobContext) -> None:
    until = time.monotonic() + pause.total_seconds()
    while (left := until - time.monotonic()) > 0:
        ctx.heartbeat()
        time.sleep(min(left, SLICE))


def _written(known: Mapping[str, Sighting]) -> dict[str, Any]:
    """As JSON: names to lists, short because there may be many."""
    return {
        name: [_list(one.known), _list(one.waiting), _text(one.since), _text(one.gone_since)]
        for name, one in known.items()
    }


def _list(signature: Signature | None) -> list[int] | None:
    return None if signature is None else list(signature)


def _text(at: datetime | None) -> str | None:
    return None if at is None else at.isoformat()


def _read(value: Mapping[str, Any] | None) -> dict[str, Sighting]:
    return {
        name: Sighting(_pair(known), _pair(waiting), _instant(since), _instant(gone_since))
        for name, (known, waiting, since, gone_since) in (value or {}).items()
    }


def _pair(value: Any) -> Signature | None:
    return None if value is None else (int(value[0]), int(value[1]))


def _instant(value: str | None) -> datetime | None:
    return None if value is None else datetime.fromisoformat(value)
