"""A worker survives that its Redis broker goes away while a job is running.

kombu's Redis channel, asked to acknowledge or give back a message after its connection was closed, fails
with an ``AttributeError`` (it looks for the host name of a connection that is ``None``). Celery takes only
connection errors for what they are; this one ended the whole worker, at each outage in which a message was
not acknowledged yet, as late acknowledgement has it for every running job. Here it is a connection error: the
message comes again, and the start drops it.
"""

from __future__ import annotations

from typing import Any

_MARK = "_celery_sched_guarded"


def install() -> None:
    """Guard kombu's Redis channel, once."""
    from kombu.transport import redis

    channel: Any = redis.Channel
    if getattr(channel, _MARK, False):
        return
    inherited = channel._connparams

    def _connparams(self: Any, *args: Any, **kwargs: Any) -> Any:
        if self.connection is None or self.connection.client is None:
            raise ConnectionError("the broker connection of this channel is closed")
        return inherited(self, *args, **kwargs)

    channel._connparams = _connparams
    setattr(channel, _MARK, True)
