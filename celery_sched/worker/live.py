"""Which runs a worker has: read from Celery's own record of its requests, so that none is forgotten."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from celery.worker import state

from celery_sched.model import RunId, RunKey
from celery_sched.worker import message

_state: Any = state  # celery-types does not know all of it


def live(app: Any) -> set[RunKey]:
    """The runs whose message is here, apart from those that wait for their eta."""
    for _ in range(100):
        try:
            requests = [*_state.requests.values(), *_state.reserved_requests, *_state.active_requests]
            waiting = set(_state.scheduled_requests)
            break
        except RuntimeError:  # changed by another thread while it was read
            continue
    else:
        raise RuntimeError("Celery's requests never stood still")
    keys = (
        message.key_of(request.request_dict)
        for request in requests
        if request.app is app and request not in waiting
    )
    return {key for key in keys if key is not None}


def layers(keys: Iterable[RunKey]) -> list[dict[RunId, RunKey]]:
    """The keys in groups in which no run comes twice: the answers of a renewal are by run.

    One group as a rule; two where a run's next attempt, or its next claim, is here before the last one ended.
    """
    found: list[dict[RunId, RunKey]] = []
    for key in keys:
        for layer in found:
            if key.id not in layer:
                layer[key.id] = key
                break
        else:
            found.append({key.id: key})
    return found
