"""Fixtures of the end-to-end tests."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.e2e.deployment import Deployment


@pytest.fixture
def deployment(tmp_path: Path) -> Deployment:
    """An empty folder: no database yet, no jobs."""
    return Deployment(tmp_path)


@pytest.fixture
def migrated(deployment: Deployment) -> Deployment:
    """A folder with a database."""
    answer = deployment.sched("migrate")
    assert 0 == answer.code, answer.err
    return deployment
