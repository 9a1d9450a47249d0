"""``sched server``: a scheduler, a worker and Flower in one terminal, on one machine."""

from __future__ import annotations

import fcntl
import os
import socket
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from signal import SIGTERM
from typing import IO, TYPE_CHECKING

import click

from celery_sched.cli import Failed
from celery_sched.cli.access import app_argument, app_of, runtime_of
from celery_sched.cli.ports import HOST, PORT, answers, choose_port
from celery_sched.cli.schema import migrate
from celery_sched.cli.supervisor import Child, Supervisor
from celery_sched.errors import SchedulerError
from celery_sched.model import Node, NodeId, NodeKind
from celery_sched.rules.transitions import RunStatus
from celery_sched.steps.abandon import abandon

if TYPE_CHECKING:
    from celery_sched.client import Client
    from celery_sched.runtime import Runtime

# Seconds. Together they stay below the 15 s within which everything is gone.
SCHEDULER_STOPS = 2.5
RUNS_END = 5.0
"""What running jobs have to end by themselves."""
RUNS_ARE_STOPPED = 3.0
"""What the worker has to kill those that did not; then it is killed itself."""
WORKER_STOPS = 5.0
"""Celery's own warm shutdown takes about 7 s even where nothing runs."""

RAW = "worker.redirect_stdouts=no"
"""A Celery setting: what is printed, a traceback above all, comes as it is, not as warnings in pieces."""

MOST_RUNS = 1000
MOST_CHILDREN = 16
ACTOR = "sched server"
REASON = "the server was stopped"


@click.command("server")
@click.option(
    "--port", type=click.IntRange(1, 65535), help=f"Flower's port ({PORT}, or the next one that is free)."
)
@click.option("--no-flower", is_flag=True, help="Without the dashboard.")
@click.option("--concurrency", type=click.IntRange(1), help="Runs that the worker carries out at once.")
@click.pass_context
def server_command(ctx: click.Context, port: int | None, no_flower: bool, concurrency: int | None) -> None:
    """Start a scheduler, a worker and Flower here; Ctrl-C stops them all.

    For one machine. It makes the database and the folder of the embedded default where they are missing.
    """
    from celery_sched.app import make_folders

    app = app_argument(ctx)
    runtime = runtime_of(ctx)
    if app is None:
        raise click.UsageError("sched server needs the app's name: celery -A APP sched server", ctx)
    supervisor = Supervisor()
    lock = lock_home(runtime.config.home)
    supervisor.begin()
    try:
        supervisor.say(f"home {runtime.config.home}, database {runtime.database.shown}")
        before, after = migrate(runtime)
        make_folders(app_of(ctx))
        supervisor.say(
            f"the database is at {after}" + ("" if before == after else f" (it was {before or 'empty'})")
        )
        dashboard = None if no_flower else choose_port(supervisor, port)
        size = concurrency or min(runtime.config.max_concurrent_jobs, MOST_CHILDREN)
        if supervisor.stops:
            return
        server = Server(supervisor, runtime, app, size, dashboard)
        if not server.run():
            ctx.exit(1)
    finally:
        lock.close()


def lock_home(home: Path) -> IO[str]:
    """Keep a second server off the same folder: two would stop each other's runs."""
    home.mkdir(mode=0o700, parents=True, exist_ok=True)
    file = (home / "server.lock").open("a+")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        file.seek(0)
        pid = file.read().strip() or "unknown"
        raise Failed(
            f"a server is running on {home} already (pid {pid})."
            " Stop it, or set CELERY_SCHED_HOME to another folder."
        ) from error
    file.truncate(0)
    file.write(str(os.getpid()))
    file.flush()
    return file


@dataclass
class Server:
    """The three processes from start to end."""

    supervisor: Supervisor
    runtime: Runtime
    app: str
    concurrency: int
    port: int | None

    def run(self) -> bool:
        """Serve until asked to stop (true), or until a process dies by itself (false)."""
        supervisor = self.supervisor
        scheduler = self._start("scheduler", "beat", "-S", "sched", "-l", "INFO")
        worker = self._start(
            *("worker", "worker", "-E", "-l", "INFO", "-n", "worker@%h"),
            *("--concurrency", str(self.concurrency), "--", RAW),
        )
        if self.port is not None:
            self._start("flower", "flower", f"--address={HOST}", f"--port={self.port}")
        supervisor.say("starting; Ctrl-C stops everything")
        self._watch()
        dead = [child for child in supervisor.children if not child.alive]
        asked = bool(supervisor.stops)
        for child in () if asked else dead:
            supervisor.say(f"the {child.name} ended by itself ({ending(child)}): stopping", colour="red")
        lost = f"its worker died: {ending(worker)}" if worker in dead and not asked else None
        self._stop(scheduler, worker, lost)
        return asked

    def _start(self, name: str, *arguments: str) -> Child:
        return self.supervisor.start(name, [sys.executable, "-m", "celery", "-q", "-A", self.app, *arguments])

    def _watch(self) -> None:
        """Copy output until it is time to stop; say when the dashboard answers and all is up."""
        open_questions = {"up", "dashboard"} if self.port is not None else {"up"}
        while not self.supervisor.stops and all(child.alive for child in self.supervisor.children):
            if "dashboard" in open_questions and self.port is not None and answers(self.port):
                open_questions.remove("dashboard")
                self.supervisor.say(f"dashboard: http://{HOST}:{self.port}/", colour="green")
            if "up" in open_questions and self._is_up():
                open_questions.remove("up")
                self.supervisor.say("ready: the scheduler and the worker are up", colour="green")
            self.supervisor.pump(0.5 if open_questions else 5.0)

    def _client(self) -> Client:
        from celery_sched.client import Client

        return Client(self.runtime)

    def _is_up(self) -> bool:
        """Whether our scheduler and our worker have registered."""
        return {node.kind for node in self._own_nodes()} == {NodeKind.SCHEDULER, NodeKind.WORKER}

    def _stop(self, scheduler: Child, worker: Child, lost: str | None) -> None:
        """Stop in the order in which nothing is lost: planning, then runs, then processes.

        :param lost: why the worker's runs are lost: it died before anybody stopped it.
        """
        supervisor = self.supervisor
        begun = time.monotonic()
        asked = supervisor.stops
        supervisor.say("stopping (once more: at once)")

        def hurry() -> bool:
            return supervisor.stops > asked

        nodes = self._own_nodes()
        # The scheduler first: what it has claimed it publishes, and it claims nothing more.
        for child in supervisor.children:
            if child is not worker:
                send(child, SIGTERM)
        supervisor.wait([scheduler], SCHEDULER_STOPS, until=hurry)
        # To the main process only: a signal to the whole group left workers hung.
        send(worker, SIGTERM)
        if not supervisor.wait([worker], RUNS_END, until=hurry):
            stopped = self._stop_runs({node.name for node in nodes})
            supervisor.wait([worker], RUNS_ARE_STOPPED if stopped else WORKER_STOPS, until=hurry)
        killed = supervisor.sweep_up()
        if killed:
            supervisor.say(f"killed what did not end by itself: {', '.join(killed)}", colour="yellow")
        self._abandon([node.id for node in nodes], lost)
        supervisor.say(f"stopped, after {time.monotonic() - begun:.1f} s")

    def _own_nodes(self) -> list[Node]:
        """What our scheduler and our worker have registered as."""
        mine = {child.process.pid for child in self.supervisor.children}
        here = socket.gethostname()
        try:
            return [node for node in self._client().nodes() if node.pid in mine and node.host == here]
        except SchedulerError as error:
            self.supervisor.say(str(error), colour="red")
            return []

    def _stop_runs(self, workers: set[str]) -> int:
        """Ask the runs that still go on here to stop, for the worker to kill them; how many they are."""
        client = self._client()
        try:
            running = client.runs(status=RunStatus.RUNNING, limit=MOST_RUNS)
            mine = [run for run in running if run.worker in workers]
            for run in mine:
                self.supervisor.say(f"stopping run {run.id} of {run.job}")
                client.cancel(run.id, by=ACTOR, reason=REASON)
        except SchedulerError as error:
            self.supervisor.say(str(error), colour="red")
            return 0
        return len(mine)

    def _abandon(self, dead: list[NodeId], lost: str | None) -> None:
        """Settle what the dead processes left: nobody is carrying it out any more."""
        runtime = self.runtime
        text, status = lost, RunStatus.LOST
        if text is None:
            text, status = f"stopped by {ACTOR}: {REASON}", RunStatus.CANCELLED
        try:
            left = runtime.database.run(lambda tx, now: abandon(tx, now, runtime.config, dead, text, status))
        except SchedulerError as error:
            self.supervisor.say(f"{error}; the next scheduler settles what is left", colour="red")
            return
        for pool, run in (*left.ended, *left.queued):
            runtime.slots.release(pool, [run])
        if left.ended:
            names = ", ".join(run for _, run in left.ended)
            again = f" ({left.again} will be tried again)" if left.again else ""
            self.supervisor.say(f"{status.value} while running: {names}{again}")
        if left.queued:
            self.supervisor.say(f"{len(left.queued)} runs had not started: they wait for the next start")


def send(child: Child, number: int) -> None:
    """Send a signal to a child, not to its group."""
    if child.alive:
        child.process.send_signal(number)


def ending(child: Child) -> str:
    """How a process ended."""
    code = child.process.returncode
    return f"signal {-code}" if code < 0 else f"exit code {code}"
