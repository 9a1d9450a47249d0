"""Starts workers and schedulers: local processes, or containers where a Docker engine runs.

Databases and brokers are the tests' private servers either way: the containers share the network and the
process numbers of this machine, so that one test body serves both.
"""

from __future__ import annotations

import functools
import os
import subprocess
import sys
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pytest_celery import CeleryWorkerContainer

from tests.e2e.nodes import PROJECT, NodeFailed, ProcessScheduler, ProcessWorker, SchedulerCommand

ROOT = Path(__file__).parents[2]
IMAGE = "celery_sched/e2e"
ENVIRONMENT = {
    "PYTHONPATH": f"{PROJECT}{os.pathsep}{ROOT}",
    "PYTHONUNBUFFERED": "1",
    "PYTHONDONTWRITEBYTECODE": "1",
}


def node_kind() -> str:
    """``docker`` where an engine answers, else ``process``; E2E_NODES decides otherwise."""
    chosen = os.environ.get("E2E_NODES", "")
    if chosen not in ("", "docker", "process"):
        raise ValueError(f"E2E_NODES={chosen!r}: 'docker', 'process' or nothing is allowed")
    return chosen or ("process" if engine() is None else "docker")


def start(role: str, arguments: Sequence[str], env: Mapping[str, str], folder: Path) -> Any:
    """A worker or scheduler of the project, of the kind that this machine has."""
    return (as_container if node_kind() == "docker" else as_process)(role, arguments, env, folder)


def as_process(role: str, arguments: Sequence[str], env: Mapping[str, str], folder: Path) -> Any:
    """A worker or scheduler of the project as a local process."""
    made: Any = ProcessWorker if role == "worker" else ProcessScheduler
    return made(made.command(*arguments), env={**env, **ENVIRONMENT}, cwd=PROJECT, folder=folder)


class OnThisMachine:
    """A container in this machine's own network: no addresses and no ports to wait for."""

    def ready(self: Any) -> bool:
        self.reload()
        if self.status == "exited":
            raise NodeFailed(f"{self.name} ended at start\n{self.logs()[-4000:]}")
        return bool(self._wait_ready())

    def teardown(self: Any) -> None:
        self._container.remove(force=True)


class ContainerWorker(OnThisMachine, CeleryWorkerContainer):  # type: ignore[misc]
    """A ``celery worker`` of the project in a container."""


class ContainerScheduler(OnThisMachine, SchedulerCommand):
    """A ``celery beat`` of the project in a container."""


def as_container(role: str, arguments: Sequence[str], env: Mapping[str, str], folder: Path) -> Any:
    """A worker or scheduler of the project in a container of the image that the Dockerfile describes."""
    made: Any = ContainerWorker if role == "worker" else ContainerScheduler
    name = uuid.uuid4().hex[:12]
    raw = _client().containers.run(
        _image(),
        [part.replace("%h", name) for part in made.command(*arguments)],
        name=f"{role}-{name}",
        environment={**env, **ENVIRONMENT},
        working_dir=str(PROJECT),
        volumes={
            str(PROJECT): {"bind": str(PROJECT), "mode": "ro"},
            str(folder): {"bind": str(folder), "mode": "rw"},
        },
        # files in the folder must be ours
        user=f"{os.getuid()}:{os.getgid()}",
        network_mode="host",
        pid_mode="host",
        detach=True,
    )
    return made(raw)


@functools.cache
def engine() -> Any:
    """A client of the Docker engine, or ``None`` where none answers."""
    # asked by another process: a client that finds no engine leaves its socket open, which warns
    asked = subprocess.run(
        [sys.executable, "-c", "import docker; docker.from_env(timeout=10).ping()"],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        check=False,
    )
    if asked.returncode != 0:
        return None
    import docker  # type: ignore[import-untyped]

    return docker.from_env()


def _client() -> Any:
    if engine() is None:
        raise RuntimeError("E2E_NODES=docker, but no Docker engine answers: start one, or E2E_NODES=process")
    return engine()


@functools.cache
def _image() -> str:
    _client().images.build(path=str(ROOT), tag=IMAGE, rm=True)
    return IMAGE
