"""Flower's pages of events and deliveries, in a real browser and as a program sees them."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import pytest
from playwright.sync_api import Browser, expect

from celery_sched.model import DeliveryStatus
from celery_sched.steps.deliver import deliver
from celery_sched.store import deliveries
from tests.e2e.deployment import Deployment
from tests.e2e.flower_site import PATIENCE, Site, flower, opened

pytestmark = pytest.mark.browser
EVENTS, DELIVERIES = "/schedules/list/events", "/schedules/list/deliveries"


def publish(site: Site) -> dict[str, str]:
    """Three events, of which two jobs want two, and one that is not handed out; the deliveries by job.

    Those of `billing<b>` are dead.
    """
    client = site.client
    for name in ("billing<b>", "stock"):
        client.add(name, task="t", schedule="none", on="orders.*")
    for topic, payload in (("orders.new", {"n": "<i>1</i>"}), ("orders.paid", None), ("unheard", [1])):
        client.publish(topic, payload, key="k")
    config, database = client._config, client._database
    assert 3 == database.run(lambda tx, now: deliver(tx, now, config)).events
    client.publish("orders.new", "later")

    def die(tx: Any, now: datetime) -> None:
        ids = [one.id for one in client.deliveries("billing<b>")]
        dead = {
            "status": DeliveryStatus.DEAD.value,
            "reason": "run x is failed: <u>no</u>",
            "finished_at": now,
        }
        assert 2 == deliveries.move(tx, ids, {DeliveryStatus.PENDING}, **dead)

    database.run(die)
    return {one.job or "": one.id for one in client.deliveries() if one.topic == "orders.new"}


def test_what_became_of_events(browser: Browser, tmp_path: Any) -> None:
    """Events with what came of them; dead deliveries are found, retried and dropped; markup stays text."""
    deployment = Deployment(tmp_path)
    assert 0 == deployment.sched("migrate").code
    with flower(deployment) as site:
        of_job = publish(site)
        with opened(browser, site) as page:
            expect(page.locator("#sched-published")).to_have_text("Events (2 dead)", timeout=PATIENCE)
            page.locator("#sched-published").click()
            expect(page.locator("#sched-waiting")).to_have_text("1 not handed out yet")
            rows = page.locator("#sched-events tbody tr")
            expect(rows).to_have_count(4)
            for row, text in enumerate(
                ("waits to be handed out", "no job wanted it", "1 dead, 1 pending", "1 dead, 1 pending")
            ):
                expect(rows.nth(row)).to_contain_text(text)
            rows.nth(3).locator("summary").click()
            expect(rows.nth(3).locator("pre")).to_have_text('{"n": "<i>1</i>"}')
            for width in (400, 1280):
                page.set_viewport_size({"width": width, "height": 800})
                card = "document.querySelector('#sched-events').parentElement"
                assert page.evaluate(f"{card}.scrollWidth <= {card}.clientWidth")
            rows.nth(3).get_by_role("link", name="1 dead, 1 pending").click()
            ways = page.locator("#sched-deliveries tbody tr")
            expect(ways).to_have_count(2)
            page.get_by_role("link", name="Dead", exact=True).click()
            expect(page.locator("#sched-counts")).to_have_text("2 pending, 0 taken, 2 dead")
            expect(ways).to_have_count(2)
            expect(ways.first).to_contain_text("run x is failed: <u>no</u>")
            for width in (400, 1280):
                page.set_viewport_size({"width": width, "height": 800})
                card = "document.querySelector('#sched-deliveries').parentElement"
                assert page.evaluate(f"{card}.scrollWidth <= {card}.clientWidth")
            page.locator(f"#delivery-{of_job['billing<b>']}").get_by_role("button", name="Retry").click()
            expect(page.locator("#sched-counts")).to_have_text("3 pending, 0 taken, 1 dead", timeout=PATIENCE)
            expect(ways).to_have_count(1)
            ways.first.get_by_role("button", name="Drop").click()
            expect(page.locator("#sched-part")).to_contain_text(
                "There are no such deliveries.", timeout=PATIENCE
            )
            page.get_by_role("link", name="Dropped", exact=True).click()
            expect(ways.first).to_contain_text("dropped by flower:alice")
        token = site.token()
        sent = {"Cookie": f"_xsrf={token}", "Accept": "application/json"}

        def act(delivery: str, action: str) -> int:
            form = {"action": action, "_xsrf": token}
            return site.ask(f"{DELIVERIES}?id={delivery}", form, sent).code

        assert [200, 409, 404, 400] == [
            act(of_job["stock"], "drop"),
            act(of_job["stock"], "drop"),
            act("x", "retry"),
            act("x", "eat"),
        ]
        assert [400, 400, 403] == [
            site.ask(f"{DELIVERIES}?status=lively").code,
            site.ask(f"{DELIVERIES}?event=x").code,
            site.ask(f"{DELIVERIES}?id={of_job['stock']}", {"action": "retry"}).code,
        ]
    with flower(deployment, password=None) as site:
        answer = site.ask(DELIVERIES)
        assert (200, False) == (answer.code, "Drop</button>" in answer.text)
        assert 403 == site.ask(f"{DELIVERIES}?id={of_job['stock']}", {"action": "retry"}).code
        assert 200 == site.ask(EVENTS).code
