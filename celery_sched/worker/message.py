"""What the message of a run says: the headers that publish puts on it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from celery_sched.model import RunId, RunKey, Token

RUN, TOKEN, ATTEMPT, RETRIES, APP, JOB = (
    "sched_run",
    "sched_token",
    "sched_attempt",
    "sched_retries",
    "sched_app",
    "sched_job",
)


def key_of(headers: Mapping[str, Any] | None) -> RunKey | None:
    """The right to write that a message carries; ``None`` for a message that is not of a run.

    Celery's own retry sends the headers on unchanged and raises ``retries``, so the attempt is the one
    that was published plus the retries since.
    """
    if not headers or not headers.get(RUN) or not headers.get(TOKEN):
        return None
    try:
        attempt = int(headers[ATTEMPT]) + int(headers.get("retries") or 0) - int(headers.get(RETRIES) or 0)
    except (KeyError, TypeError, ValueError):
        return None
    return RunKey(RunId(str(headers[RUN])), Token(str(headers[TOKEN])), attempt)
