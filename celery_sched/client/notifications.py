"""The client: what people were told, and that they have seen it."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from celery_sched import notify
from celery_sched.client.base import Base, near
from celery_sched.errors import InvalidValue, NotFound
from celery_sched.model import Notification
from celery_sched.store import notices
from celery_sched.store.engine import Tx


class Notifications(Base):
    """What people do with notifications."""

    def notifications(
        self, *, unseen: bool = False, job: str | None = None, limit: int = 100
    ) -> list[Notification]:
        """What people were told, newest first.

        :param unseen: what nobody has marked as seen; repeats, which were not sent, are left out.
        :raises NotFound: no job, and no notification of one, of that name.
        :raises InvalidValue: a limit below 1.
        """
        if isinstance(limit, bool) or not isinstance(limit, int) or limit < 1:
            raise InvalidValue("limit", limit, "a whole number from 1 on")

        def work(tx: Tx, now: datetime) -> list[Notification]:
            app = self._config.app
            found = notices.newest(tx, app, unseen=unseen, job_name=job, limit=limit)
            if not (found or job is None or notices.newest(tx, app, unseen=False, job_name=job, limit=1)):
                self._job(tx, job)
            return found

        return self._database.read(work)

    def get_notification(self, notification_id: int) -> Notification:
        """One of them. :raises NotFound: no such notification."""

        def work(tx: Tx, now: datetime) -> Notification:
            return self._notifications(tx, [notification_id])[0]

        return self._database.read(work)

    def see_notifications(self, ids: Sequence[int] | None = None, *, by: str = "python") -> int:
        """Mark these as seen, or all that there are now; return how many nobody had seen.

        :raises NotFound: no such notification; nothing was written.
        """

        def work(tx: Tx, now: datetime) -> int:
            if ids is not None:
                self._notifications(tx, ids)
            count = notices.see(tx, now, self._config.app, ids)
            if count:
                what = "all" if ids is None else ", ".join(map(str, sorted(ids)))
                self._note(tx, now, by, "see", f"notifications:{what}"[:255], {"count": count})
            return count

        return self._database.run(work)

    def test_target(self, target: str) -> int:
        """Send a message that says that it is a test, from this process and at once; return to how many URLs.

        :raises NotFound: no such target in ``sched_notify_targets``.
        :raises SchedulerError: it could not be sent, and why.
        """
        if target not in self._config.notify_targets:
            raise self._no_target(target)
        return notify.send_test(self._config, target)

    def _notifications(self, tx: Tx, ids: Sequence[int]) -> list[Notification]:
        found = notices.newest(
            tx, self._config.app, unseen=False, job_name=None, limit=max(1, len(ids)), ids=ids
        )
        missing = sorted(set(ids) - {one.id for one in found})
        if missing:
            raise NotFound("notification", missing[0], "See: sched notifications.")
        return found

    def _no_target(self, target: str) -> NotFound:
        known = sorted(self._config.notify_targets)
        hint = near(target, known) or f"In sched_notify_targets there are: {', '.join(known) or 'none'}."
        return NotFound("target", target, hint)
