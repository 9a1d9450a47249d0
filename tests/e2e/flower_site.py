"""A Flower with our pages, as programs and as a browser see it."""

from __future__ import annotations

import base64
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from http.client import HTTPMessage
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

from playwright.sync_api import Browser, Locator, Page

from celery_sched import config, runtime
from celery_sched.client import Client
from tests.e2e.deployment import Deployment
from tests.private_server import free_port, wait_until

USER, PASSWORD = "alice", "correct horse"
PATIENCE = 30_000
"""Milliseconds until a browser gives up."""


class _Stay(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: Any) -> None:
        return None


@dataclass
class Answer:
    """What Flower answered a program."""

    code: int
    text: str
    headers: HTTPMessage


@dataclass
class Site:
    """A Flower and what it shows."""

    deployment: Deployment
    url: str
    client: Client
    log: Path
    password: str | None = PASSWORD

    def headers(self) -> dict[str, str]:
        coded = base64.b64encode(f"{USER}:{self.password}".encode()).decode()
        return {} if self.password is None else {"Authorization": f"Basic {coded}"}

    def ask(
        self, path: str, form: Mapping[str, str] | None = None, headers: Mapping[str, str] | None = None
    ) -> Answer:
        """One request; redirects are not followed."""
        data = None if form is None else urlencode(form).encode()
        request = urllib.request.Request(self.url + path, data, {**self.headers(), **(headers or {})})
        try:
            with urllib.request.build_opener(_Stay).open(request, timeout=30) as answer:
                return Answer(answer.status, answer.read().decode(), answer.headers)
        except urllib.error.HTTPError as error:
            with error:
                return Answer(error.code, error.read().decode(), error.headers)

    def token(self) -> str:
        """The token that Flower gives a browser with its pages."""
        cookie = self.ask("/schedules").headers["Set-Cookie"]
        return str(cookie).partition("_xsrf=")[2].partition(";")[0]

    def act(self, name: str, action: str, **headers: str) -> Answer:
        """What a button does, as a program would."""
        token = self.token()
        path = f"/schedules/{quote(name, safe='')}"
        return self.ask(
            path,
            {"action": action, "_xsrf": token},
            {"Cookie": f"_xsrf={token}", "Accept": "application/json", **headers},
        )


def client_of(deployment: Deployment, url: str | None = None) -> Client:
    """A client of this process on the deployment's database."""
    settings = {"sched_home": str(deployment.home), **({"sched_database_url": url} if url else {})}
    return Client(runtime.make(config.load(settings, "celery_sched")))


@contextmanager
def flower(
    deployment: Deployment,
    *options: str,
    password: str | None = PASSWORD,
    client: Client | None = None,
    app: str = "celery_sched",
) -> Iterator[Site]:
    """A Flower that answers."""
    port = free_port()
    auth = [] if password is None else [f"--basic-auth={USER}:{password}"]
    arguments = ["flower", f"--port={port}", "--address=127.0.0.1", *auth, *options]
    with deployment.running(*arguments, app=app) as process:
        site = Site(
            deployment, f"http://127.0.0.1:{port}", client or client_of(deployment), process.log, password
        )

        def answers() -> bool:
            assert process.popen.poll() is None, process.text()
            try:
                return site.ask("/").code in (200, 404)
            except OSError:
                return False

        try:
            wait_until(answers, 60, "Flower to answer")
            yield site
        finally:
            site.client._runtime.close()


@contextmanager
def opened(browser: Browser, site: Site, path: str = "/schedules") -> Iterator[Page]:
    """A page in a window of its own; what its scripts complain of fails the test."""
    credentials = None if site.password is None else {"username": USER, "password": site.password}
    context = browser.new_context(http_credentials=credentials, viewport={"width": 1280, "height": 800})  # type: ignore[arg-type]
    context.set_default_timeout(PATIENCE)
    page = context.new_page()
    complaints: list[str] = []
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.goto(site.url + path)
    yield page
    context.close()
    assert [] == complaints


def row(page: Page, name: str) -> Locator:
    """A job's row in the list."""
    return page.locator("#sched-jobs tbody tr").filter(has=page.get_by_role("link", name=name, exact=True))
