"""Commands beside a scheduler and a worker: waiting for runs, stopping them, stopping processes."""

from __future__ import annotations

from pathlib import Path

from tests.e2e.deployment import Deployment
from tests.private_server import wait_until


def test_runs_are_waited_for_and_processes_stopped(tmp_path: Path) -> None:
    """Exit codes follow the outcome; a cancelled run ends; stopped processes leave and exit with 0."""
    deployment = Deployment(tmp_path, {"CELERY_SCHED_LEASE": "6s"})
    deployment.write_tasks()
    assert 0 == deployment.sched("migrate").code
    with (
        deployment.running("beat", "-l", "INFO") as beat,
        deployment.running("worker", "-l", "INFO") as worker,
    ):
        wait_until(lambda: deployment.sched("status").code == 0, 60, "scheduler and worker to be up")

        failed = deployment.sched("run", "failing", "--wait", "--timeout", "60s")
        assert (1, True) == (failed.code, "ValueError: as it was told" in failed.err), beat.text()
        assert " failed in " in failed.out

        late = deployment.sched("run", "sleeper", "--wait", "--timeout", "3s")
        assert (1, "") == (late.code, late.out)
        assert "it was not stopped" in late.err
        wait_until(
            lambda: deployment.rows("SELECT 1 FROM sched_run WHERE status = 'running'"), 30, "it to start"
        )
        [run] = deployment.sched("runs", "--job", "sleeper", "--json").json
        asked = deployment.sched("cancel", run["id"])
        assert (0, True) == (asked.code, "asked to stop" in asked.out)
        wait_until(
            lambda: deployment.rows("SELECT 1 FROM sched_run WHERE status = 'cancelled'"),
            20,
            "the run to end",
        )

        status = deployment.sched("status", "--json").json
        [node] = status["workers"]
        assert (worker.popen.pid, True) == (node["pid"], status["healthy"])
        stopped = deployment.sched("stop", node["id"][:8], "--wait")
        assert (0, True) == (stopped.code, "stopped" in stopped.out), stopped.err
        assert 0 == worker.popen.wait(timeout=30)

        everyone = deployment.sched("stop", "--all", "--wait", "--max-wait", "20s")
        assert 0 == everyone.code, everyone.err
        assert 0 == beat.popen.wait(timeout=30)
    assert [] == deployment.processes()


def test_a_stop_is_bounded(tmp_path: Path) -> None:
    """A worker that waits for a job of its own is named when the time is over; the job goes on."""
    deployment = Deployment(tmp_path)
    deployment.write_tasks()
    assert 0 == deployment.sched("migrate").code
    with deployment.running("beat", "-l", "INFO"), deployment.running("worker", "-l", "INFO") as worker:
        wait_until(lambda: deployment.sched("status").code == 0, 60, "scheduler and worker to be up")
        assert 0 == deployment.sched("run", "sleeper").code
        wait_until(lambda: (tmp_path / "sleeping").exists(), 60, "the job to start")
        answer = deployment.sched("stop", "--all", "--wait", "--max-wait", "6s")
        assert (1, True) == (answer.code, f"pid {worker.popen.pid}" in answer.err.partition("still there")[2])
        assert worker.popen.poll() is None
        assert [("running",)] == deployment.rows("SELECT status FROM sched_run")


def test_a_run_in_a_thread_cannot_be_killed_and_cancel_says_so(tmp_path: Path) -> None:
    """Where the pool cannot kill, the command names the worker and says what happens instead."""
    deployment = Deployment(tmp_path)
    deployment.write_tasks()
    assert 0 == deployment.sched("migrate").code
    with (
        deployment.running("beat", "-l", "INFO"),
        deployment.running("worker", "-P", "threads", "-n", "thready@here", "-l", "INFO") as worker,
    ):
        wait_until(lambda: deployment.sched("status").code == 0, 60, "scheduler and worker to be up")
        assert 0 == deployment.sched("run", "sleeper", "--args", "[30]").code, worker.text()
        wait_until(lambda: (tmp_path / "sleeping").exists(), 60, "the job to start")
        [run] = deployment.sched("runs", "--job", "sleeper", "--json").json
        asked = deployment.sched("cancel", run["id"])
        assert 0 == asked.code
        assert "worker thready@here runs it in a thread, which cannot be killed" in asked.out
