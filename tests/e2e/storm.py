"""Measurement 11: runs by the thousand while workers, schedulers and Redis are killed; no slot is lost."""

from __future__ import annotations

import random
import re
import shutil
import time
from collections import Counter
from collections.abc import Callable
from datetime import datetime
from typing import Any

import redis
from sqlalchemy import func, select

from celery_sched import config, runtime
from celery_sched.client import Client
from celery_sched.inflight import GRACE
from celery_sched.model import JobId, RunId
from celery_sched.rules.transitions import ACTIVE, TERMINAL
from celery_sched.steps.manual import manual
from celery_sched.store import jobs
from celery_sched.store.tables import run as run_table
from tests import invariants
from tests.e2e.accounted import SECOND, each_once
from tests.e2e.measurements import Figures
from tests.e2e.site import Site

CAP, NARROW = 12, 2
URLS = ("sched_database_url", "sched_redis_url", "sched_home")
BULK = 8
"""Jobs whose runs are asked for by hand: the end of a run locks its job's row, so one would be slow."""
AHEAD = 60
"""Runs that wait or run at a time."""
SETTINGS: dict[str, Any] = {
    "sched_max_concurrent_jobs": CAP,
    "sched_lease": 6,
    "sched_poll_interval": 0.5,
    # a Redis that comes back empty has lost what was published: it is published again after so long
    "sched_start_timeout": 6,
    "sched_max_runtime": 30,
}
RECONCILES = 6
"""Polls at rest that must find nothing to put right."""
SETTLED = 180.0
"""Seconds in which what was under way must have ended, one way or another, once nobody is killed any more."""
JOBS: dict[str, dict[str, Any]] = {
    "tick-0": {"task": "jobs.fast", "overlap": "concurrent", "misfire": "all"},
    "tick-1": {"task": "jobs.fast", "overlap": "concurrent", "misfire": "all", "requeue": True},
    "slow": {"task": "jobs.sleep", "args": [0.5], "overlap": "concurrent"},
    "flaky": {"task": "jobs.fails_first", "overlap": "concurrent", "retries": 2, "retry_delay": 0.5},
    "alone": {"task": "jobs.sleep", "args": [0.5], "overlap": "skip"},
    "in turn": {"task": "jobs.sleep", "args": [0.5], "overlap": "queue", "max_queued": 10},
    "narrow": {"task": "jobs.sleep", "args": [0.5], "overlap": "concurrent", "pool": "narrow"},
}
"""Each of them once a second."""


class Storm:
    """Two schedulers, three workers, and somebody who kills them and their Redis, one after the other."""

    def __init__(self, site: Site, seed: int) -> None:
        assert site.redis is not None
        self.site, self.redis, self.dice = site, site.redis, random.Random(seed)
        # ours waits for a busy machine and for rows that are locked for longer than a scheduler would
        patient = {"sched_lease": 60, **{name: site.settings[name] for name in URLS}}
        self.runtime = runtime.make(config.load(patient, site.runtime.config.app, {}))
        self.client = Client(self.runtime)
        self.kills: Counter[str] = Counter()
        self.most = 0
        self.client.create_pool("narrow", NARROW)
        for name, policies in JOBS.items():
            self.client.add(name, schedule="* * * * * *", **policies)
        self._bulk: list[JobId] = []
        for number in range(BULK):
            task = {"task": "jobs.sleep", "args": [0.5]} if number == 0 else {"task": "jobs.fast"}
            added = self.client.add(f"bulk-{number}", schedule="none", overlap="concurrent", **task)
            self._bulk.append(added.id)
        self._schedulers = [node.container for node in site.schedulers(2, **SETTINGS)]
        self._workers = [site.worker("-c", "3", **SETTINGS).container for _ in range(3)]

    def rage(self, count: int, calm: float) -> None:
        """Kill something every ``calm`` seconds until so many runs have ended, and each kind was killed."""
        kinds: list[tuple[str, Callable[[], None], int]] = [
            ("worker", lambda: self._kill(self._workers), 4),
            ("scheduler", lambda: self._kill(self._schedulers), 3),
            ("redis", self._kill_redis, 1),
            ("redis, empty", self._kill_and_empty, 1),
            ("counters flushed", self._flush_counters, 1),
        ]
        deck = [(name, act) for name, act, _ in kinds]
        self.dice.shuffle(deck)
        at = time.monotonic() + calm
        patience = time.monotonic() + 60 + count / 5

        def goes_on() -> bool:
            nonlocal at, deck
            self._heal()
            self._feed(count)
            self.most = max(self.most, self.client.status().inflight)
            if time.monotonic() >= at:
                if not deck:  # all of them, in any order
                    deck = [(name, act) for name, act, weight in kinds for _ in range(weight)]
                    self.dice.shuffle(deck)
                name, act = deck.pop()
                act()
                self.kills[name] += 1
                at = time.monotonic() + calm * self.dice.uniform(0.5, 1.5)
            return self.ended() >= count and len(self.kills) == len(kinds)

        self.site.wait(goes_on, patience - time.monotonic(), f"{count} runs to end", every=0.2)

    def settle(self) -> float:
        """Kill nobody any more, plan nothing, and wait until nothing is under way; the seconds it took."""
        self._heal()
        for job in self.client.list("active"):
            self.client.pause(job.name, "the storm is over")
        return self.site.wait(lambda: not self._count(ACTIVE), SETTLED, "what was under way to end")

    def ended(self) -> int:
        return self._count(TERMINAL)

    def outcomes(self) -> dict[str, int]:
        """How many runs have each status."""
        query = select(run_table.c.status, func.count()).group_by(run_table.c.status)
        rows = self.runtime.database.read(lambda tx, now: tx.execute(query).all())
        return {row.status: int(row[1]) for row in sorted(rows)}

    def left_in_redis(self) -> dict[str, int]:
        """What is left of any set of slots and any grant, by key; the marks of rebuilt sets apart."""
        with redis.Redis.from_url(self.site.settings["sched_redis_url"], decode_responses=True) as found:
            size = {"zset": found.zcard, "hash": found.hlen, "set": found.scard, "list": found.llen}
            keys = [key for key in found.scan_iter("*") if not key.endswith(":rebuilt")]
            return {key: int(size[found.type(key)](key)) for key in keys}

    def corrected(self) -> int:
        """Members of Redis' sets that schedulers had to put right, by what they logged."""
        logs = "".join(node.logs() for node in self._schedulers)
        return sum(int(number) for number in re.findall(r" drift=(\d+)", logs))

    def _count(self, statuses: Any) -> int:
        query = select(func.count()).where(run_table.c.status.in_([one.value for one in statuses]))
        return int(self.runtime.database.read(lambda tx, now: tx.execute(query).scalar_one()))

    def _feed(self, count: int) -> None:
        """Ask for runs by hand, so that always some wait."""
        wanted = min(AHEAD - self._count(ACTIVE), count - self.ended())

        def work(tx: Any, now: datetime) -> list[RunId]:
            rows = jobs.lock(tx, self._bulk)
            return [
                manual(tx, now, rows[self._bulk[number % BULK]], None, None)
                for number in range(max(0, wanted))
            ]

        self.runtime.database.run(work)

    def _kill(self, nodes: list[Any]) -> None:
        """With all its children. It may not even have started."""
        self.dice.choice(nodes).kill("SIGKILL")

    def _kill_redis(self) -> None:
        """It is back after a while."""
        self.redis.kill()
        self.site.let_pass(self.dice.uniform(0, 2))

    def _kill_and_empty(self) -> None:
        self._kill_redis()
        shutil.rmtree(self.redis.folder / "appendonlydir")

    def _flush_counters(self) -> None:
        with redis.Redis.from_url(self.site.settings["sched_redis_url"]) as connection:
            connection.flushdb()

    def _heal(self) -> None:
        """What was killed starts again, the next time it is looked at."""
        self.redis.heal()
        for node in [*self._schedulers, *self._workers]:
            if node.status == "exited":
                node.start()


def no_slot_is_lost(site: Site, seed: int = 4) -> Figures:
    """Thousands of short runs, random kills: in the end nothing is in flight, in Redis and the database."""
    storm = Storm(site, seed)
    try:
        return _measured(storm)
    finally:
        storm.runtime.close()


def _measured(storm: Storm) -> Figures:
    site = storm.site
    began = time.monotonic()
    storm.rage(site.scale.storm, site.scale.calm)
    raged = time.monotonic() - began
    settled = storm.settle()
    # a grant that was never claimed is kept for so long; then each reconcile finds nothing to put right
    limit = GRACE + 3 * SETTINGS["sched_lease"] + site.scale.patience
    site.wait(
        lambda: not storm.left_in_redis(), limit, f"nothing to be left in Redis {storm.left_in_redis()}"
    )
    put_right = storm.corrected()
    site.let_pass(RECONCILES * SETTINGS["sched_poll_interval"])
    figures: Figures = {
        "runs ended": storm.ended(),
        "by outcome": storm.outcomes(),
        "kills": dict(storm.kills),
        "runs a second": round(storm.ended() / raged, 1),
        "at rest after (s)": round(settled, 1),
        "most in flight": storm.most,
        "drift put right": put_right,
        "drift at rest": storm.corrected() - put_right,
        "left in Redis": storm.left_in_redis(),
        "in flight": storm.client.status().inflight,
    }
    assert ({}, 0, 0) == (figures["left in Redis"], figures["in flight"], figures["drift at rest"]), figures
    assert 0 == storm.runtime.slots.members("default") == storm.runtime.slots.members("narrow")
    invariants.check(storm.runtime.database, redis_url=site.settings["sched_redis_url"])
    for name in JOBS:
        each_once(storm.runtime, name, SECOND)
    begun = Counter((body.run, body.attempt) for body in site.bodies())
    assert [] == [key for key, times in begun.items() if times > 1], "an attempt began twice"
    unknown = {status for status in figures["by outcome"] if status not in TERMINAL}
    assert set() == unknown, figures
    assert figures["runs ended"] >= site.scale.storm, figures
    return figures
