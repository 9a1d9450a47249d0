"""Read or write a job's next_run_at in a process, and a session, whose time zone is another. For A21."""

from __future__ import annotations

import sys
import time
from datetime import datetime

from sqlalchemy import select, update

from celery_sched.store.engine import Database
from celery_sched.store.tables import job

if __name__ == "__main__":
    url, wanted = sys.argv[1:]
    database = Database(url)
    if wanted != "read":
        value = datetime.fromisoformat(wanted)
        database.run(lambda tx, now: tx.execute(update(job).values(next_run_at=value)))
    instant = database.read(lambda tx, now: tx.execute(select(job.c.next_run_at)).scalar_one())
    server = database.read(lambda tx, now: now)
    print(instant.isoformat(), server.timestamp(), time.time(), time.tzname[0])
    database.dispose()
