"""`sched server`: everything in one terminal, and everything gone when it ends, idle or busy."""

from __future__ import annotations

import signal
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.e2e.deployment import Deployment, Process
from tests.private_server import free_port, wait_until

LONGEST_STOP = 15.0
READY = "ready: the scheduler and the worker are up"


@pytest.fixture
def deployment(tmp_path: Path) -> Deployment:
    """A folder with jobs that are quick, slow and stubborn, none of them due."""
    made = Deployment(tmp_path)
    made.write_tasks()
    return made


@contextmanager
def serving(deployment: Deployment, *arguments: str) -> Iterator[Process]:
    """A server that is up."""
    with deployment.running("sched", "server", *arguments) as server:
        server.wait_for(READY)
        yield server


def hurry(server: Process, deployment: Deployment) -> None:
    """Stop it at once, where how it stops is not what is tested."""
    server.popen.send_signal(signal.SIGINT)
    server.wait_for("stopping (once more: at once)")
    stop(server, deployment, signal.SIGINT)


def stop(server: Process, deployment: Deployment, number: signal.Signals) -> None:
    """Stop it; it must end within its time, with exit code 0, leaving no process and no run behind."""
    begun = time.monotonic()
    code = server.stop(number)
    took = time.monotonic() - begun
    assert (0, []) == (code, deployment.processes()), server.text()
    assert took < LONGEST_STOP, server.text()
    held = deployment.rows("SELECT id, status FROM sched_run WHERE status IN ('running', 'dispatched')")
    assert [] == held, server.text()
    assert [] == deployment.rows("SELECT name FROM sched_job WHERE lock_token IS NOT NULL")
    assert [] == deployment.rows("SELECT name FROM sched_node"), server.text()


def test_an_idle_server_stops(deployment: Deployment) -> None:
    """It makes the database and says so, runs a job from start to end, and stops cleanly."""
    with serving(deployment, "--no-flower") as server:
        assert "the database is at" in server.text()
        answer = deployment.sched(
            "run", "quick", "--kwargs", '{"value": 21}', "--wait", "--timeout", "60s", "--json"
        )
        assert (0, "succeeded", 42) == (answer.code, answer.json["status"], answer.json["result"]), (
            server.text()
        )
        status = deployment.sched("status")
        assert 0 == status.code, status.out
        stop(server, deployment, signal.SIGINT)
        assert "scheduler |" in server.text()
        assert "worker    |" in server.text()


def test_a_short_job_ends_before_the_server(deployment: Deployment) -> None:
    """A job that ends soon is given the time: its run succeeds."""
    with serving(deployment, "--no-flower") as server:
        assert 0 == deployment.sched("run", "sleeper", "--kwargs", '{"seconds": 2}').code
        wait_until(lambda: (deployment.folder / "sleeping").exists(), 30, "the job to start")
        stop(server, deployment, signal.SIGTERM)
        assert [("succeeded",)] == deployment.rows("SELECT status FROM sched_run")


def test_hung_jobs_do_not_hold_it_up(deployment: Deployment) -> None:
    """Hung jobs, and programs of theirs that ignore signals, are stopped; what waits behind them stays."""
    with serving(deployment, "--no-flower", "--concurrency", "2") as server:
        for name in ("stubborn", "sleeper", "sleeper", "quick"):
            assert 0 == deployment.sched("run", name).code
        for file in ("stubborn", "sleeping"):
            wait_until(lambda file=file: (deployment.folder / file).exists(), 30, f"{file} to start")
        stop(server, deployment, signal.SIGTERM)
    statuses = sorted(deployment.rows("SELECT job, status FROM sched_run"))
    expected = [
        ("quick", "queued"),
        ("sleeper", "cancelled"),
        ("sleeper", "queued"),
        ("stubborn", "cancelled"),
    ]
    assert expected == statuses
    reasons = deployment.rows("SELECT job, reason FROM sched_run WHERE status = 'cancelled' ORDER BY job")
    stopped = "stopped by sched server: the server was stopped"
    assert [True, True] == [reason.startswith(stopped) for _, reason in reasons], reasons


def test_what_waited_runs_after_the_next_start(deployment: Deployment) -> None:
    """Runs that had not started are neither lost nor stuck: the next start runs them."""
    with serving(deployment, "--no-flower", "--concurrency", "1") as server:
        assert 0 == deployment.sched("run", "sleeper").code
        wait_until(lambda: (deployment.folder / "sleeping").exists(), 30, "the job to start")
        run = deployment.sched("run", "quick", "--json").json["id"]
        wait_until(
            lambda: deployment.rows("SELECT 1 FROM sched_run WHERE job = 'quick' AND status = 'dispatched'"),
            30,
            "the second run to wait for the worker",
        )
        stop(server, deployment, signal.SIGTERM)
    with serving(deployment, "--no-flower") as server:
        wait_until(
            lambda: deployment.rows(f"SELECT 1 FROM sched_run WHERE id = '{run}' AND status = 'succeeded'"),
            60,
            "the run that waited to succeed",
        )
        hurry(server, deployment)


def test_asked_twice_it_stops_at_once(deployment: Deployment) -> None:
    """The second Ctrl-C does not wait for a job any more; what it ran is settled all the same."""
    with serving(deployment, "--no-flower") as server:
        assert 0 == deployment.sched("run", "sleeper").code
        wait_until(lambda: (deployment.folder / "sleeping").exists(), 30, "the job to start")
        hurry(server, deployment)
        assert "killed what did not end by itself" in server.text()
        assert [("cancelled",)] == deployment.rows("SELECT status FROM sched_run")


def test_one_server_a_home(deployment: Deployment) -> None:
    """A second start on the same folder is refused, names the first, and does it no harm."""
    with serving(deployment, "--no-flower") as server:
        second = deployment.sched("server", "--no-flower")
        assert (1, "") == (second.code, second.out)
        assert (f"pid {server.popen.pid}" in second.err, str(deployment.home) in second.err) == (True, True)
        assert server.popen.poll() is None
        hurry(server, deployment)


def test_a_process_that_dies_ends_the_server(deployment: Deployment) -> None:
    """When the scheduler dies by itself the server says which, stops the rest, and fails."""
    with serving(deployment, "--no-flower") as server:
        [(pid,)] = deployment.rows("SELECT pid FROM sched_node WHERE kind = 'scheduler'")
        Process.kill_pid(pid)
        assert 1 == server.popen.wait(timeout=30)
        assert "the scheduler ended by itself (signal 9)" in server.text()
        assert [] == deployment.processes()


def test_runs_of_a_worker_that_dies_are_lost(deployment: Deployment) -> None:
    """A worker that dies by itself was not stopped: its run is lost, and why is on record."""
    with serving(deployment, "--no-flower") as server:
        assert 0 == deployment.sched("run", "sleeper").code
        wait_until(lambda: (deployment.folder / "sleeping").exists(), 30, "the job to start")
        [(pid,)] = deployment.rows("SELECT pid FROM sched_node WHERE kind = 'worker'")
        Process.kill_pid(pid)
        assert 1 == server.popen.wait(timeout=30)
        found = deployment.rows("SELECT status, reason FROM sched_run")
        assert [("lost", "its worker died: signal 9")] == found, server.text()
        assert [] == deployment.processes()


def test_a_killed_server_takes_all_along(deployment: Deployment) -> None:
    """SIGKILL of the server leaves no scheduler and no worker behind."""
    with serving(deployment, "--no-flower") as server:
        server.popen.kill()
        server.popen.wait(timeout=10)
        wait_until(lambda: not deployment.processes(), 20, "all processes to be gone")


def test_stopped_while_it_starts(deployment: Deployment) -> None:
    """A signal that comes before anything is up stops it as cleanly."""
    with deployment.running("sched", "server", "--no-flower") as server:
        server.wait_for("starting; Ctrl-C stops everything")
        stop(server, deployment, signal.SIGTERM)


def test_the_dashboard_answers(deployment: Deployment) -> None:
    """Flower is where the server says, and gone after it; a given port that is taken is refused."""
    port = free_port()
    with serving(deployment, "--port", str(port)) as server:
        server.wait_for(f"dashboard: http://127.0.0.1:{port}/")
        with socket.create_connection(("127.0.0.1", port), timeout=5) as client:
            client.sendall(b"GET / HTTP/1.0\r\n\r\n")
            assert client.recv(100).startswith(b"HTTP/1.1 ")
        stop(server, deployment, signal.SIGTERM)
    with socket.create_server(("127.0.0.1", port)):
        answer = deployment.sched("server", "--port", str(port))
        assert (1, True) == (answer.code, f"port {port} is taken" in answer.err)
