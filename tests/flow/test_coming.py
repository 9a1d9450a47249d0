"""The next occurrences of a job as the command line and Flower's page show them."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from celery_sched.cli.next import coming
from celery_sched.dashboard import show
from tests.flow.stage import Stage

NOON = datetime(2026, 2, 2, 12, 0, tzinfo=UTC)
HOUR = timedelta(hours=1)


@pytest.mark.parametrize(
    ("fields", "paused", "hours", "over"),
    [
        ({"schedule": "0 * * * *"}, False, [1, 2, 3], "it is never due again."),
        ({"schedule": "0 * * * *"}, True, [1, 2, 3], "it is never due again."),
        ({"schedule": "0 * * * *", "max_runs": 2}, False, [1, 2], "it has had its 2 runs."),
        ({"schedule": "0 * * * *", "max_runs": 2}, True, [1, 2], "it has had its 2 runs."),
        ({"schedule": "0 * * * *", "end_at": NOON + HOUR}, False, [1], "it is never due again."),
        ({"schedule": "after 1h"}, False, [1], "nothing is known before its run has ended."),
        ({"schedule": "after 1h"}, True, [], "nothing is known while it is paused."),
    ],
)
def test_what_comes(
    make_stage: Callable[..., Stage], fields: dict[str, Any], paused: bool, hours: list[int], over: str
) -> None:
    """A paused job has what its schedule says; none has more than its runs, or a guess."""
    client = make_stage(NOON).client
    client.add("job", task="t", **fields)
    if paused:
        client.pause("job")
    found = coming(client.get("job"), NOON, 3)
    assert ([NOON + n * HOUR for n in hours], over) == (list(found.occurrences), found.over)


def test_a_definition_shows_what_was_set(make_stage: Callable[..., Stage]) -> None:
    """Times of a plain job are no dozen empty rows; what retries mean comes with them, calendars as typed."""
    client = make_stage(NOON).client
    client.add("plain", task="t", schedule="0 * * * *")
    names = ["task", "schedule", "timezone", "overlap", "misfire", "priority", "pool", "from"]
    assert names == [name for name, _ in show.definition(client.get("plain"))]
    client.add(
        "full",
        task="t",
        schedule="0 * * * *",
        end_at=NOON + HOUR,
        jitter="5m",
        exclude=["weekly:sat,sun", "dates:2026-12-24"],
        retries=2,
        enabled=False,
    )
    rows = dict(show.definition(client.get("full")))
    assert (
        "2026-02-02 13:00:00 UTC",
        "5m",
        "weekly:sat,sun, dates:2026-12-24",
        "2",
        "10s",
        "yes",
        "no",
    ) == tuple(
        rows[name]
        for name in ("end at", "jitter", "exclude", "retries", "retry delay", "retry jitter", "enabled")
    )
