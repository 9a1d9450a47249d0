"""The pages for programs, as the command line prints them with ``--json``. Open where Flower's own API is."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

from flower.api import BaseApiHandler
from tornado.web import authenticated

from celery_sched.cli import preview
from celery_sched.cli.backfill import backfill_json
from celery_sched.cli.output import job_json, plain, run_view_json
from celery_sched.dashboard import detail, look
from celery_sched.dashboard.handlers import NO_NAME, answers
from celery_sched.errors import NotFound, SchedulerError
from celery_sched.model import RunId

T = TypeVar("T")

API, JOB_API, RUN_API = "schedules_api", "schedule_api", "schedule_run_api"
"""Names of the addresses."""


class Api(BaseApiHandler):  # type: ignore[misc]  # Flower has no types
    """What our addresses for programs share."""

    async def answer(self, key: tuple[Any, ...], work: Callable[[], T], as_json: Callable[[T], Any]) -> None:
        """What ``work`` returns, as JSON; an error as ``{"error": ...}``."""
        self.set_header("Content-Type", "application/json; charset=UTF-8")
        try:
            found = await answers.of((*key, self.capp), work)
        except SchedulerError as error:
            self.set_status(404 if isinstance(error, NotFound) else 503)
            self.finish({"error": str(error)})
            return
        self.finish(json.dumps(as_json(found), ensure_ascii=False))


class JobsApi(Api):
    """``GET /api/schedules``: what ``sched jobs --json`` prints."""

    @authenticated
    async def get(self) -> None:
        """All jobs."""
        work = partial(look.all_jobs, self.capp)
        await self.answer(("all",), work, lambda jobs: [job_json(job) for job in jobs])


class JobApi(Api):
    """``GET /api/schedules/NAME``: a job with what comes and what was."""

    @authenticated
    async def get(self, path: str) -> None:
        """One job."""
        name = self.get_query_argument("name", path, strip=False) if path == NO_NAME else path
        await self.answer(("job", name), partial(detail.job, self.capp, name), job_view_json)


class RunApi(Api):
    """``GET /api/schedules/run/ID``: what ``sched runs show --json`` prints."""

    @authenticated
    async def get(self, run_id: str) -> None:
        """One run."""
        work = partial(detail.run, self.capp, RunId(run_id))
        await self.answer(("run", run_id), work, run_page_json)


def run_page_json(found: detail.RunView) -> dict[str, Any]:
    """A run as ``sched runs show --json`` has it."""
    return run_view_json(found.run, found.waits, found.earlier, found.put_right_by)


def job_view_json(found: detail.JobView) -> dict[str, Any]:
    """A job as ``sched jobs --json`` has it, and ``next`` as ``sched next --details``."""
    zone = found.coming.zone
    return {
        **job_json(found.line.job),
        "next": [preview.details(one, zone) for one in found.coming.occurrences],
        "runs": plain(found.line.runs),
        "gaps": plain(found.gaps),
        "backfills": [backfill_json(one) for one in found.backfills],
    }
