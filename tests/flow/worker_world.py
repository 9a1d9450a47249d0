"""A real database, a real broker, real workers; what a scheduler would do, the test does step by step."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import psutil
from celery import Celery

from celery_sched import config
from celery_sched.model import Dispatch, JobDefinition, NodeKind, Overlap, Run, RunId, Source
from celery_sched.rules.fitting import Candidate
from celery_sched.steps.claim import claim
from celery_sched.steps.define import create
from celery_sched.steps.manual import manual
from celery_sched.steps.mark import mark_published
from celery_sched.steps.publish import Publisher
from celery_sched.steps.sweep import sweep
from celery_sched.store import apps, jobs, nodes, pools, runs, schema
from celery_sched.store.tables import run as run_table
from celery_sched.transport import embedded_broker, ensure_folders
from tests.patient import patient
from tests.private_server import wait_until
from tests.reaper import REAPER, end_tree

PATIENCE = 30.0
"""Seconds after which something that should have happened has not."""
ROOT = Path(__file__).parents[2]


class Worker:
    """A `celery worker` of `tests.flow.worker_app`."""

    def __init__(self, world: World, arguments: Sequence[str], setup: str) -> None:
        self.log = world.folder / f"worker-{uuid.uuid4().hex[:6]}.log"
        self.name = f"w{uuid.uuid4().hex[:6]}@test"
        environment = {
            **os.environ,
            "FLOW_SETTINGS": json.dumps(world.settings),
            "FLOW_FOLDER": str(world.folder),
            "FLOW_SETUP": setup,
            "C_FORCE_ROOT": "1",  # the tests may run as root, also with pickle
        }
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [
                    *(sys.executable, "-m", "celery", "-A", "tests.flow.worker_app", "worker"),
                    *("-n", self.name, "-l", "INFO", "--without-mingle", "--without-gossip", *arguments),
                ],
                cwd=ROOT,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        REAPER.watch(self.process.pid)

    def wait_for_log(self, text: str, timeout: float = PATIENCE) -> None:
        """Wait until the log has that text."""

        def there() -> bool:
            if self.process.poll() is not None and text not in self.text():
                code = self.process.returncode
                raise AssertionError(f"the worker ended with {code}\n{self.text()[-3000:]}")
            return text in self.text()

        try:
            wait_until(there, timeout, f"the worker to log {text!r}")
        except TimeoutError as error:
            raise TimeoutError(f"{error}\n{self.text()[-3000:]}") from None

    def text(self) -> str:
        return self.log.read_text(errors="replace")

    def stop(self, with_signal: int = signal.SIGTERM, timeout: float = PATIENCE) -> int:
        """Ask it to end; return its exit code."""
        if self.process.poll() is None:
            self.process.send_signal(with_signal)
        return self.process.wait(timeout)

    def children(self) -> list[psutil.Process]:
        return psutil.Process(self.process.pid).children()

    def end(self) -> None:
        """Whatever it does: gone afterwards."""
        if self.process.poll() is None:
            end_tree(psutil.Process(self.process.pid))
        self.process.wait(10)
        REAPER.forget(self.process.pid)


class World:
    """One app's database and broker."""

    def __init__(self, folder: Path, database_url: str, broker: dict[str, Any], **settings: Any) -> None:
        self.folder = folder
        self.settings = {
            **broker,
            "result_backend": f"file://{folder / 'results'}",
            "sched_database_url": database_url,
            "sched_home": str(folder),
            "sched_lease": 6,
            "sched_poll_interval": 0.5,
            "task_acks_late": True,
            "worker_prefetch_multiplier": 1,
            "worker_cancel_long_running_tasks_on_connection_loss": False,
            "worker_proc_alive_timeout": 30,
            "broker_connection_retry_on_startup": True,
            **settings,
        }
        (folder / "results").mkdir()
        self.app = Celery("flow", set_as_current=False)
        self.app.conf.update(self.settings)
        self.runtime = patient(config.load(self.app.conf, self.app.main))
        self.config, self.database = self.runtime.config, self.runtime.database
        schema.upgrade(database_url)
        self.database.run(lambda tx, now: apps.ensure(tx, self.config.app))
        self.database.run(lambda tx, now: pools.ensure(tx, self.config.app, "default", 100))
        self.publisher = Publisher(self.app)
        self.workers: list[Worker] = []

    def worker(self, *arguments: str, setup: str = "early") -> Worker:
        """Start a worker and wait until it is ready and registered."""
        worker = Worker(self, arguments or ("-c", "2"), setup)
        self.workers.append(worker)
        worker.wait_for_log(" ready.")
        wait_until(lambda: worker.name in self.node_names(), PATIENCE, "the worker to register")
        return worker

    def node_names(self) -> list[str]:
        found = self.database.read(lambda tx, now: nodes.every(tx, self.config.app))
        return [node.name for node in found if node.kind is NodeKind.WORKER]

    def claim(self, task: str, *args: Any, name: str | None = None, **options: Any) -> Dispatch:
        """A claimed run of a new job; ``task`` may be a name of `worker_app` or a full name."""
        full = task if "." in task else f"tests.flow.worker_app.{task}"
        definition = JobDefinition(
            name or f"job-{uuid.uuid4()}", full, "every 1h", args=args, overlap=Overlap.SKIP, **options
        )

        def work(tx: Any, now: datetime) -> Dispatch:
            job_id = create(tx, now, self.config, definition, Source.OPERATOR)
            row = jobs.lock(tx, [job_id])[job_id]
            run_id = manual(tx, now, row, None, None)
            made = claim(tx, now, self.config, {"default": [Candidate(run_id, job_id)]}, count_slots=True)
            return made.dispatches[0]

        return self.database.run(work)

    def publish(self, dispatch: Dispatch, *, mark: bool = True) -> None:
        """Send its message."""
        assert self.publisher.connect() is None
        done = self.publisher.publish([dispatch])
        assert (dispatch,) == done.sent, done
        if mark:
            self.database.run(lambda tx, now: mark_published(tx, now, self.config, [dispatch]))

    def run(self, task: str, *args: Any, **options: Any) -> RunId:
        """A run whose message is on its way."""
        dispatch = self.claim(task, *args, **options)
        self.publish(dispatch)
        return dispatch.key.id

    def sweep(self) -> None:
        """What a scheduler's next pass would settle, and publish again."""
        for dispatch in self.database.run(lambda tx, now: sweep(tx, now, self.config)).republish:
            self.publish(dispatch)

    def row(self, run_id: RunId) -> Any:
        return self.database.read(lambda tx, now: runs.find(tx, [run_id]))[run_id]

    def status(self, run_id: RunId) -> str:
        return str(self.row(run_id).status)

    def wait(self, run_id: RunId, *statuses: str, timeout: float = PATIENCE) -> Run:
        """Wait until the run has one of these statuses (default: any terminal one)."""
        wanted = statuses or ("succeeded", "failed", "timed_out", "lost", "cancelled", "skipped")
        try:
            wait_until(lambda: self.status(run_id) in wanted, timeout, f"run {run_id} to be {wanted}")
        except TimeoutError as error:
            logs = "\n".join(worker.text()[-3000:] for worker in self.workers)
            raise TimeoutError(f"{error}, it is {self.status(run_id)}\n{logs}") from None
        return runs.from_row(self.row(run_id))

    def update(self, run_id: RunId, **columns: Any) -> None:
        """Write columns of a run behind everybody's back."""
        self.database.run(
            lambda tx, now: tx.execute(run_table.update().where(run_table.c.id == run_id).values(**columns))
        )

    def marks(self) -> list[str]:
        """What bodies have begun, in order."""
        file = self.folder / "marks"
        return [line.split()[0] for line in file.read_text().splitlines()] if file.exists() else []

    def pids(self) -> list[int]:
        """The processes in which bodies have begun, in order."""
        file = self.folder / "marks"
        return [int(line.split()[1]) for line in file.read_text().splitlines()] if file.exists() else []

    def late_settlers(self) -> int:
        row = self.database.read(lambda tx, now: apps.get(tx, self.config.app))
        assert row is not None
        return int(row.late_settlers)

    def close(self) -> None:
        for worker in self.workers:
            worker.end()
        self.publisher.close()
        self.runtime.close()
        self.app.close()


def file_broker(folder: Path) -> dict[str, Any]:
    """Settings for the embedded broker in a folder."""
    ensure_folders(folder)
    return dict(embedded_broker(folder))
