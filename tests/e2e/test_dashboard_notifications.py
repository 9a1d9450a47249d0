"""Flower's page of notifications, in a real browser and as a program sees it."""

from __future__ import annotations

from datetime import datetime
from types import SimpleNamespace
from typing import Any

import pytest
from playwright.sync_api import Browser, expect

from celery_sched.model import NoticeKind
from celery_sched.store import notices
from tests.e2e.deployment import Deployment
from tests.e2e.flower_site import PATIENCE, flower, opened

pytestmark = pytest.mark.browser
PAGE = "/schedules/list/notifications"


def test_what_was_told_is_seen(browser: Browser, tmp_path: Any) -> None:
    """The list of jobs says how many are unseen; one, then all are marked; markup in a text stays text."""
    deployment = Deployment(tmp_path)
    assert 0 == deployment.sched("migrate").code
    with flower(deployment) as site:

        def note(tx: Any, now: datetime) -> None:
            for number in range(3):
                row = SimpleNamespace(
                    id=number,
                    app="celery_sched",
                    name=f"job-{number}<b>",
                    task="t",
                    description="",
                    notify=None,
                )
                row.status = "active"
                notices.note_job(tx, now, row, NoticeKind.PAUSED, "so <i>it</i> is")

        site.client._database.run(note)
        with opened(browser, site) as page:
            expect(page.locator("#sched-told")).to_have_text("Notifications (3 unseen)", timeout=PATIENCE)
            page.locator("#sched-told").click()
            expect(page.locator("#sched-unseen")).to_have_text("3 unseen")
            rows = page.locator("#sched-notifications tbody tr")
            expect(rows).to_have_count(3)
            expect(rows.first).to_contain_text("job-2<b> is paused")
            card = "document.querySelector('#sched-notifications').parentElement"
            for width in (400, 1280):
                page.set_viewport_size({"width": width, "height": 800})
                assert page.evaluate(f"{card}.scrollWidth <= {card}.clientWidth")
            rows.first.locator("summary").click()
            expect(rows.first.locator("pre")).to_contain_text("so <i>it</i> is")
            rows.first.get_by_role("button", name="Mark as seen: job-2<b> is paused").click()
            expect(page.locator("#sched-unseen")).to_have_text("2 unseen", timeout=PATIENCE)
            page.get_by_role("link", name="Unseen").click()
            expect(rows).to_have_count(2)
            page.get_by_role("button", name="Mark all as seen").click()
            expect(page.locator("#sched-unseen")).to_have_text("0 unseen", timeout=PATIENCE)
            expect(page.locator("#sched-part")).to_contain_text("There is nothing that nobody has seen.")
        token = site.token()
        sent = {"Cookie": f"_xsrf={token}", "Accept": "application/json"}
        assert 404 == site.ask(f"{PAGE}?id=999", {"action": "seen", "_xsrf": token}, sent).code
        assert 400 == site.ask(f"{PAGE}?id=x", {"action": "seen", "_xsrf": token}, sent).code
        assert 403 == site.ask(PAGE, {"action": "seen"}).code
    with flower(deployment, password=None) as site:
        answer = site.ask(PAGE)
        assert (200, False) == (answer.code, "Mark all" in answer.text)
        assert 403 == site.ask(PAGE, {"action": "seen"}).code
