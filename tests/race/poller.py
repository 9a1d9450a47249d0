"""A scheduler in a process of its own, turned by a line of input; for races and crashes between processes."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

from celery import Celery

from celery_sched import runtime as runtimes
from celery_sched.config import load
from celery_sched.model import NodeId, RunId
from celery_sched.steps.abandon import abandon
from celery_sched.testing import FakeClock, ManualScheduler
from tests.patient import be_patient
from tests.private_server import wait_until
from tests.reaper import REAPER
from tests.store.world import APP, PATIENCE, Bench

ROOT = Path(__file__).parents[2]


class Poller:
    """The process, as a test sees it."""

    def __init__(self, bench: Bench, *, failpoints: str = "") -> None:
        self._bench = bench
        number = len(list(bench.folder.glob("poller-*")))
        self.log = bench.folder / f"poller-{number}.log"
        self._answers = bench.folder / f"poller-{number}.out"
        self._asked = 0
        with self.log.open("wb") as log, self._answers.open("wb") as answers:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "tests.race.poller", json.dumps(bench.settings)],
                stdin=subprocess.PIPE,
                stdout=answers,
                stderr=log,
                cwd=ROOT,
                env={**os.environ, "CELERY_SCHED_FAILPOINTS": failpoints},
            )
        REAPER.watch(self.process.pid)

    def ready(self) -> None:
        """Wait until it can poll."""
        self._wait_for(1)

    def poll(self, times: int = 1) -> None:
        """Make it poll at the bench's time; :meth:`wait` waits for the end."""
        self.do(str(times))

    def do(self, what: str) -> None:
        """Make it ``cancel`` or ``retry`` a run, ``abandon`` a node, ``cancel_backfill``, ``tell``, poll."""
        self._asked += 1
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(f"{self._bench.clock.now.isoformat()} {what}\n".encode())
            self.process.stdin.flush()
        except BrokenPipeError:
            return  # it is dead: `wait` says how it ended

    def wait(self) -> int | None:
        """Wait for the end of the polls asked for; return the exit code if it died instead."""
        self._wait_for(1 + self._asked)
        return self.process.poll()

    def kill(self) -> None:
        """SIGKILL."""
        self.process.kill()
        self.process.wait(PATIENCE)

    def end(self) -> None:
        """Gone afterwards, whatever it does."""
        self.kill()
        if self.process.stdin is not None:
            try:
                self.process.stdin.close()
            except BrokenPipeError:
                self.process.stdin = None  # what was not read is of no interest
        REAPER.forget(self.process.pid)

    def _wait_for(self, lines: int) -> None:
        def there() -> bool:
            return self.process.poll() is not None or len(self._answers.read_text().splitlines()) >= lines

        try:
            wait_until(there, PATIENCE, "a poller to answer")
        except TimeoutError as error:
            raise TimeoutError(f"{error}\n{self.log.read_text()[-3000:]}") from None


def main(settings: Mapping[str, Any]) -> None:
    """Poll as often, and at the time, that each line of input says."""
    logging.basicConfig(level=logging.WARNING)
    be_patient()
    clock = FakeClock()
    app = Celery(APP, set_as_current=False)
    app.conf.update(settings)
    runtime = runtimes.make(load(app.conf, app.main), clock=clock)
    scheduler = ManualScheduler(app, clock=clock, runtime=runtime)
    print("ready", flush=True)
    for line in sys.stdin:
        instant, what, *subject = line.split()
        clock.now = datetime.fromisoformat(instant)
        if what == "cancel":
            scheduler.client.cancel(RunId(subject[0]))
        elif what == "retry":
            scheduler.client.retry(RunId(subject[0]))
        elif what == "cancel_backfill":
            scheduler.client.cancel_backfill(subject[0])
        elif what == "abandon":
            dead = [NodeId(subject[0])]
            scheduler.database.run(lambda tx, now: abandon(tx, now, scheduler.config, dead, "a test"))  # noqa: B023
        elif what == "tell":
            scheduler.tell()
        else:
            for _ in range(int(what)):
                scheduler.poll()
        print("done", flush=True)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
