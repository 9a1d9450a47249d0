"""How commands print instants for people."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta

import pytest

from celery_sched.cli.output import local, local_and_distance

SetZone = Callable[[str], None]
WINTER = datetime(2026, 11, 30, 3, 12, 7, tzinfo=UTC)


@pytest.fixture
def set_zone(monkeypatch: pytest.MonkeyPatch) -> Iterator[SetZone]:
    """Put this machine into a time zone."""

    def to(name: str) -> None:
        monkeypatch.setenv("TZ", name)
        time.tzset()

    yield to
    monkeypatch.undo()
    time.tzset()


@pytest.mark.parametrize(
    ("zone", "shown"),
    [
        ("UTC", "2026-11-30 03:12:07 UTC"),
        ("Europe/Berlin", "2026-11-30 04:12:07 CET"),
        ("America/Sao_Paulo", "2026-11-30 00:12:07 -03"),
    ],
)
def test_a_local_time_names_its_zone(set_zone: SetZone, zone: str, shown: str) -> None:
    """Whoever reads a time beside a job's zone sees that it is one of another clock."""
    set_zone(zone)
    assert shown == local(WINTER)
    assert f"{shown} (in 3m)" == local_and_distance(WINTER, WINTER - timedelta(minutes=3))


def test_no_time_is_no_text() -> None:
    """What has not happened yet is an empty cell."""
    assert ("", "") == (local(None), local_and_distance(None, WINTER))
