"""One deployment under measurement: database, broker, schedulers, workers, and what their bodies noted."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Literal

import psutil
from celery import Celery
from pytest_celery import CeleryTestCluster, CeleryTestWorker, CeleryWorkerCluster

from celery_sched import config
from celery_sched.client import Client
from celery_sched.model import Run
from celery_sched.store import schema
from celery_sched.transport import embedded_broker, embedded_result_backend, ensure_folders
from tests.e2e.nodes import NodeFailed, SchedulerNode, wait_until
from tests.e2e.scale import Scale
from tests.patient import patient
from tests.private_server import Server
from tests.servers import RedisServer

Kind = Literal["postgres", "embedded"]
Start = Callable[..., Any]
"""(role, arguments, env, folder) -> a started container: `tests.e2e.launch`."""
MakeSite = Callable[..., "Site"]
"""(kind, start=...) -> a new deployment: the fixture `make_site`."""


@dataclass(frozen=True)
class Body:
    """One line of a body: it began, or it ended."""

    what: str
    job: str
    run: str
    attempt: int
    scheduled_for: datetime
    at: datetime
    pid: int
    children: Sequence[int]

    @property
    def late(self) -> float:
        """Seconds after its occurrence."""
        return (self.at - self.scheduled_for).total_seconds()


class Site:
    """A deployment of the project in ``tests/e2e/app``. Ended, with all its processes, by :meth:`close`."""

    def __init__(
        self,
        kind: Kind,
        folder: Path,
        scale: Scale,
        start: Start,
        database: Server | None = None,
        **settings: Any,
    ) -> None:
        """Migrate a new database; start a broker where the kind has one.

        :param database: where ``kind`` is postgres; a new database is made there.
        :param settings: Celery settings beside those that ``kind`` and ``scale`` give.
        """
        self.kind, self.folder, self.scale, self._start = kind, folder, scale, start
        self.database = database
        folder.mkdir(parents=True, exist_ok=True)
        self.redis: RedisServer | None = None
        self.nodes: list[Any] = []
        self.settings: dict[str, Any] = {
            "sched_home": str(folder),
            "sched_lease": scale.lease,
            "sched_poll_interval": scale.poll,
            **(self._embedded() if kind == "embedded" else self._servers()),
            **settings,
        }
        self.runtime = patient(
            config.load({k: v for k, v in self.settings.items() if k.startswith("sched_")}, "shop", {})
        )
        schema.upgrade(self.runtime.config.database_url)
        self.client = Client(self.runtime)
        # in our own process only for the interface of pytest-celery's worker nodes
        self._app = Celery("shop", set_as_current=False)

    def _embedded(self) -> dict[str, Any]:
        ensure_folders(self.folder)
        return {
            "sched_database_url": f"sqlite:///{self.folder / 'sched.sqlite3'}",
            "result_backend": embedded_result_backend(self.folder),
            **embedded_broker(self.folder),
        }

    def _servers(self) -> dict[str, Any]:
        """PostgreSQL, and a Redis of our own: measurements stop it."""
        assert self.database is not None
        self.redis = RedisServer(persist=True)
        self.redis.start()
        return {
            "sched_database_url": self.database.fresh_database(),  # type: ignore[attr-defined]
            **self.redis_settings(self.redis.port),
        }

    def redis_settings(self, port: int) -> dict[str, Any]:
        """Settings for a Redis at that port: bounded calls, as the stand-alone app has them."""
        return {
            "broker_url": f"redis://127.0.0.1:{port}/0",
            "result_backend": f"redis://127.0.0.1:{port}/1",
            "sched_redis_url": f"redis://127.0.0.1:{port}/2",
            "broker_transport_options": {
                "socket_timeout": 2.0,
                "socket_connect_timeout": 2.0,
                "socket_keepalive": True,
                "health_check_interval": max(1, int(self.scale.lease / 3)),
            },
        }

    # -- nodes -------------------------------------------------------------------------------------

    def scheduler(self, *, env: Mapping[str, str] | None = None, **settings: Any) -> SchedulerNode:
        """Start one scheduler; ``settings`` and environment are its own."""
        node: SchedulerNode = self.schedulers(1, env=env, **settings)[0]
        return node

    def schedulers(
        self, count: int, *, env: Mapping[str, str] | None = None, **settings: Any
    ) -> CeleryTestCluster:
        """Start schedulers side by side."""
        made = [SchedulerNode(self._launch("scheduler", (), settings, env)) for _ in range(count)]
        return self._ready(CeleryTestCluster(*made))

    def worker(
        self, *arguments: str, env: Mapping[str, str] | None = None, **settings: Any
    ) -> CeleryTestWorker:
        """Start one worker with these arguments of ``celery worker``."""
        made = CeleryTestWorker(self._launch("worker", arguments, settings, env), self._app)
        return self._ready(CeleryWorkerCluster(made))[0]

    def _launch(
        self, role: str, arguments: Sequence[str], settings: dict[str, Any], own: Mapping[str, str] | None
    ) -> Any:
        env = {
            "E2E_SETTINGS": json.dumps({**self.settings, **settings}),
            "E2E_FOLDER": str(self.folder),
            **(own or {}),
        }
        container = self._start(role, arguments, env, self.folder)
        self.nodes.append(container)
        return container

    def _ready(self, cluster: CeleryTestCluster) -> CeleryTestCluster:
        assert cluster.ready()
        return cluster

    # -- what was noted ----------------------------------------------------------------------------

    def bodies(self, job: str | None = None, what: str = "start") -> list[Body]:
        """What bodies noted, in order; ``what``: start or end."""
        file = self.folder / "bodies"
        lines = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
        return [
            Body(
                line["what"],
                line["job"],
                line["run"],
                line["attempt"],
                datetime.fromisoformat(line["scheduled_for"]).astimezone(UTC),
                datetime.fromtimestamp(line["at"], UTC),
                line["pid"],
                line.get("children", ()),
            )
            for line in lines
            if line["what"] == what and job in (None, line["job"])
        ]

    def runs(self, job: str) -> list[Run]:
        """All its runs, oldest first."""
        return sorted(self.client.runs(job, limit=100_000), key=lambda run: run.scheduled_for)

    def now(self) -> datetime:
        """The database's time."""
        return self.runtime.database.read(lambda tx, now: now)

    # -- waiting -----------------------------------------------------------------------------------

    def wait(
        self, condition: Callable[[], object], seconds: float, what: str, *, every: float = 0.05
    ) -> float:
        """Wait for something with a deadline; the seconds it took. Fails with all that can be seen."""
        began = time.monotonic()
        wait_until(condition, seconds, lambda: f"{what}\n{self.report()}", every=every)
        return time.monotonic() - began

    def let_pass(self, seconds: float) -> None:
        """Let a window pass, in which the deployment works; its nodes must live through it."""
        until = time.monotonic() + seconds
        wait_until(lambda: time.monotonic() >= until, seconds + 60, "the window to pass")

    def wait_for_runs(self, job: str, status: str, count: int, seconds: float) -> float:
        """Until ``job`` has at least so many runs of that status."""
        return self.wait(
            lambda: sum(run.status == status for run in self.runs(job)) >= count,
            seconds,
            f"{count} run(s) of {job!r} to be {status}",
        )

    def wait_until_empty(self, seconds: float) -> float:
        """Until nothing is queued or in flight, in the database and in Redis."""

        def empty() -> bool:
            status = self.client.status()
            return status.queued == status.inflight == 0 and not self.runtime.slots.members("default")

        return self.wait(empty, seconds, "nothing to be queued or in flight, in the database and in Redis")

    def stop_planning(self) -> None:
        """Pause every job."""
        for job in self.client.list("active"):
            self.client.pause(job.name, "the measurement is over")

    def report(self) -> str:
        """Runs, totals and the ends of the logs."""
        lines = [
            f"{run.scheduled_for:%H:%M:%S.%f} {run.job} {run.status} attempt={run.attempt} "
            f"dispatched={_time(run.dispatched_at)} received={_time(run.received_at)} "
            f"started={_time(run.started_at)} finished={_time(run.finished_at)} {run.reason or ''}"
            for run in self.client.runs(limit=40)
        ]
        logs = [f"--- {node.name} ({node.status})\n{node.logs()[-3000:]}" for node in self.nodes]
        return "\n".join([*lines, str(self.client.status()), *logs])

    def close(self) -> None:
        """End everything and forget the database."""
        for node in self.nodes:
            node.teardown()
        self.runtime.close()
        self._app.close()
        if self.redis is not None:
            self.redis.destroy()
        if self.kind == "postgres" and self.database is not None:
            self.database.drop_database(self.settings["sched_database_url"])  # type: ignore[attr-defined]
        shutil.rmtree(self.folder, ignore_errors=True)


def main_process(body: Body) -> psutil.Process:
    """The worker's main process, of which the body's process is a child."""
    parent = psutil.Process(body.pid).parent()
    if parent is None:
        raise NodeFailed(f"the process {body.pid} of run {body.run} has no parent")
    return parent


def seconds(span: float) -> timedelta:
    return timedelta(seconds=span)


def _time(instant: datetime | None) -> str:
    return "-" if instant is None else f"{instant:%H:%M:%S.%f}"
