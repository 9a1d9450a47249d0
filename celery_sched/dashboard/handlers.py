"""The pages' addresses. SQL runs in threads of our own, never on Flower's loop."""

from __future__ import annotations

import asyncio
import base64
import logging
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, TypeVar
from urllib.parse import quote

from flower.views import BaseHandler
from tornado.template import BaseLoader
from tornado.web import HTTPError, RequestHandler, authenticated

from celery_sched.dashboard import detail, look, pages, show
from celery_sched.errors import NotFound, RunRefused, SchedulerError
from celery_sched.model import JobStatus, RunId

logger = logging.getLogger("celery_sched.dashboard")
T = TypeVar("T")

JOBS, JOB, RUN = "schedules", "schedule", "schedule_run"
"""Names of the addresses."""
JOB_ACTIONS = ("run", "pause", "resume")
RUN_ACTIONS = ("cancel", "retry")
REFRESH = 3.0
"""Seconds between two looks of an open page."""
PATIENCE = 5.0
"""Seconds that a page waits for the database before it says that there is no answer."""
THREADS = 4
NO_AUTHENTICATION = (
    "The buttons (Run now, Pause, Resume, Cancel, Run again) are off because this Flower has no "
    "authentication. To turn them on, start it with --basic-auth=USER:PASSWORD, or with --auth and "
    "--auth-provider (see Flower's documentation)."
)
READ_ONLY = "The buttons (Run now, Pause, ...) are off because this Flower was started with --read-only."
NO_NAME = "-"
"""In an address: the name is in the query."""
NOT_CODED = (".", "..")
"""Names that browsers take for folders in an address, whatever their coding."""


class Answers:
    """Calls in threads. One that is asked for again while it runs is not run twice.

    So a database that has fallen silent holds a thread for each page, not for each request.
    """

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="sched-dashboard")
        self._open: dict[Hashable, asyncio.Future[Any]] = {}

    async def of(self, key: Hashable, work: Callable[[], T]) -> T:
        """What ``work`` returns; ``key`` says which calls are the same.

        :raises SchedulerError: what ``work`` raised, or no answer within :data:`PATIENCE` seconds.
        """
        future = self._open.get(key)
        if future is None:
            future = self._open[key] = asyncio.get_running_loop().run_in_executor(self._threads, work)
            future.add_done_callback(partial(self._done, key))
        try:
            answer: T = await asyncio.wait_for(asyncio.shield(future), PATIENCE)
        except TimeoutError as error:
            raise look.Unavailable(f"the database has not answered for {PATIENCE:g} s") from error
        return answer

    async def once(self, work: Callable[[], T]) -> T:
        """What ``work``, which changes something, returns; however long it takes."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, work)

    def _done(self, key: Hashable, future: asyncio.Future[Any]) -> None:
        del self._open[key]
        if not future.cancelled():
            future.exception()  # seen, also when nobody waits any more


answers = Answers()


class Page(BaseHandler):  # type: ignore[misc]  # Flower has no types
    """What our pages share."""

    def get_template_path(self) -> str:
        """Another folder than Flower's own pages: tornado keeps one loader a folder."""
        return str(pages.OURS)

    def create_template_loader(self, template_path: str) -> BaseLoader:
        """Our templates, and Flower's behind them."""
        return pages.loader_of(self.application.settings)

    def refusal(self) -> str | None:
        """Why nobody may change anything here, or None."""
        options = self.application.options
        if not (options.basic_auth or options.auth):
            return NO_AUTHENTICATION
        # Flower before 2.1 has no such option
        return READ_ONLY if getattr(options, "read_only", False) else None

    def api_open(self) -> bool:
        """Whether Flower answers at its API's addresses."""
        options = self.application.options
        return bool(options.basic_auth or options.auth or self.unauthenticated_api)

    def user(self) -> str:
        """Who is asking, for the audit."""
        if isinstance(self.current_user, str):
            return f"flower:{self.current_user}"
        _, _, coded = self.request.headers.get("Authorization", "").partition(" ")
        return f"flower:{base64.b64decode(coded).decode().partition(':')[0]}"

    def check_token(self) -> None:
        """Refuse a form that did not come from our page; Flower asks some of its clients for no token."""
        RequestHandler.check_xsrf_cookie(self)

    async def carry_out(
        self, what: str, actions: Sequence[str], work: Callable[[str, str], str], back: str
    ) -> None:
        """Do what a button says, and say what was done: as JSON, or by going ``back`` there.

        :param what: the job or run, for the log and as the link's text.
        :param work: takes the action and who asks for it.
        """
        refusal = self.refusal()
        if refusal is not None:
            raise HTTPError(403, "%s", refusal)
        self.check_token()
        action = self.get_body_argument("action", "")
        if action not in actions:
            raise HTTPError(400, "%s", f"action {action!r} is refused: it is one of {', '.join(actions)}.")
        code, message = 200, ""
        try:
            message = await answers.once(partial(work, action, self.user()))
        except SchedulerError as error:
            code = {NotFound: 404, RunRefused: 409, look.NotNow: 409}.get(type(error), 503)
            message = str(error)
        logger.info("%s of %s by %s: %s", action, what, self.user(), message)
        if "application/json" in self.request.headers.get("Accept", ""):
            self.set_status(code)
            self.finish({"ok": code == 200, "message": message})
        elif code == 200:
            self.redirect(back, status=303)
        else:
            self.set_status(code)
            self.show("refused", message=message, what=what, back=back)

    async def look_up(self, key: Hashable, work: Callable[[], T]) -> tuple[T | None, str]:
        """What the page shows, or None and why there is nothing: the database cannot be read now (503).

        :raises HTTPError: 404: there is no such job or run.
        """
        try:
            return await answers.of(key, work), ""
        except NotFound as error:
            raise HTTPError(404, "%s", str(error)) from error
        except SchedulerError as error:
            self.set_status(503)
            return None, str(error)

    def address(self, name: str) -> str:
        """The address of a job's page."""
        coded = f"{NO_NAME}?name={name}" if name in NOT_CODED else quote(name, safe="")
        return f"{self.reverse_url(JOBS)}/{coded}"

    def run_address(self, run_id: RunId) -> str:
        """The address of a run's page."""
        return str(self.reverse_url(RUN, run_id))

    def task_address(self, run_id: RunId) -> str | None:
        """Flower's page of a run's task, where Flower has seen it."""
        seen = self.application.events.state.tasks.get(run_id) is not None
        return str(self.reverse_url("task", run_id)) if seen else None

    def show(self, template: str, **values: Any) -> None:
        """Render a page, or with ``?part=1`` only what changes on it."""
        part = self.request.method == "GET" and self.get_query_argument("part", "")
        if part:
            # a proxy or the browser's "back" must not show it as a page
            self.set_header("Cache-Control", "no-store")
        self.render(
            f"sched_{template}_part.html" if part else f"sched_{template}.html",
            show=show,
            address=self.address,
            run_address=self.run_address,
            task_address=self.task_address,
            refusal=self.refusal(),
            api_open=self.api_open(),
            refresh=REFRESH,
            JobStatus=JobStatus,
            **values,
        )


class JobsPage(Page):
    """The list of jobs."""

    @authenticated
    async def get(self) -> None:
        """All jobs, or those that match ``q``; a page of them."""
        text = self.get_query_argument("q", "")[:200]
        page = self.get_query_argument("page", "1")
        number = int(page) if page.isascii() and page.isdigit() and len(page) < 9 else 1
        key = ("jobs", self.capp, text, number)
        found, problem = await self.look_up(key, partial(look.overview, self.capp, text, number))
        self.show("jobs", found=found, problem=problem, text=text)


class JobPage(Page):
    """A job, its newest runs, and what may be done with it."""

    def job_name(self, path: str) -> str:
        """The name in the address."""
        name: str = self.get_query_argument("name", path, strip=False) if path == NO_NAME else path
        return name

    @authenticated
    async def get(self, path: str) -> None:
        """The job's page."""
        name = self.job_name(path)
        found, problem = await self.look_up(("job", self.capp, name), partial(detail.job, self.capp, name))
        self.show("job", found=found, problem=problem, name=name)

    @authenticated
    async def post(self, path: str) -> None:
        """Carry out ``action``: run, pause or resume."""
        name = self.job_name(path)
        work = partial(look.act, self.capp, name)
        await self.carry_out(f"job {name!r}", JOB_ACTIONS, work, self.address(name))


class RunPage(Page):
    """A run with its attempts, and what may be done with it."""

    @authenticated
    async def get(self, run_id: str) -> None:
        """The run's page."""
        key = ("run", self.capp, run_id)
        found, problem = await self.look_up(key, partial(detail.run, self.capp, RunId(run_id)))
        self.show("run", found=found, problem=problem, run_id=run_id)

    @authenticated
    async def post(self, run_id: str) -> None:
        """Carry out ``action``: cancel or retry."""
        work = partial(look.act_on_run, self.capp, RunId(run_id))
        await self.carry_out(f"run {run_id}", RUN_ACTIONS, work, self.run_address(RunId(run_id)))
