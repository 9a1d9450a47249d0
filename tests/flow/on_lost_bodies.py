"""A body that leaves a record half-done, and the task that puts such records right."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

from celery import shared_task

from celery_sched.context import current

FOLDER = Path(os.environ["FLOW_FOLDER"])


@shared_task(name="books.import_order")
def import_order(order: str) -> None:
    """Says in its record that it runs, and in another file in which process; never gets further."""
    record = FOLDER / f"{order}.json"
    context = current.get()
    assert context is not None
    record.write_text(json.dumps({"status": "Running", "fence": context.fence}))
    with open(FOLDER / "marks", "a") as marks:
        marks.write(f"import_order {os.getpid()}\n")
    time.sleep(600)


@shared_task(name="books.put_right")
def put_right(args: list[Any], status: str, fence: int, **rest: Any) -> str:
    """Closes the record of the run that is gone, unless a later one has it."""
    (order,) = args
    record = FOLDER / f"{order}.json"
    found = json.loads(record.read_text())
    if found["fence"] > fence:
        return "a later run has it"
    record.write_text(json.dumps({"status": f"Given up ({status})", "of": rest["run_id"]}))
    return "put right"
