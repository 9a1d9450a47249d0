"""Worlds for the worker tests."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.flow.worker_world import World, file_broker


@pytest.fixture
def make_world(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Callable[..., World]]:
    """Makes a world: ``broker`` is ``files`` (default) or ``redis``, the database SQLite or PostgreSQL."""
    worlds: list[World] = []

    def make(*, broker: str = "files", database: str = "sqlite", **settings: Any) -> World:
        options = (
            file_broker(tmp_path)
            if broker == "files"
            else {"broker_url": request.getfixturevalue("redis_url")}
        )
        url = (
            f"sqlite:///{tmp_path / 'sched.sqlite3'}"
            if database == "sqlite"
            else request.getfixturevalue("postgresql_url")
        )
        world = World(tmp_path, url, options, **settings)
        worlds.append(world)
        return world

    yield make
    for world in worlds:
        world.close()
