"""The stand-alone Celery app, and :func:`setup` for somebody else's app."""

from __future__ import annotations

import importlib
import importlib.util
import os
import pkgutil
import sys
import threading
import weakref
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from celery import Celery, signals

from celery_sched import config, notify, runtime, worker
from celery_sched.errors import SchedulerError
from celery_sched.jobtypes import registry
from celery_sched.store import notices
from celery_sched.transport import SCHEME, embedded_broker, embedded_result_backend, ensure_folders

NAME = "celery_sched"
SCHEDULER = "celery_sched.beat:Scheduler"
TASKS = "tasks"
"""Package or module in the current folder with the deployment's own jobs; imported where there is one, and
of a package every module in it: a new file of jobs needs no line elsewhere."""

_lock = threading.RLock()
_standalone: Celery | None = None
_set_up: weakref.WeakSet[Celery] = weakref.WeakSet()

DEFAULTS: Mapping[str, Any] = {
    "beat_scheduler": SCHEDULER,
    "task_default_queue": NAME,
    # a worker full of hung jobs must not sit on messages beside an idle one; redeliveries are dropped at
    # the start of a run
    "worker_prefetch_multiplier": 1,
    "task_acks_late": True,
    # the message would be delivered again and dropped; a running job is not stopped for that
    "worker_cancel_long_running_tasks_on_connection_loss": False,
    # Flower shows what happens without -E
    "worker_send_task_events": True,
    "task_send_sent_event": True,
    "task_track_started": True,
    # a broker that is away is waited for, at start and later, however long it takes
    "broker_connection_retry_on_startup": True,
    "broker_connection_max_retries": None,
    # a busy machine forks slowly; the default of 4 s kills children that were about to be up
    "worker_proc_alive_timeout": 30.0,
    # how long Celery waits for the last words of a child that died: its message keeps a slot meanwhile
    "worker_lost_wait": 2.0,
    # what jobs print goes where the worker's own output goes, not line by line into its log
    "worker_redirect_stdouts": False,
    "timezone": "UTC",
    "enable_utc": True,
}
_FAIL_SOON = {"max_retries": 1, "interval_start": 0, "interval_step": 0.1, "interval_max": 0.1}
_REDIS = {**_FAIL_SOON, "socket_timeout": 2.0, "socket_connect_timeout": 2.0, "socket_keepalive": True}
_AMQP = {**_FAIL_SOON, "confirm_publish": True, "write_timeout": 5.0}
_TRANSPORT_OPTIONS = {
    **dict.fromkeys(("redis", "rediss", "redis+socket", "sentinel"), _REDIS),
    **dict.fromkeys(("amqp", "amqps", "pyamqp"), _AMQP),
}
"""By the broker's scheme: no call to a broker that swallows bytes may last for ever."""


def ping(event: object = None, events: object = None) -> str:
    """Task ``celery_sched.ping``: answers ``pong``. For trying things out; events are let by."""
    return "pong"


def setup(app: Celery) -> None:
    """Make a Celery app's workers and schedulers work with celery_sched.

    May be called at any time and again: before or after the app is configured, finalized, or its tasks are
    made. Settings (``sched_*``) are read, and wrong ones refused, when they are first needed. The scheduler
    is started with ``celery -A proj beat -S sched`` (or ``beat_scheduler = "sched"`` in the settings): an
    app's own ``beat_schedule`` is not taken over by this call.
    """
    if not isinstance(app, Celery):
        raise TypeError(f"setup() takes a Celery app, not {app!r}")
    with _lock:
        if app in _set_up:
            return
        worker.install(app)
        app.task(name=f"{NAME}.ping", shared=False)(ping)
        app.task(name=notices.TASK, shared=False, bind=True)(send_notifications)
        registry.add_tasks(app)
        _set_up.add(app)


def send_notifications(self: Any, target: str, notifications: list[int]) -> dict[str, Any]:
    """Send a message with these notifications to a target of ``sched_notify_targets``."""
    return notify.send(runtime.of(self.app), target, notifications)


def standalone() -> Celery:
    """The app of ``celery -A celery_sched ...``; one per process, made at the first call.

    Configured by ``celeryconfig.py`` (or the module in CELERY_CONFIG_MODULE) where there is one, then by
    environment variables (CELERY_BROKER_URL, CELERY_RESULT_BACKEND, CELERY_SCHED_*); without them it runs on
    SQLite and a broker of files in ``sched_home``. No file is written here.
    """
    global _standalone
    with _lock:
        if _standalone is None:
            _standalone = _make()
        return _standalone


def make_folders(app: Celery) -> None:
    """Create what the embedded broker needs, where ``app`` uses it. Workers and schedulers do so at start."""
    if str(app.conf.broker_url or "").startswith(f"{SCHEME}:"):
        ensure_folders(runtime.of(app).config.home)


def _make() -> Celery:
    here = Path.cwd()
    if any(_lies_in(here, name) for name in ("celeryconfig", TASKS)) and str(here) not in sys.path:
        sys.path.insert(0, str(here))
    module = _configuration()
    app = Celery(NAME)
    if module is not None:
        app.config_from_object(module)
    given = {} if module is None else {key.lower(): value for key, value in vars(module).items()}
    # what Celery calls defaults wins over the configuration module: only what that leaves open
    app.add_defaults(lambda: {k: v for k, v in _defaults(given, os.environ).items() if k not in given})
    setup(app)

    def import_tasks(**_: Any) -> None:
        _import_tasks(here)

    signals.import_modules.connect(import_tasks, sender=app, weak=False)
    return app


def _lies_in(folder: Path, module: str) -> bool:
    return (folder / f"{module}.py").is_file() or (folder / module / "__init__.py").is_file()


def _configuration() -> ModuleType | None:
    named = os.environ.get("CELERY_CONFIG_MODULE")
    name = named or "celeryconfig"
    if not named and importlib.util.find_spec(name) is None:
        return None
    try:
        return importlib.import_module(name)
    except Exception as error:
        origin = "CELERY_CONFIG_MODULE" if named else str(Path(f"{name}.py").absolute())
        raise SchedulerError(
            f"the configuration module {name!r} ({origin}) cannot be imported: {error!r}"
        ) from error


def _import_tasks(folder: Path) -> None:
    if not _lies_in(folder, TASKS):
        return
    try:
        package = importlib.import_module(TASKS)
        for found in pkgutil.iter_modules(getattr(package, "__path__", ())):
            if not found.name.startswith("_"):  # __main__ is a program
                importlib.import_module(f"{TASKS}.{found.name}")
    except Exception as error:
        raise SchedulerError(
            f"the jobs in {folder / TASKS} cannot be imported: {error!r}. Repair or remove them."
        ) from error


def _defaults(given: Mapping[str, Any], environ: Mapping[str, str]) -> dict[str, Any]:
    """The settings that hold where neither ``celeryconfig.py`` nor Celery's own variables say otherwise."""
    url = environ.get("CELERY_BROKER_URL") or given.get("broker_url") or given.get("broker_read_url")
    if url:
        scheme = str(url).partition("://")[0]
        return {**DEFAULTS, "broker_transport_options": dict(_TRANSPORT_OPTIONS.get(scheme, {}))}
    ours = {key: value for key, value in given.items() if key.startswith(config.SETTING_PREFIX)}
    home = config.load(ours, NAME, environ).home
    return {**DEFAULTS, **embedded_broker(home), "result_backend": embedded_result_backend(home)}


def _at_start(sender: Any, **_: Any) -> None:
    if sender.app in _set_up:
        make_folders(sender.app)


signals.worker_init.connect(_at_start, weak=False)
signals.beat_init.connect(_at_start, weak=False)


def __getattr__(name: str) -> Any:
    """``celery -A celery_sched.app`` finds the stand-alone app too."""
    if name == "app":
        return standalone()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
