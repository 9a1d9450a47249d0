"""Which of the deliveries that wait for a job go now, and how many in one run.

Pure: a subscription and the deliveries that wait go in, the runs to be made come out.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime

from celery_sched.rules.subscriptions import Deliver, Mode, Subscription


@dataclass(frozen=True)
class Pending:
    """A delivery that waits."""

    id: str
    event_id: int
    topic: str
    key: str | None
    created_at: datetime


@dataclass(frozen=True)
class Bundle:
    """The deliveries that one run carries, and those that it makes superfluous."""

    carried: tuple[Pending, ...]
    superseded: tuple[Pending, ...] = ()


@dataclass(frozen=True)
class Gathering:
    """The runs to be made now; what is ``unwanted`` (of no topic of the job any more) or ``superseded``."""

    bundles: tuple[Bundle, ...] = ()
    unwanted: tuple[Pending, ...] = ()
    superseded: tuple[Pending, ...] = ()
    """By later ones that wait themselves."""


def gather(
    subscription: Subscription, pending: Sequence[Pending], now: datetime, room: int, *, cut: bool = False
) -> Gathering:
    """Which deliveries go now, in at most ``room`` runs, the oldest first.

    :param pending: those that wait, by event.
    :param cut: there are more that are not among ``pending``, all of them later.
    """
    wanted = [one for one in pending if subscription.place(one.topic) is not None]
    unwanted = tuple(one for one in pending if subscription.place(one.topic) is None)
    superseded: tuple[Pending, ...] = ()
    if subscription.mode is Mode.ALL:
        found = _together(subscription, wanted)
    elif subscription.deliver is Deliver.EACH:
        found = (Bundle((one,)) for one in wanted)
    elif subscription.deliver is Deliver.BATCH:
        found = _batches(subscription, wanted, now, cut)
    elif cut:  # the latest may be beyond: only what is certain
        found = iter(())
        superseded = tuple(one for bundle in _latest(wanted) for one in bundle.superseded)
    else:
        found = _quiet(subscription, wanted, now)
    bundles = tuple(bundle for bundle, _ in zip(found, range(max(0, room)), strict=False))
    return Gathering(bundles, unwanted, superseded)


def _by_key(pending: Iterable[Pending]) -> list[list[Pending]]:
    """The deliveries of each key, the keys in the order of their oldest."""
    found: dict[str | None, list[Pending]] = {}
    for one in pending:
        found.setdefault(one.key, []).append(one)
    return list(found.values())


def _latest(pending: Iterable[Pending]) -> Iterator[Bundle]:
    for of_key in _by_key(pending):
        yield Bundle((of_key[-1],), tuple(of_key[:-1]))


def _is_ready(subscription: Subscription, pending: Sequence[Pending], now: datetime) -> bool:
    """Whether these need not wait for more: it was quiet, or the oldest has waited long enough."""
    times = [one.created_at for one in pending]
    if subscription.debounce is not None and now - max(times) >= subscription.debounce:
        return True
    return subscription.within is not None and now - min(times) >= subscription.within


def _quiet(subscription: Subscription, pending: Iterable[Pending], now: datetime) -> Iterator[Bundle]:
    for bundle in _latest(pending):
        if subscription.debounce is None or _is_ready(
            subscription, [*bundle.superseded, *bundle.carried], now
        ):
            yield bundle


def _batches(
    subscription: Subscription, pending: Sequence[Pending], now: datetime, cut: bool
) -> Iterator[Bundle]:
    for start in range(0, len(pending), subscription.size):
        part = pending[start : start + subscription.size]
        if len(part) == subscription.size or (not cut and _is_ready(subscription, part, now)):
            yield Bundle(tuple(part))


def _together(subscription: Subscription, pending: Iterable[Pending]) -> Iterator[Bundle]:
    """One delivery of every topic, of the same key: the oldest of each, or the latest and no others."""
    for of_key in _by_key(pending):
        lanes: list[list[Pending]] = [[] for _ in subscription.topics]
        for one in of_key:
            place = subscription.place(one.topic)
            assert place is not None
            lanes[place].append(one)
        if subscription.deliver is Deliver.LATEST:
            if all(lanes):
                older = sorted((one for lane in lanes for one in lane[:-1]), key=lambda one: one.event_id)
                yield Bundle(tuple(lane[-1] for lane in lanes), tuple(older))
            continue
        for together in zip(*lanes, strict=False):
            yield Bundle(together)
