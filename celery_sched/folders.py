"""Message queues as folders of files: what the embedded broker is made of.

Layout::

    messages/<queue>/<stamp>.msg   one message; sorted by name = oldest first
    messages/<queue>/.until        its modification time is when the queue counts as abandoned
    control/<exchange>.exchange    which queues are bound to an exchange
    rejected/                      what could not be read

A file appears whole or not at all: it is written under a hidden name and renamed. To take a message is to
rename its file, which one consumer alone can do. All times come from the file system (the modification time
of a file just written), so that one clock stamps the messages and judges the queues.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from urllib.parse import quote, unquote
from uuid import uuid4

from kombu.exceptions import OperationalError

LITTER_AGE = 3600.0  # seconds after which half-written and taken files of dead processes are removed
SUBFOLDERS = ("messages", "control", "rejected")

Binding = tuple[str, str, str]  # routing key, pattern, queue


class FolderUnavailable(OperationalError, ConnectionError):
    """The embedded broker's folder is missing, read-only or full; what publishers expect of any broker."""

    def __init__(self, folder: Path, error: OSError) -> None:
        self.folder, self.error = folder, error
        super().__init__(
            f"the embedded broker's folder {str(folder)!r} cannot be used: {error}. It must exist and be "
            "writable: bring it back, or create it with `celery -A APP sched migrate`"
        )

    def __reduce__(self) -> tuple[type[FolderUnavailable], tuple[Path, OSError]]:
        return type(self), (self.folder, self.error)  # it travels from a worker's child to its main process


class Folders:
    """One broker's folder, and what can be done in it. Raises :class:`FolderUnavailable`."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.messages = root / "messages"
        self.control = root / "control"
        self.rejected = root / "rejected"

    @contextmanager
    def available(self) -> Iterator[None]:
        """Turn what the file system refuses into the connection error that publishers and workers expect."""
        try:
            yield
        except ConnectionError:
            raise
        except OSError as error:
            raise FolderUnavailable(self.root, error) from error

    def open(self) -> tuple[int, int]:
        """Check that the folder can be written to and tidy it. The identity (device, inode) of the folder."""
        with self.available():
            identity = self.root.stat()
            for name in SUBFOLDERS:
                (self.root / name).mkdir(mode=0o700, exist_ok=True)
            self._tidy(_clock(self.messages / ".clock"))
        return identity.st_dev, identity.st_ino

    def present(self) -> bool:
        """False while the folder is away."""
        return self.messages.is_dir()

    # Queues

    def queue(self, name: str) -> Path:
        """The folder of a queue, whatever characters its name has."""
        quoted = quote(name, safe="@-_.")
        if not quoted or len(quoted) > 200:
            raise ValueError(f"queue name {name!r} is refused: 1 to 200 characters are allowed")
        return self.messages / ("%2E" + quoted[1:] if quoted.startswith(".") else quoted)

    def make_queue(self, name: str) -> None:
        """Create a queue's folder where it is missing; never the broker's folder."""
        with self.available():
            self.queue(name).mkdir(exist_ok=True)

    def keep_queue(self, name: str, seconds: float) -> None:
        """A queue with an expiry counts as abandoned from ``seconds`` from now on."""
        folder = self.queue(name)
        draft = folder / f".{uuid4().hex}.draft"
        with self.available():
            until = _clock(draft) + seconds
            os.utime(draft, (until, until))
            # whole or not at all: a mark of just now says that the queue is abandoned
            draft.rename(folder / ".until")

    def drop_queue(self, name: str) -> None:
        """Remove a queue and all its bindings.

        The bindings go first: a consumer repairs both when it finds its folder gone, so it must not find it
        gone before them.
        """
        for file in self.control.glob("*.exchange"):
            self.unbind(unquote(file.name.removesuffix(".exchange")), name)
        folder = self.queue(name)
        gone = folder.with_name(f".{uuid4().hex}.gone")
        with self.available(), suppress(FileNotFoundError):  # another process was faster
            folder.rename(gone)
            shutil.rmtree(gone, ignore_errors=True)

    def _tidy(self, now: float) -> None:
        """Remove abandoned queues and the litter of dead processes. ``now``: seconds, the file system's."""
        for folder in self.messages.iterdir():
            if folder.name.endswith(".gone"):
                shutil.rmtree(folder, ignore_errors=True)
            elif folder.is_dir() and _abandoned(folder, now):
                self.drop_queue(unquote(folder.name))
            else:
                with suppress(FileNotFoundError):  # the queue was dropped meanwhile
                    self._remove_litter(folder, now)

    def _remove_litter(self, folder: Path, now: float) -> None:
        for litter in (*folder.glob(".*.draft"), *folder.glob(".*.taken")):
            with suppress(FileNotFoundError):  # it was in use, and its user finished with it
                if litter.stat().st_mtime < now - LITTER_AGE:
                    litter.unlink()

    # Messages

    def put(self, queue: str, text: str) -> None:
        """Add a message. An abandoned queue is removed instead."""
        folder = self.queue(queue)
        draft = folder / f".{uuid4().hex}.draft"
        with self.available():
            try:
                file = draft.open("xb")
            except FileNotFoundError:
                folder.mkdir(exist_ok=True)  # a queue that nobody declared; never the broker's folder
                file = draft.open("xb")
            try:
                with file:
                    file.write(text.encode())
                    file.flush()
                    written = os.fstat(file.fileno()).st_mtime_ns
                if not _abandoned(folder, written / 1e9):
                    # The monotonic clock orders the messages within one tick of the file system's.
                    stamp = f"{written:020d}-{time.monotonic_ns():020d}-{uuid4().hex[:8]}"
                    draft.rename(folder / f"{stamp}.msg")
                    return
            except BaseException:
                with suppress(OSError):  # the first error is the one to report
                    draft.unlink(missing_ok=True)
                raise
        self.drop_queue(queue)

    def names(self, queue: str) -> list[str]:
        """The file names of the messages that wait in a queue, oldest first."""
        with self.available():
            try:
                names = os.listdir(self.queue(queue))
            except FileNotFoundError:
                return []
        return sorted(name for name in names if name.endswith(".msg") and not name.startswith("."))

    def take(self, queue: str, name: str) -> Path | None:
        """Make a waiting message one's own; None when another consumer was faster or the queue was purged."""
        folder = self.queue(queue)
        taken = folder / f".{uuid4().hex}.taken"
        with self.available():
            try:
                (folder / name).rename(taken)
            except FileNotFoundError:
                return None
        return taken

    def reject(self, file: Path, name: str) -> Path:
        """Set a file that cannot be read aside; its new place."""
        place = self.rejected / f"{name[:150]}.{uuid4().hex[:8]}"
        with self.available(), suppress(FileNotFoundError):  # another process set it aside first
            file.rename(place)
        return place

    def purge(self, queue: str) -> int:
        """Remove the messages that wait in a queue; how many they were."""
        taken = [file for name in self.names(queue) if (file := self.take(queue, name))]
        with self.available():
            for file in taken:
                file.unlink()
        return len(taken)

    # Exchanges

    def exchange(self, name: str) -> Path:
        """The file of an exchange's bindings."""
        return self.control / f"{quote(name, safe='@-_.')}.exchange"

    def bindings(self, exchange: str) -> list[Binding]:
        """The bindings of an exchange, of all programs at this broker. ValueError: the file is unreadable."""
        with self.available():
            try:
                text = self.exchange(exchange).read_bytes()
            except FileNotFoundError:
                self.control.stat()  # no binding yet; or no broker, and then this raises
                return []
        try:
            return [(str(key), str(pattern), str(queue)) for key, pattern, queue in json.loads(text)]
        except TypeError as error:
            raise ValueError(str(error)) from error

    def bind(self, exchange: str, row: Binding) -> None:
        """Add a binding where it is missing."""
        if row not in self.bindings(exchange):
            self._change(exchange, lambda table: table if row in table else [row, *table])

    def unbind(self, exchange: str, queue: str, routing_key: str | None = None) -> None:
        """Remove the bindings of a queue: those of one routing key, or all."""
        self._change(
            exchange,
            lambda table: [
                row for row in table if row[2] != queue or (routing_key is not None and row[0] != routing_key)
            ],
        )

    def _change(self, exchange: str, change: Callable[[list[Binding]], list[Binding]]) -> None:
        """Rewrite an exchange's bindings under a lock; readers see the old table or the new one."""
        with self.available(), (self.control / ".lock").open("ab") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            try:
                old = self.bindings(exchange)
                new = change(old)
                if new != old:
                    draft = self.control / f".{uuid4().hex}.draft"
                    draft.write_text(json.dumps(new))
                    draft.rename(self.exchange(exchange))
            finally:
                fcntl.flock(lock, fcntl.LOCK_UN)  # a child forked meanwhile has the file open too


def _clock(file: Path) -> float:
    """The file system's time, in seconds since the epoch."""
    file.touch()
    os.utime(file)
    return file.stat().st_mtime


def _abandoned(folder: Path, now: float) -> bool:
    """True when the queue has an expiry and its consumer showed no sign of life for that long."""
    try:
        return (folder / ".until").stat().st_mtime < now
    except FileNotFoundError:
        return False
