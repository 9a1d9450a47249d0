"""The page of notifications: what people were told, and that they have seen it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Any

from tornado.web import HTTPError, authenticated

from celery_sched.client import Client
from celery_sched.dashboard.handlers import Page
from celery_sched.dashboard.look import ready, refused
from celery_sched.model import NoticeStatus, Notification
from celery_sched.store import notices
from celery_sched.store.engine import SQLAlchemyError, Tx

NOTIFICATIONS = "schedule_notifications"
"""Name of the address."""
ACTIONS = ("seen",)
SHOWN = 100


@dataclass(frozen=True)
class Told:
    """The newest notifications, and how many nobody has seen."""

    now: datetime
    lines: Sequence[Notification]
    unseen: int


def told(app: Any, unseen: bool) -> Told:
    """What people were told, the newest first.

    :raises SchedulerError: the database cannot be read now, or is not this release's.
    """
    runtime = ready(app)
    name = runtime.config.app

    def work(tx: Tx, now: datetime) -> Told:
        found = notices.newest(tx, name, unseen=unseen, job_name=None, limit=SHOWN)
        return Told(now, found, notices.count_unseen(tx, name)[0])

    try:
        return runtime.database.read(work)
    except SQLAlchemyError as error:
        raise refused(error) from error


def see(app: Any, which: int | None, action: str, by: str) -> str:
    """Mark one as seen, or all; return what was done, in words.

    :raises SchedulerError: there is no such one, or no database.
    """
    try:
        count = Client(ready(app)).see_notifications(None if which is None else [which], by=by)
    except SQLAlchemyError as error:
        raise refused(error) from error
    return f"{count} marked as {action}"


def is_unseen(one: Notification) -> bool:
    """Whether somebody should look at it."""
    return one.seen_at is None and one.status is not NoticeStatus.SUPPRESSED


class NotificationsPage(Page):
    """The list of notifications."""

    @authenticated
    async def get(self) -> None:
        """All of them, or with ``?unseen=1`` what nobody has seen."""
        unseen = bool(self.get_query_argument("unseen", ""))
        key = ("notifications", self.capp, unseen)
        found, problem = await self.look_up(key, partial(told, self.capp, unseen))
        address = self.reverse_url(NOTIFICATIONS)
        self.show(
            "notifications", found=found, problem=problem, unseen=unseen, is_unseen=is_unseen, here=address
        )

    @authenticated
    async def post(self) -> None:
        """Carry out ``action``, seen, for the one with ``?id=``, or for all."""
        given = self.get_query_argument("id", "")
        if given and not (given.isascii() and given.isdigit() and len(given) < 19):
            raise HTTPError(400, "%s", f"id {given!r} is refused: it is a notification's number.")
        work = partial(see, self.capp, int(given) if given else None)
        what = f"notification {given}" if given else "all notifications"
        await self.carry_out(what, ACTIONS, work, str(self.reverse_url(NOTIFICATIONS)))
