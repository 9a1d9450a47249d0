"""Measurements 12 and 13: slow consumers delay nobody; no event is lost while processes are killed."""

from __future__ import annotations

import json
import random
import statistics
import time
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from sqlalchemy import create_engine, func, select

from celery_sched.model import DeliveryStatus
from celery_sched.store.tables import delivery as delivery_table
from tests import invariants
from tests.e2e.measurements import EACH, Figures
from tests.e2e.site import Site, seconds

# 12 -----------------------------------------------------------------------------------------------

PAUSE = 1.0
"""Seconds between two events."""


def slow_consumers_delay_nobody(site: Site) -> Figures:
    """A schedule and a quick consumer: alone, beside slow and hung consumers, beside slow and hung jobs."""
    scale = site.scale
    site.scheduler(sched_max_concurrent_jobs=20)
    site.worker("-c", "8")
    site.client.add("fast", task="jobs.fast", schedule=f"every {scale.every}s", **EACH)
    site.client.add("quick", task="jobs.take", on="orders.*")
    site.wait(lambda: site.bodies("fast"), 60, "the first run of the fast job")
    figures: dict[str, Any] = {}
    _listen(site, "alone", figures)
    # the same events: each of them is the quick consumer's too
    site.client.add("slow", task="jobs.take_slowly", kwargs={"seconds": scale.slow}, on="orders.*")
    for number in range(3):
        site.client.add(f"hung {number}", task="jobs.take_and_hang", on="orders.*")
    site.client.publish("orders.first", 0)
    site.wait(lambda: site.bodies("hung 2"), 60, "the hung consumers to hang")
    _listen(site, "beside consumers", figures)
    behind = site.client.deliveries("slow", status="pending", limit=10_000)
    figures["waiting for the slow one"] = len(behind)
    assert len(site.client.runs("slow", limit=10_000)) <= 3 + scale.listen / scale.slow, "a queue of runs"
    for name in ("slow", "hung 0", "hung 1", "hung 2"):
        site.client.pause(name, running="cancel")
    again: dict[str, Any] = {"schedule": f"every {scale.every}s", "overlap": "skip", "run_immediately": True}
    site.client.add("slow job", task="jobs.sleep", args=[scale.slow], **again)
    for number in range(3):
        site.client.add(f"hung job {number}", task="jobs.hang", **again)
    site.wait(lambda: site.bodies("hung job 2"), 60, "the hung jobs to be running")
    _listen(site, "beside jobs", figures)
    for of in ("schedule", "delivery"):
        for which in ("worst", "median"):
            alone = figures[f"{which} {of} alone"]
            # an event waits for the next poll
            noise = 2 * scale.lateness_floor + (scale.poll if of == "delivery" else 0)
            noise += scale.hiccup if which == "worst" else 0
            for beside in ("beside consumers", "beside jobs"):
                assert figures[f"{which} {of} {beside}"] <= max(3 * alone, noise), (
                    of,
                    which,
                    beside,
                    figures,
                )
    return figures


def _listen(site: Site, when: str, figures: dict[str, Any]) -> None:
    """Publish an event a second for a window; how late occurrences and deliveries began."""
    scale, published = site.scale, []
    began = site.now()
    next_at, until = time.monotonic(), time.monotonic() + scale.listen

    def goes_on() -> bool:
        nonlocal next_at
        if time.monotonic() >= next_at and next_at < until:
            published.append(site.client.publish("orders.new", when))
            next_at += PAUSE
        return time.monotonic() >= until

    site.wait(goes_on, scale.listen + 60, "the window to pass")
    ended = began + seconds(scale.listen)
    site.wait(
        lambda: {line["event"] for line in _taken(site, "quick")} >= set(published),
        scale.lateness_floor + scale.patience,
        "the quick consumer to have every event",
    )
    site.wait(
        lambda: max(body.scheduled_for for body in site.bodies("fast")) >= ended,
        scale.every + scale.lateness_floor + scale.patience,
        "the first occurrence after the window",
    )
    occurrences = [body for body in site.bodies("fast") if began <= body.scheduled_for < ended]
    times = {line["event"]: _late(line) for line in _taken(site, "quick") if line["event"] in published}
    assert abs(len(occurrences) - scale.listen / scale.every) <= 1, (when, len(occurrences), figures)
    assert len(published) == len(times)
    for of, late in (("schedule", [body.late for body in occurrences]), ("delivery", list(times.values()))):
        figures[f"worst {of} {when}"] = max(late)
        figures[f"median {of} {when}"] = statistics.median(late)
    figures[f"events {when}"] = len(published)


def _taken(site: Site, job: str, what: str = "start") -> list[dict[str, Any]]:
    """What the bodies of a consumer noted, one line an event."""
    file = site.folder / "bodies"
    lines = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
    return [
        {**line, "event": event}
        for line in lines
        if line["what"] == what and line["job"] == job
        for event in line.get("events", ())
    ]


def _late(line: Mapping[str, Any]) -> float:
    """Seconds between publication and the beginning of the body."""
    return float(line["at"] - line["published_at"])


# 13 -----------------------------------------------------------------------------------------------

CAP = 12
SETTINGS: dict[str, Any] = {
    "sched_max_concurrent_jobs": CAP,
    "sched_lease": 6,
    "sched_poll_interval": 0.5,
    "sched_start_timeout": 6,
}
CONSUMERS: dict[str, dict[str, Any]] = {
    "each": {"task": "jobs.take", "on": "numbers", "overlap": "concurrent"},
    "batch": {
        "task": "jobs.take_batch",
        "on": {"topics": ["numbers"], "deliver": "batch", "size": 20, "within": "1s"},
    },
}
AT_ONCE = 50
AHEAD = 1000
"""Deliveries that wait, at most, before more is published."""
SETTLED = 240.0


class Killing:
    """Two schedulers and three workers that take events, and somebody who kills them."""

    def __init__(self, site: Site, seed: int) -> None:
        self.site, self.dice = site, random.Random(seed)
        for name, policies in CONSUMERS.items():
            site.client.add(name, **policies)
        self.schedulers = [node.container for node in site.schedulers(2, **SETTINGS)]
        self.workers = [site.worker("-c", "3", **SETTINGS).container for _ in range(3)]
        self.published: list[int] = []
        self.rolled_back = 0
        self.killed: dict[int, float] = {}
        """Main processes of workers -> when they were killed."""
        self.kills: Counter[str] = Counter()
        self._engine = create_engine(site.settings["sched_database_url"])

    def rage(self, count: int, calm: float) -> None:
        """Publish so many events while somebody is killed every ``calm`` seconds, each kind twice or more."""
        at = time.monotonic() + calm

        def goes_on() -> bool:
            nonlocal at
            self.heal()
            if len(self.published) < count and self.waiting() < AHEAD:
                self._publish(min(AT_ONCE, count - len(self.published)))
            if time.monotonic() >= at:
                self._kill()
                at = time.monotonic() + calm * self.dice.uniform(0.5, 1.5)
            enough = len(self.kills) == 2 and min(self.kills.values()) >= 2
            return len(self.published) >= count and enough

        self.site.wait(goes_on, 120 + count / 5, f"{count} events to be published", every=0.1)

    def heal(self) -> None:
        """What was killed starts again."""
        for node in [*self.schedulers, *self.workers]:
            if node.status == "exited":
                node.start()

    def waiting(self) -> int:
        """Deliveries that are on their way."""
        return sum(self.standing().get(status, 0) for status in ("pending", "taken"))

    def standing(self) -> dict[str, int]:
        """How many deliveries have each status."""
        query = select(delivery_table.c.status, func.count()).group_by(delivery_table.c.status)
        rows = self.site.runtime.database.read(lambda tx, now: tx.execute(query).all())
        return {row.status: int(row[1]) for row in rows}

    def close(self) -> None:
        self._engine.dispose()

    def _publish(self, count: int) -> None:
        """In a transaction of our own; every now and then it is rolled back, and tried again."""
        while True:
            with self._engine.connect() as connection:
                made = [self.site.client.publish("numbers", n, session=connection) for n in range(count)]
                if self.dice.random() < 0.1:
                    self.rolled_back += count
                    continue
                connection.commit()
            self.published += [one for one in made if one is not None]
            return

    def _kill(self) -> None:
        kind, nodes = self.dice.choice([("worker", self.workers), ("scheduler", self.schedulers)])
        node = self.dice.choice(nodes)
        if node.status == "running":
            pid = node.pid
            node.kill("SIGKILL")
            self.kills[kind] += 1
            if kind == "worker":
                self.killed[pid] = time.time()


def no_event_is_lost(site: Site, seed: int = 5) -> Figures:
    """Thousands of events, random kills: each is delivered to each job; twice only after a kill."""
    killing = Killing(site, seed)
    try:
        began = time.monotonic()
        killing.rage(site.scale.events, site.scale.calm)
        killing.heal()
        wanted = {DeliveryStatus.DELIVERED.value: len(CONSUMERS) * len(killing.published)}
        site.wait(lambda: killing.standing() == wanted, SETTLED, f"every event to be delivered: {wanted}")
        took = time.monotonic() - began
        figures: dict[str, Any] = {
            "events": len(killing.published),
            "rolled back": killing.rolled_back,
            "deliveries": killing.standing(),
            "kills": dict(killing.kills),
            "events a second": round(len(killing.published) / took, 1),
        }
        for job in CONSUMERS:
            begun, ended = _taken(site, job), _taken(site, job, "end")
            seen = Counter(line["event"] for line in begun)
            figures[f"{job}: lost"] = len(set(killing.published) - set(seen))
            figures[f"{job}: never published"] = len(set(seen) - set(killing.published))
            figures[f"{job}: begun twice"] = sum(times > 1 for times in seen.values())
            wrong = _unexplained(begun, ended, killing.killed)
            figures[f"{job}: without a kill, or at a time"] = len(wrong)
            assert (0, 0, []) == (
                figures[f"{job}: lost"],
                figures[f"{job}: never published"],
                wrong[:5],
            ), figures
        invariants.check(site.runtime.database)
        return figures
    finally:
        killing.close()


def _unexplained(
    begun: Sequence[Mapping[str, Any]], ended: Sequence[Mapping[str, Any]], killed: Mapping[int, float]
) -> list[Any]:
    """What began again though the worker that had it was not killed before."""
    by_event: dict[int, list[Mapping[str, Any]]] = defaultdict(list)
    for line in begun:
        by_event[line["event"]].append(line)
    wrong = []
    for event, lines in by_event.items():
        lines.sort(key=lambda line: line["at"])
        for first, second in pairwise(lines):
            if not first["at"] <= killed.get(first["parent"], 0.0) <= second["at"]:
                wrong.append((event, first, second))
    # nothing of a body is heard after its worker was killed
    late = [line for line in ended if line["at"] > killed.get(line["parent"], float("inf"))]
    return [*wrong, *late]
