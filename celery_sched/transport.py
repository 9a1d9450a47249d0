"""The embedded broker: a kombu transport whose queues are folders, so that no server is needed.

What it promises (:mod:`celery_sched.folders` has the how):

* A message appears whole or not at all, and no message is delivered twice.
* What cannot be read is set aside in ``rejected`` with a log line; no consumer dies of it.
* Delivery is **at most once**: a message that a worker holds dies with that worker (a clean stop puts it
  back). The scheduler publishes again what nobody started, so nothing that it planned is lost.
* Where the broker's folder is missing, read-only or full, publishers get ``OperationalError``; a consumer
  waits and goes on when the folder is back. Nothing but :func:`ensure_folders` creates that folder: were it
  made anew during an outage, messages would go where no worker looks once the old one is back.
* A queue with an expiry (events, remote control) whose consumer is gone is removed with its bindings, as
  RabbitMQ does it. Otherwise each Flower that was ever started would leave a queue that fills for ever.

Who may write to the folder may run tasks: it is open to its owner only.
"""

from __future__ import annotations

import os
import time
from collections import deque
from contextlib import suppress
from pathlib import Path
from queue import Empty
from typing import Any
from uuid import uuid4

from celery.backends.filesystem import FilesystemBackend
from kombu.exceptions import ChannelError
from kombu.log import get_logger
from kombu.transport import TRANSPORT_ALIASES, virtual
from kombu.utils.json import dumps, loads

from celery_sched.folders import SUBFOLDERS, Binding, Folders, FolderUnavailable

logger = get_logger(__name__)

#: The scheme of the broker's URL. kombu refuses import paths in URLs, hence a name.
SCHEME = "sched-filesystem"
TRANSPORT_ALIASES[SCHEME] = "celery_sched.transport:Transport"

POLLING_INTERVAL = 0.05  # seconds between two looks at empty queues
SHORTEST_EXPIRY = 60.0  # seconds; a busy consumer that looks once a minute keeps its queue


def broker_folder(home: Path) -> Path:
    """The folder of the embedded broker, below the embedded ``home``."""
    return Path(home).absolute() / "broker"


def ensure_folders(home: Path) -> Path:
    """Create the embedded broker's folder, and ``home``, where they are missing; return the former."""
    folder = broker_folder(home)
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    for name in SUBFOLDERS:
        (folder / name).mkdir(mode=0o700, exist_ok=True)
    return folder


def embedded_broker(home: Path) -> dict[str, object]:
    """Celery's settings for the embedded broker below ``home``. Touches no file (:func:`ensure_folders`)."""
    options = {"folder": str(broker_folder(home)), "polling_interval": POLLING_INTERVAL}
    # a host, because kombu warns at each connection without one
    return {"broker_url": f"{SCHEME}://localhost//", "broker_transport_options": options}


def embedded_result_backend(home: Path) -> str:
    """The URL of the result backend that keeps its files below ``home``."""
    return f"celery_sched.transport:FileResults+file://{Path(home).absolute() / 'results'}"


class BrokerState(virtual.BrokerState):
    """What this program declared at one broker's folder; ``expiring`` is queue -> seconds."""

    def __init__(self) -> None:
        super().__init__()
        self.expiring: dict[str, float] = {}


class Channel(virtual.Channel):
    """Queues as folders. ``connection`` is the :class:`Transport`."""

    supports_fanout = True
    connection: Transport

    def __init__(self, connection: Transport, **kwargs: Any) -> None:
        super().__init__(connection, **kwargs)
        self.folders = connection.folders
        self._listed: dict[str, deque[str]] = {}  # names seen in a queue's folder, not tried yet
        self._kept: dict[str, float] = {}  # queue -> monotonic seconds of the last sign of life

    def prepare_queue_arguments(self, arguments: Any, **kwargs: Any) -> dict[str, Any]:
        """Keep the expiry (seconds), which kombu's virtual transports drop."""
        expires = kwargs.get("expires")
        return {**(arguments or {}), **({"x-expires": int(expires * 1000)} if expires else {})}

    def _new_queue(self, queue: str, **kwargs: Any) -> None:
        self._check_name(queue)
        expires_ms = (kwargs.get("arguments") or {}).get("x-expires")
        if expires_ms:
            self.connection.state.expiring[queue] = max(expires_ms / 1000, SHORTEST_EXPIRY)
        self.folders.make_queue(queue)
        self._keep(queue)

    def _check_name(self, queue: str) -> None:
        try:
            self.folders.queue(queue)
        except ValueError as error:
            raise ChannelError(str(error)) from error

    def _has_queue(self, queue: str, **kwargs: Any) -> bool:
        with self.folders.available():
            self.folders.messages.stat()  # an outage is not an unknown queue
        return self.folders.queue(queue).is_dir()

    def _keep(self, queue: str) -> None:
        """Show, four times per expiry, that this consumer lives; repair what others removed meanwhile."""
        state = self.connection.state
        expires = state.expiring.get(queue)
        now = time.monotonic()
        if expires is None or now < self._kept.get(queue, -expires) + expires / 4:
            return
        if not self.folders.present():
            return  # an outage: the folder comes back with what it held
        self.folders.make_queue(queue)
        self.folders.keep_queue(queue, expires)
        for exchange, routing_key, arguments in list(state.queue_bindings(queue)):
            bound = self.typeof(exchange).prepare_bind(queue, exchange, routing_key, arguments)
            self._queue_bind(exchange, bound[0], bound[1], queue)
        self._kept[queue] = now

    def _put(self, queue: str, message: dict[str, Any], **kwargs: Any) -> None:
        self._check_name(queue)
        self.folders.put(queue, dumps(message))

    def _put_fanout(self, exchange: str, message: dict[str, Any], routing_key: str, **kwargs: Any) -> None:
        for _, _, queue in self.get_table(exchange):
            self._put(queue, message, **kwargs)

    def _get(self, queue: str, timeout: float | None = None) -> dict[str, Any]:
        self._keep(queue)
        while True:
            names = self._listed.get(queue)
            if not names:
                names = self._listed[queue] = deque(self.folders.names(queue))
                self.connection.note(bool(names) or self.folders.present())
                if not names:
                    raise Empty
            name = names.popleft()
            taken = self.folders.take(queue, name)
            message = taken and self._read(queue, name, taken)
            if message:
                return message

    def _read(self, queue: str, name: str, taken: Path) -> dict[str, Any] | None:
        try:
            message: dict[str, Any] = loads(taken.read_bytes())
            self.Message(message, channel=self)  # what a consumer does next, and must not die of
            origin = message["properties"]["delivery_info"]
            origin["exchange"], origin["routing_key"]
        except Exception as error:  # whatever the file holds
            place = self.folders.reject(taken, name)
            logger.error("message %s of queue %s is unreadable (%r): moved to %s", name, queue, error, place)
            return None
        with self.folders.available():
            taken.unlink(missing_ok=True)
        return message

    def _size(self, queue: str) -> int:
        return len(self.folders.names(queue))

    def _purge(self, queue: str) -> int:
        return self.folders.purge(queue)

    def get_table(self, exchange: str) -> list[Binding]:
        """The bindings of an exchange, of all programs at this broker."""
        try:
            return self.folders.bindings(exchange)
        except ValueError as error:
            file = self.folders.exchange(exchange)
            place = self.folders.reject(file, file.name)
            logger.error("bindings %s are unreadable (%r): moved to %s", file, error, place)
            return []

    def _queue_bind(self, exchange: str, routing_key: str, pattern: str | None, queue: str) -> None:
        self.get_table(exchange)  # sets an unreadable one aside
        self.folders.bind(exchange, (routing_key or "", pattern or "", queue))

    def queue_unbind(
        self, queue: str, exchange: str | None = None, routing_key: str = "", *args: Any, **kwargs: Any
    ) -> None:
        """Remove a binding, for all programs at this broker."""
        exchange = exchange or "amq.direct"
        self.connection.state.binding_delete(queue, exchange, routing_key)
        self.folders.unbind(exchange, queue, routing_key)

    def _delete(self, queue: str, exchange: str, *args: Any, **kwargs: Any) -> None:
        self.connection.state.expiring.pop(queue, None)
        self.folders.drop_queue(queue)


class Transport(virtual.Transport):
    """kombu's side of the embedded broker; the transport option ``folder`` says where it is."""

    Channel = Channel
    driver_type = "filesystem"
    driver_name = SCHEME
    default_port = 0
    polling_interval = POLLING_INTERVAL
    connection_errors = (FolderUnavailable, *virtual.Transport.connection_errors)
    implements = virtual.Transport.implements.extend(
        asynchronous=False, exchange_type=frozenset(["direct", "topic", "fanout"])
    )
    state: BrokerState
    #: What was declared, by the identity of the folder: another folder at the same path knows nothing of it.
    _states: dict[tuple[str, int, int], BrokerState] = {}

    def __init__(self, client: Any, **kwargs: Any) -> None:
        super().__init__(client, **kwargs)
        folder = client.transport_options.get("folder") or broker_folder(Path(".celery_sched"))
        self.folders = Folders(Path(folder).absolute())
        self.state = BrokerState()
        self._present = True

    def establish_connection(self) -> Any:
        """Look at the folder, also whether it can be written to, and tidy it."""
        key = (str(self.folders.root), *self.folders.open())
        self.state = self._states.setdefault(key, BrokerState())
        return super().establish_connection()

    def note(self, present: bool) -> None:
        """Log once that the folder went away, and once that it is back."""
        if present != self._present:
            self._present = present
            if present:
                logger.warning("the embedded broker's folder %s is back", self.folders.root)
            else:
                logger.error("the embedded broker's folder %s is missing: waiting for it", self.folders.root)

    @property
    def default_connection_params(self) -> dict[str, Any]:
        """None: there is no host, and kombu warns at each connection about one that it assumes."""
        return {}

    def driver_version(self) -> str:
        """There is no driver."""
        return "N/A"


class FileResults(FilesystemBackend):
    """Celery's result files: each whole or absent, and removed when older than ``result_expires``."""

    CLEAN_EVERY = 3600.0  # seconds
    path: bytes

    def __init__(self, url: str, *args: Any, **kwargs: Any) -> None:
        with suppress(FileNotFoundError):  # no home: Celery's own check of the folder says so
            Path(url.removeprefix("file://")).mkdir(mode=0o700, exist_ok=True)
        super().__init__(url, *args, **kwargs)

    def set(self, key: Any, value: Any) -> None:
        """Write beside, then rename: Celery's own version shows readers an empty file first."""
        file = Path(os.fsdecode(self.path), os.fsdecode(key))
        draft = file.with_name(f".{uuid4().hex}.draft")
        draft.write_bytes(value.encode() if isinstance(value, str) else value)
        now = draft.stat().st_mtime
        draft.replace(file)
        mark = file.with_name(".cleaned")
        if not mark.exists() or mark.stat().st_mtime < now - self.CLEAN_EVERY:
            mark.touch()  # first, so that others do not clean too
            with suppress(FileNotFoundError):  # they did
                self.cleanup()
