"""pytest-celery's own fixtures over our nodes, with RabbitMQ and MariaDB beneath."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from celery import Celery
from pytest_celery import CeleryTestCluster, CeleryTestSetup, CeleryTestWorker, CeleryWorkerCluster

from celery_sched import config
from celery_sched.client import Client
from celery_sched.store import schema
from tests.e2e.launch import start
from tests.e2e.nodes import ProcessWorker, SchedulerNode, wait_until
from tests.e2e.server_nodes import ServerContainer
from tests.patient import patient
from tests.reaper import gone
from tests.servers import MariaDBServer, RabbitServer

PATIENCE = 30.0


@pytest.fixture(params=["celery_rabbitmq_broker"])
def celery_broker(request: pytest.FixtureRequest) -> Iterator[Any]:
    """Only the broker that this test is about; pytest-celery would take each one it knows."""
    broker = request.getfixturevalue(request.param)
    yield broker
    broker.teardown()


@pytest.fixture
def default_rabbitmq_broker(rabbit: RabbitServer) -> ServerContainer:
    """The session's private RabbitMQ, in a virtual host of this test's own."""
    return ServerContainer(rabbit, rabbit.fresh_url())


@pytest.fixture
def celery_backend_cluster() -> None:
    """Outcomes are in the scheduler's database."""


@pytest.fixture
def shop(mariadb: MariaDBServer, tmp_path: Path) -> Iterator[tuple[dict[str, str], Client]]:
    """The project's environment and the client of its database."""
    url = mariadb.fresh_database()
    schema.upgrade(url)
    settings = {"sched_database_url": url, "sched_lease": 3, "sched_poll_interval": 0.5}
    ours = patient(config.load(settings, "shop", {}))
    yield {"E2E_SETTINGS": json.dumps(settings), "E2E_FOLDER": str(tmp_path)}, Client(ours)
    ours.close()
    mariadb.drop_database(url)


@pytest.fixture
def default_worker_env(shop: Any, celery_worker_cluster_config: dict[str, Any]) -> dict[str, str]:
    """pytest-celery's environment of a worker, and the project's settings."""
    env: dict[str, str] = ProcessWorker.initial_env(celery_worker_cluster_config, initial=dict(shop[0]))
    return env


@pytest.fixture
def default_worker_container(default_worker_env: dict[str, str], tmp_path: Path) -> Iterator[Any]:
    """A worker node's container."""
    made = start("worker", ("-c", "2"), default_worker_env, tmp_path)
    yield made
    made.teardown()


@pytest.fixture
def celery_worker_cluster(
    celery_worker: CeleryTestWorker,
    default_worker_env: dict[str, str],
    celery_setup_app: Celery,
    tmp_path: Path,
) -> Iterator[CeleryWorkerCluster]:
    """Two workers."""
    second = CeleryTestWorker(start("worker", ("-c", "2"), default_worker_env, tmp_path), celery_setup_app)
    yield CeleryWorkerCluster(celery_worker, second)
    second.teardown()


@pytest.fixture
def schedulers(default_worker_env: dict[str, str], tmp_path: Path) -> Iterator[CeleryTestCluster]:
    """Two schedulers."""
    made = [SchedulerNode(start("scheduler", (), default_worker_env, tmp_path)) for _ in range(2)]
    yield CeleryTestCluster(*made)
    for node in made:
        node.teardown()


def test_two_schedulers_two_workers_on_rabbitmq_and_mariadb(
    celery_setup: CeleryTestSetup, schedulers: CeleryTestCluster, shop: tuple[dict[str, str], Client]
) -> None:
    """A job in code every 2 s: each occurrence runs once, through the loss of a scheduler and a worker."""
    client = shop[1]
    assert celery_setup.ready(docker=True)
    assert schedulers.ready()
    # the workers answer over the broker's remote control
    wait_until(lambda: celery_setup.ready(control=True), PATIENCE, "the workers to answer")
    client.resume("ticker")
    wait_until(lambda: _succeeded(client) >= 2, PATIENCE, "two runs of the job in code")

    schedulers[0].kill()
    _between_two_runs(client)
    killed = celery_setup.worker
    assert killed is not None
    pid = killed.container.attrs["State"]["Pid"]
    killed.kill()
    assert (True, "exited", "exited") == (gone(pid), killed.container.status, schedulers[0].container.status)
    before = _succeeded(client)
    wait_until(lambda: _succeeded(client) >= before + 3, PATIENCE, "three more runs without the killed ones")
    killed.restart()
    assert killed.ready()
    assert 2 == killed.logs().count(" ready.")

    client.pause("ticker")
    wait_until(lambda: _at_rest(client), PATIENCE, "nothing to be queued or in flight")
    runs = sorted(client.runs("ticker"), key=lambda run: run.scheduled_for)
    gaps = {(b.scheduled_for - a.scheduled_for).total_seconds() for a, b in pairwise(runs)}
    assert {2.0} == gaps
    assert {"succeeded"} == {run.status for run in runs}
    folder = Path(shop[0]["E2E_FOLDER"])
    bodies = [json.loads(line) for line in (folder / "bodies").read_text().splitlines()]
    assert sorted(run.id for run in runs) == sorted(line["run"] for line in bodies if line["what"] == "start")


def _between_two_runs(client: Client) -> None:
    """Wait for a moment in which a run has just ended: who is killed now, is in no body."""
    seen = _succeeded(client)
    wait_until(lambda: _succeeded(client) > seen and _at_rest(client), PATIENCE, "a run to end")


def _at_rest(client: Client) -> bool:
    status = client.status()
    return status.queued == status.inflight == 0


def _succeeded(client: Client) -> int:
    return len(client.runs("ticker", status="succeeded"))
