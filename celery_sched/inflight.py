"""Slots: who may be in flight. Redis sorted sets, or counts from the database.

With Redis there is one sorted set a pool (member: run id; score: the end of its lease, in seconds), and a
hash of how many slots each member takes. One Lua call a tick first brings them in line with the dispatched
and running rows, which are the truth, then grants what is free, by the rule of ``rules/fitting.py``. A member
granted a moment ago, whose claim may not have committed yet, is left alone for ``GRACE`` seconds. Nothing is
granted until a marker says that the set was rebuilt since Redis was last empty, so a flush never opens the
gates.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Protocol

import redis

from celery_sched.config import Config
from celery_sched.model import RunId
from celery_sched.rules.fitting import Candidate, Held

logger = logging.getLogger("celery_sched.inflight")
GRACE = 10
"""Seconds for which a granted member is kept although no row holds it; polls claim within it, or not."""
TIMEOUT = 0.5
"""Seconds for one Redis call."""


@dataclass(frozen=True)
class Granted:
    """``runs`` may be claimed. ``count_slots``: the claim counts, under the pools' row locks, instead.

    ``drift`` is how many members had to be corrected.
    """

    runs: frozenset[RunId]
    count_slots: bool
    drift: int = 0


class Slots(Protocol):
    """Grants and frees slots."""

    def reserve(
        self,
        now: datetime,
        slots: Mapping[str, int],
        held: Collection[Held],
        wanted: Mapping[str, Sequence[Candidate]],
    ) -> Granted:
        """Ask for slots.

        :param now: the database's time.
        :param slots: pool -> its slots.
        :param held: the dispatched and running runs.
        :param wanted: pool -> runs that would be claimed, best first.
        """

    def release(self, pool: str, run_ids: Collection[RunId]) -> None:
        """Free the slots of these runs; doing it twice frees nothing more."""

    def members(self, pool: str) -> int | None:
        """How many slots are taken as this counts them; ``None`` when it does not count itself."""

    def close(self) -> None:
        """Close connections."""


class DatabaseSlots:
    """The claim itself counts rows under the pools' row locks: exact."""

    def reserve(
        self,
        now: datetime,
        slots: Mapping[str, int],
        held: Collection[Held],
        wanted: Mapping[str, Sequence[Candidate]],
    ) -> Granted:
        return Granted(frozenset(one.run_id for of_pool in wanted.values() for one in of_pool), True)

    def release(self, pool: str, run_ids: Collection[RunId]) -> None:
        """Nothing to do: the transition that ended the run freed its slot."""

    def members(self, pool: str) -> int | None:
        return None

    def close(self) -> None:
        """Nothing is open."""


# KEYS: the set, the grants (run -> when), the marker, the weights (run -> slots; a member without: 1).
# ARGV: now, grace, slots, number held, then id, score and weight of each held run, then id, weight and
# overdue (1 or 0) of each wanted one.
# Returns: drift, then the granted ids.
RESERVE = """
local now, grace, slots, held = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])
local drift, truth, at, taken = 0, {}, 5, 0
for _ = 1, held do
  local member, weight = ARGV[at], tonumber(ARGV[at + 2])
  truth[member] = true
  taken = taken + weight
  local score = redis.call('ZSCORE', KEYS[1], member)
  local known = tonumber(redis.call('HGET', KEYS[4], member) or 1)
  if not score or known ~= weight then drift = drift + 1 end
  if not score or tonumber(score) ~= tonumber(ARGV[at + 1]) then
    redis.call('ZADD', KEYS[1], ARGV[at + 1], member)
  end
  if known ~= weight then redis.call('HSET', KEYS[4], member, weight) end
  at = at + 3
end
for _, member in ipairs(redis.call('ZRANGE', KEYS[1], 0, -1)) do
  if not truth[member] then
    local granted = redis.call('HGET', KEYS[2], member)
    if not granted or now - tonumber(granted) > grace then
      redis.call('ZREM', KEYS[1], member)
      redis.call('HDEL', KEYS[2], member)
      redis.call('HDEL', KEYS[4], member)
      drift = drift + 1
    else
      taken = taken + tonumber(redis.call('HGET', KEYS[4], member) or 1)
    end
  end
end
local answer = {drift}
if redis.call('EXISTS', KEYS[3]) == 0 then
  redis.call('SET', KEYS[3], ARGV[1])
  return answer
end
local free = slots - taken
while free > 0 and at <= #ARGV do
  local member, weight, overdue = ARGV[at], tonumber(ARGV[at + 1]), ARGV[at + 2] == '1'
  at = at + 3
  if weight <= slots and not redis.call('ZSCORE', KEYS[1], member) then
    if weight <= free then
      redis.call('ZADD', KEYS[1], now + grace, member)
      redis.call('HSET', KEYS[2], member, ARGV[1])
      redis.call('HDEL', KEYS[4], member)
      if weight ~= 1 then redis.call('HSET', KEYS[4], member, weight) end
      answer[#answer + 1] = member
      free = free - weight
    elseif overdue then
      break
    end
  end
end
return answer
"""


class RedisSlots:
    """Sorted sets in Redis; while Redis cannot be reached, the database counts."""

    def __init__(self, url: str, app: str) -> None:
        self._redis = redis.Redis.from_url(
            url, socket_timeout=TIMEOUT, socket_connect_timeout=TIMEOUT, decode_responses=True
        )
        self._app = app
        self._reserve = self._redis.register_script(RESERVE)
        self._away = False

    def _keys(self, pool: str) -> list[str]:
        # one hash tag, so that the four keys lie on one node of a Redis cluster
        base = f"celery_sched:{{{self._app}:{pool}}}"
        return [f"{base}:inflight", f"{base}:granted", f"{base}:rebuilt", f"{base}:weights"]

    def reserve(
        self,
        now: datetime,
        slots: Mapping[str, int],
        held: Collection[Held],
        wanted: Mapping[str, Sequence[Candidate]],
    ) -> Granted:
        """See :class:`Slots`. Falls back to counting in the database while Redis is away."""
        granted: set[RunId] = set()
        drift = 0
        try:
            for pool, candidates in wanted.items():
                rows = [one for one in held if one.pool == pool]
                arguments: list[str | int] = [_seconds(now), GRACE, slots.get(pool, 0), len(rows)]
                for row in rows:
                    arguments += [row.run_id, _seconds(row.until), row.weight]
                for one in candidates:
                    arguments += [one.run_id, one.weight, int(one.overdue)]
                answer: Any = self._reserve(keys=self._keys(pool), args=arguments)
                drift += int(answer[0])
                granted |= {RunId(run_id) for run_id in answer[1:]}
        except redis.RedisError as error:
            self._warn(error)
            everything = frozenset(one.run_id for of_pool in wanted.values() for one in of_pool)
            return Granted(everything, count_slots=True)
        if self._away:
            logger.warning("Redis is back: in-flight counters are used again")
            self._away = False
        return Granted(frozenset(granted), count_slots=False, drift=drift)

    def release(self, pool: str, run_ids: Collection[RunId]) -> None:
        """See :class:`Slots`. A release that is lost heals at the next tick's reconcile."""
        if not run_ids:
            return
        members, grants, _, weights = self._keys(pool)
        try:
            with self._redis.pipeline(transaction=True) as pipe:
                pipe.zrem(members, *run_ids)
                pipe.hdel(grants, *run_ids)
                pipe.hdel(weights, *run_ids)
                pipe.execute()
        except redis.RedisError as error:
            self._warn(error)

    def members(self, pool: str) -> int | None:
        """See :class:`Slots`; ``None`` while Redis is away."""
        try:
            members, _, _, weights = self._keys(pool)
            with self._redis.pipeline(transaction=True) as pipe:
                pipe.zrange(members, 0, -1)
                pipe.hgetall(weights)
                found, heavy = pipe.execute()
            return sum(int(heavy.get(member, 1)) for member in found)
        except redis.RedisError as error:
            self._warn(error)
            return None

    def ping(self) -> None:
        """Raise ``redis.RedisError`` when Redis cannot be reached."""
        self._redis.ping()

    def close(self) -> None:
        self._redis.close()

    def _warn(self, error: redis.RedisError) -> None:
        if not self._away:
            logger.warning("Redis cannot be used (%s): the database counts what is in flight", error)
        self._away = True


def _seconds(instant: datetime) -> str:
    return f"{instant.timestamp():.6f}"


def make_slots(config: Config) -> Slots:
    """Redis where ``sched_redis_url`` is set, else the database."""
    return RedisSlots(config.redis_url, config.app) if config.redis_url else DatabaseSlots()
