"""Worlds for the worker tests, stages for those of the scheduler."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from tests.flow.stage import Stage
from tests.flow.worker_world import World, file_broker


@pytest.fixture
def make_world(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Callable[..., World]]:
    """Makes a world: ``broker`` is ``files`` (default) or ``redis``; ``database`` is ``sqlite`` (default),
    ``postgresql`` or a URL.
    """
    worlds: list[World] = []

    def url_of(database: str) -> str:
        if database == "sqlite":
            return f"sqlite:///{tmp_path / 'sched.sqlite3'}"
        return request.getfixturevalue("postgresql_url") if database == "postgresql" else database

    def make(*, broker: str = "files", database: str = "sqlite", **settings: Any) -> World:
        options = (
            file_broker(tmp_path)
            if broker == "files"
            else {"broker_url": request.getfixturevalue("redis_url")}
        )
        world = World(tmp_path, url_of(database), options, **settings)
        worlds.append(world)
        return world

    yield make
    for world in worlds:
        world.close()


@pytest.fixture
def make_stage(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Callable[..., Stage]]:
    """Makes a stage that begins at an instant; ``database`` is ``sqlite`` (default) or ``postgresql``.

    Several stages of one test share their database.
    """
    stages: list[Stage] = []

    def make(now: datetime, *, database: str = "sqlite", **settings: Any) -> Stage:
        url = (
            f"sqlite:///{tmp_path / 'sched.sqlite3'}"
            if database == "sqlite"
            else request.getfixturevalue("postgresql_url")
        )
        stages.append(Stage(tmp_path, url, now, **settings))
        return stages[-1]

    yield make
    for stage in stages:
        stage.close()
