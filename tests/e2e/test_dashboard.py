"""Flower's Schedules page in a real browser, and its addresses as programs see them."""

from __future__ import annotations

import base64
import json
import re
import threading
import time
from collections.abc import Iterator
from urllib.parse import quote

import pytest
from playwright.sync_api import Browser, expect

from celery_sched.model import JobStatus
from celery_sched.rules.transitions import RunStatus
from celery_sched.store import audit, schema
from tests.e2e.deployment import Deployment
from tests.e2e.flower_site import PATIENCE, Site, client_of, flower, opened, row
from tests.private_server import wait_until
from tests.proxy import Proxy
from tests.servers import PostgresServer

pytestmark = pytest.mark.browser
MARKUP = '<b>&"x'
STRANGE = [MARKUP, "berichte/täglich", "a/../b", "..", "-", "100% #?;&=+ \\ 'q'"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Deployment:
    """A migrated database with jobs of code and of an operator."""
    deployment = Deployment(tmp_path_factory.mktemp("dashboard"))
    deployment.write_tasks()
    assert 0 == deployment.sched("migrate").code
    client = client_of(deployment)
    for name in STRANGE:
        client.add(name, task="celery_sched.ping", schedule="0 3 1 1 *", timezone="Europe/Berlin")
    client._runtime.close()
    return deployment


@pytest.fixture(scope="module")
def site(folder: Deployment) -> Iterator[Site]:
    """Flower with authentication; nothing else runs."""
    with flower(folder) as found:
        yield found


@pytest.fixture(scope="module")
def open_site(folder: Deployment) -> Iterator[Site]:
    """Flower without authentication, on the same database."""
    with flower(folder, password=None) as found:
        yield found


def test_a_run_by_hand_from_click_to_result(browser: Browser, folder: Deployment) -> None:
    """Run now queues a run; its square appears without a reload and leads to Flower's task page."""
    with folder.running("worker", "-E", "-c", "2", "-l", "INFO") as worker:
        worker.wait_for("ready")
        with folder.running("beat", "-S", "sched", "-l", "INFO"), flower(folder) as site:
            with opened(browser, site) as page:
                quick = row(page, "quick")
                expect(quick).to_contain_text("0 0 1 1 *", timeout=PATIENCE)
                quick.get_by_role("button", name="Run quick now").click()
                expect(page.locator(".toast")).to_contain_text("is queued", timeout=PATIENCE)
                expect(quick).to_contain_text("1 ok", timeout=PATIENCE)
                expect(quick).to_contain_text("succeeded")
                (run,) = site.client.runs("quick")
                assert (RunStatus.SUCCEEDED, "manual") == (run.status, run.trigger)
                square = quick.locator(f".sched-squares a[href='/task/{run.id}']")
                expect(square).to_have_attribute(
                    "aria-label", re.compile("^succeeded, (now|.* ago), took .*"), timeout=PATIENCE
                )
                square.click()
                expect(page.locator("body")).to_contain_text("tasks.quick")
                expect(page.locator("body")).to_contain_text(run.id)
            with opened(browser, site, "/schedules/failing") as page:
                page.get_by_role("button", name="Run failing now").click()
                error = page.locator("#sched-runs details")
                expect(error).to_contain_text("ValueError: as it was told", timeout=PATIENCE)
                expect(page.locator("#sched-runs tbody tr")).to_contain_text("failed")
                (failed,) = site.client.runs("failing")
                page.locator("#sched-runs").get_by_role("link", name=failed.id, exact=True).click()
                expect(page.locator("#sched-run-id")).to_have_text(failed.id)
                tried = page.locator("#sched-attempts tbody tr")
                expect(tried).to_have_count(1)
                page.get_by_role("button", name="Run again").click()
                expect(page.locator(".toast")).to_contain_text("as attempt 2", timeout=PATIENCE)
                expect(tried).to_have_count(2, timeout=PATIENCE)
                expect(tried.first).to_contain_text("failed", timeout=PATIENCE)
                expect(tried.nth(1)).to_contain_text("ValueError: as it was told")
                expect(page.locator("#sched-run")).to_contain_text("manual")
            shown = json.loads(site.ask(f"/api/schedules/run/{failed.id}").text)
            assert (2, [1]) == (shown["attempt"], [one["attempt"] for one in shown["attempts"]])
            assert site.deployment.sched("runs", "show", failed.id, "--json").json == shown


def test_names_are_shown_as_they_are(browser: Browser, site: Site) -> None:
    """Whatever is in a name, it is text: in the list, as a link, on its own page and in the definition."""
    with opened(browser, site) as page:
        for name in STRANGE:
            row(page, name).get_by_role("link", name=name, exact=True).click()
            expect(page.locator("#sched-name")).to_have_text(name)
            expect(page.locator("#sched-definition")).to_contain_text("Europe/Berlin")
            expect(page.locator("#sched-no-runs")).to_be_visible()
            page.go_back()
        assert 0 == page.locator("#sched-jobs b").count()


HOLIDAYS = """BEGIN:VCALENDAR
VERSION:2.0
PRODID:-//test//test//EN
BEGIN:VEVENT
UID:1
DTSTART;VALUE=DATE:20990101
SUMMARY:Stocktaking
END:VEVENT
END:VCALENDAR
"""


def test_a_jobs_page_says_what_comes_and_what_was(browser: Browser, site: Site) -> None:
    """The next occurrences with what is excluded, gaps, backfills, and the definition as people wrote it."""
    name = "shop/close"
    (site.deployment.folder / "closed.ics").write_text(HOLIDAYS)
    made = site.deployment.sched(
        *("jobs", "add", name, "--task=celery_sched.ping", "--schedule=0 3 * * *", "--tz=Europe/Berlin"),
        *("--jitter=5m", "--exclude=weekly:tue-thu", "--exclude=ics:closed.ics", "--retries=2"),
    )
    assert 0 == made.code, made.err
    site.client.backfill(name, "2026-01-05", "2026-01-16T12:00")
    with opened(browser, site, f"/schedules/{quote(name, safe='')}") as page:
        due = page.locator("#sched-next tbody tr")
        planned = due.filter(has_text="runs at")
        expect(planned).to_have_count(5)
        assert {"03:00:00"} == {re.findall(r"\d\d:\d\d:\d\d", text)[0] for text in planned.all_inner_texts()}
        # from any day on, five that run have those that are excluded between them, once or twice
        out = due.filter(has_text="excluded by weekly:tue-thu").all_inner_texts()
        assert {"Tue", "Wed", "Thu"} == {text[:3] for text in out}
        assert {"Fri", "Sat", "Sun", "Mon"} == {text[:3] for text in planned.all_inner_texts()}
        filling = page.locator("#sched-backfills tbody tr")
        expect(filling).to_contain_text("0 of 6")
        expect(filling).to_contain_text("running")
        text = page.locator("#sched-definition").inner_text()
        assert "weekly:tue-thu, ics:closed.ics" in text and "retry delay" in text
        assert not [word for word in ("BEGIN", "events", "start at", "max runs") if word in text]
        site.client.pause(name, "stocktaking")
        expect(page.locator("#sched-gaps")).to_contain_text("paused: stocktaking", timeout=PATIENCE)
    with opened(browser, site) as page:
        expect(page.locator("#sched-filling")).to_contain_text("0 of 6")
    shown = json.loads(site.ask(f"/api/schedules/{quote(name, safe='')}").text)
    ((job,),) = ([one for one in site.deployment.sched("jobs", "--json").json if one["name"] == name],)
    assert job == {key: value for key, value in shown.items() if key in job}
    assert ([6], 5, []) == ([one["total"] for one in shown["backfills"]], len(shown["next"]), shown["gaps"])
    site.client.delete(name)
    assert 404 == site.ask(f"/api/schedules/{quote(name, safe='')}").code


def test_a_job_for_events_says_which(browser: Browser, site: Site) -> None:
    """Its topics stand where others have their schedule, without a zone; with a schedule both are there."""
    site.client.add("told", task="celery_sched.ping", on=["orders.*", "bills.new"])
    site.client.add("told-too", task="celery_sched.ping", on="orders.*", schedule="0 3 1 1 *")
    with opened(browser, site) as page:
        expect(row(page, "told").locator("td").nth(1)).to_have_text(
            re.compile(r"^\s*on orders\.\*, bills\.new\s*$")
        )
        expect(row(page, "told-too").locator("td").nth(1)).to_contain_text("0 3 1 1 *; on orders.*")
        expect(row(page, "told-too").locator("td").nth(1)).to_contain_text("UTC")
    with opened(browser, site, "/schedules/told") as page:
        expect(page.locator(".sched-facts dd").first).to_have_text("on orders.*, bills.new")
    shown = site.deployment.sched("jobs", "show", "told")
    assert "told has no next run: it is active, and runs on orders.*, bills.new." in shown.err
    for name in ("told", "told-too"):
        site.client.delete(name)


def test_what_was_not_run_has_its_reason(browser: Browser, site: Site) -> None:
    """Occurrences of a pause are a line: from when to when, how many, and why."""
    site.client.add("often", task="celery_sched.ping", schedule="* * * * * *")
    site.client.pause("often", "for the audit")
    paused = site.client.get("often").inactive_since
    assert paused is not None
    wait_until(
        lambda: site.client._database.read(lambda tx, now: (now - paused).total_seconds() > 2),
        30,
        "two seconds to pass",
    )
    site.client.resume("often")
    with opened(browser, site, "/schedules/often") as page:
        line = page.locator("#sched-gaps tbody tr")
        expect(line).to_contain_text("paused: for the audit")
        (gap,) = json.loads(site.ask("/api/schedules/often").text)["gaps"]
        assert gap["count"] >= 2
        expect(line.locator("td").nth(2)).to_have_text(str(gap["count"]))
    site.client.delete("often")


def test_flowers_own_pages_lead_there(browser: Browser, site: Site) -> None:
    """The link stands among Flower's own, on each of them, and is marked on our page only."""
    for path in ("/workers", "/tasks"):
        with opened(browser, site, path) as page:
            link = page.locator(".app-nav .nav-link", has_text="Schedules")
            assert None is link.get_attribute("aria-current")
            link.click()
            expect(page.locator("#sched-jobs")).to_be_visible()
            expect(page.locator(".app-nav [aria-current=page]")).to_have_text("Schedules")


def test_pause_and_resume(browser: Browser, site: Site) -> None:
    """The buttons pause and resume the job at once, with the user's name, and change places."""
    name = MARKUP
    with opened(browser, site) as page:
        line = row(page, name)
        line.get_by_role("button", name=f"Pause {name}").click()
        expect(line).to_contain_text("paused by flower:alice", timeout=PATIENCE)
        paused = site.client.get(name)
        assert (JobStatus.PAUSED, "paused by flower:alice") == (paused.status, paused.status_reason)
        expect(line.get_by_role("button", name="Pause")).to_have_count(0)
        line.get_by_role("button", name=f"Resume {name}").click()
        expect(line).to_contain_text("active", timeout=PATIENCE)
        assert JobStatus.ACTIVE == site.client.get(name).status


def test_refreshing_leaves_what_is_the_same(browser: Browser, site: Site) -> None:
    """A change of one job changes its row; the rows, the focus and the window stay what they were."""
    with opened(browser, site) as page:
        line = row(page, "-")
        page.evaluate("for (const row of document.querySelectorAll('#sched-jobs tr')) row.marked = true")
        line.get_by_role("button", name="Run - now").focus()
        site.client.pause("-", "for the audit of May")
        expect(line).to_contain_text("for the audit of May", timeout=PATIENCE)
        unmarked = "[...document.querySelectorAll('#sched-jobs tr')].filter(row => !row.marked).length"
        assert (0, "Run - now") == (
            page.evaluate(unmarked),
            page.evaluate("document.activeElement.getAttribute('aria-label')"),
        )
        site.client.resume("-")


def test_all_columns_fit_into_a_small_window(browser: Browser, site: Site) -> None:
    """At 1280 pixels nothing of the table lies outside its frame, nor at 400, where each job is a block."""
    with opened(browser, site) as page:
        expect(page.locator("#sched-jobs")).to_be_visible()
        expect(page.get_by_role("link", name="JSON")).to_be_visible()
        card = "document.querySelector('#sched-jobs').parentElement"
        for width in (1280, 400):
            page.set_viewport_size({"width": width, "height": 800})
            assert page.evaluate(f"{card}.scrollWidth <= {card}.clientWidth")
            assert width == page.evaluate("document.documentElement.scrollWidth")


def test_without_authentication_nothing_can_be_changed(browser: Browser, open_site: Site) -> None:
    """There are no buttons, the page says why, and the address refuses with how to enable it."""
    with opened(browser, open_site) as page:
        expect(row(page, MARKUP)).to_be_visible()
        assert 0 == page.get_by_role("button", name="Run").count()
        assert 0 == page.get_by_role("link", name="JSON").count()  # it would be refused
        expect(page.locator("#sched-refusal")).to_contain_text("--basic-auth")
    answer = open_site.act(MARKUP, "pause")
    assert (403, True) == (answer.code, "--basic-auth=USER:PASSWORD" in answer.text)
    assert JobStatus.ACTIVE == open_site.client.get(MARKUP).status


def test_a_form_from_elsewhere_is_refused(site: Site) -> None:
    """A browser that knows the password sends it along from any page: only our page's token is believed."""
    path = f"/schedules/{quote(MARKUP, safe='')}"
    token = site.token()
    without = site.ask(path, {"action": "pause"})
    cookie_only = site.ask(path, {"action": "pause"}, {"Cookie": f"_xsrf={token}"})
    wrong = site.ask(path, {"action": "pause", "_xsrf": site.token()}, {"Cookie": "_xsrf=2|00000000|aa|1"})
    assert [403, 403, 403] == [without.code, cookie_only.code, wrong.code]
    unknown = "Basic " + base64.b64encode(b"alice:guess").decode()
    stranger = site.ask(path, {"action": "pause"}, {"Authorization": unknown})
    assert 401 == stranger.code
    assert JobStatus.ACTIVE == site.client.get(MARKUP).status


def test_what_cannot_be_done_is_said(site: Site) -> None:
    """A run in the way, no such job, no such action: each with its code and its reason."""
    first, second = site.act("..x", "run"), site.act(MARKUP, "explode")
    assert (404, True) == (first.code, "there is no job '..x'" in json.loads(first.text)["message"])
    assert 400 == second.code
    site.client.add("held up", task="celery_sched.ping", schedule="0 3 1 1 *")
    run = site.client.run("held up")
    refused = site.act("held up", "run")
    assert (409, True) == (refused.code, "overlap is 'skip'" in json.loads(refused.text)["message"])
    plain = site.act("held up", "run", Accept="text/html")
    shown = plain.text.replace("&#39;", "'").replace("&#x27;", "'")
    assert (409, True) == (plain.code, "(overlap is 'skip')" in shown)
    site.client.cancel(run.id)
    without_script = site.act("held up", "run", Accept="text/html")
    assert (303, "/schedules/held%20up") == (without_script.code, without_script.headers["Location"])
    (latest, *_) = site.client.runs("held up")
    assert RunStatus.QUEUED == latest.status
    site.client.cancel(latest.id)
    site.client.delete("held up")
    audited = site.client._database.read(lambda tx, now: audit.newest(tx, "celery_sched", 20))
    assert ("flower:alice", "run", "held up") in {(line.actor, line.action, line.subject) for line in audited}


def test_a_run_is_cancelled_and_run_again(browser: Browser, site: Site) -> None:
    """Its page has the button that fits how it stands; what cannot be done is refused with the reason."""
    site.client.add("by button", task="celery_sched.ping", schedule="0 3 1 1 *")
    run = site.client.run("by button")
    address = f"/schedules/run/{run.id}"
    with opened(browser, site, address) as page:
        expect(page.get_by_role("button", name="Run again")).to_have_count(0)
        page.get_by_role("button", name="Cancel").click()
        expect(page.locator("#sched-run-status")).to_contain_text("cancelled", timeout=PATIENCE)
        expect(page.locator("#sched-run-status")).to_contain_text("flower:alice")
        page.get_by_role("button", name="Run again").click()
        expect(page.locator("#sched-run-status")).to_contain_text("queued", timeout=PATIENCE)
        expect(page.get_by_role("button", name="Cancel")).to_be_visible()
    again = site.client.get_run(run.id)
    assert (RunStatus.QUEUED, 2) == (again.status, again.attempt)
    assert 403 == site.ask(address, {"action": "retry"}).code
    token = site.token()
    form = {"action": "retry", "_xsrf": token}
    refused = site.ask(address, form, {"Cookie": f"_xsrf={token}", "Accept": "application/json"})
    assert (409, True) == (refused.code, "queued" in json.loads(refused.text)["message"])
    site.client.cancel(run.id)
    site.client.delete("by button")


def test_an_unknown_job_is_not_found(site: Site) -> None:
    """Its page says that there is none, with the name as text."""
    answer = site.ask("/schedules/%3Ci%3Enone")
    assert (404, True, False) == (answer.code, "&lt;i&gt;none" in answer.text, "<i>none" in answer.text)


def test_many_jobs_come_in_pages_and_are_found(browser: Browser, site: Site) -> None:
    """Fifty to a page; a search looks into names, tasks and descriptions, and finding nothing is said."""
    names = [f"many {n:02}" for n in range(60)]
    for name in names:
        site.client.add(name, task="celery_sched.ping", schedule="0 3 1 1 *", description=f"x{name}x")
    try:
        with opened(browser, site, "/schedules?q=many") as page:
            expect(page.locator("#sched-jobs tbody tr")).to_have_count(50)
            page.get_by_role("link", name="Next").click()
            expect(page.locator("#sched-jobs tbody tr")).to_have_count(10)
            page.get_by_role("searchbox").fill("XMANY 07X")
            page.get_by_role("button", name="Find").click()
            expect(page.locator("#sched-jobs tbody tr")).to_have_count(1)
            page.get_by_role("searchbox").fill("<nothing>")
            page.get_by_role("button", name="Find").click()
            expect(page.locator("#sched-none")).to_contain_text("“<nothing>”")
    finally:
        for name in names:
            site.client.delete(name)


def test_a_run_that_waits_says_for_what(browser: Browser, site: Site) -> None:
    """A queued run that cannot start yet: its page, the API and `sched runs show` say what it waits for."""
    site.client.create_pool("closed", 0)
    site.client.add("waiter", task="celery_sched.ping", schedule="none", pool="closed")
    run = site.client.run("waiter")
    try:
        with opened(browser, site, f"/schedules/run/{run.id}") as page:
            expect(page.locator("#sched-run-waits")).to_contain_text("pool 'closed'", timeout=PATIENCE)
        shown = json.loads(site.ask(f"/api/schedules/run/{run.id}").text)
        assert "pool 'closed'" in shown["waits"]
        assert site.deployment.sched("runs", "show", run.id, "--json").json == shown
    finally:
        site.client.cancel(run.id)
        site.client.delete("waiter")


def test_the_api_speaks_as_the_command_line(site: Site, open_site: Site) -> None:
    """`GET /api/schedules` is `sched jobs --json`; without authentication it is closed as Flower's API is."""
    assert site.deployment.sched("jobs", "--json").json == json.loads(site.ask("/api/schedules").text)
    assert [open_site.ask("/api/workers").code] * 2 == [open_site.ask("/api/schedules").code, 401]


def test_no_jobs_and_no_database(browser: Browser, deployment: Deployment) -> None:
    """Without a database the page says how to make one and makes none; without jobs, how to add the first."""
    with flower(deployment) as site, opened(browser, site) as page:
        expect(page.locator("#sched-problem")).to_contain_text("celery -A APP sched migrate")
        assert 503 == site.ask("/schedules").code
        assert 503 == site.ask("/api/schedules").code
        assert not (deployment.home / "sched.sqlite3").exists()
        assert 0 == deployment.sched("migrate").code
        expect(page.locator("#sched-empty")).to_contain_text("sched jobs add", timeout=PATIENCE)
        assert '\n    return "hello"\n' in page.locator("#sched-empty pre").first.inner_text()
        expect(page.locator("#sched-problems")).to_contain_text("no scheduler is alive")
        (deployment.home / "sched.sqlite3").rename(deployment.home / "away")
        expect(page.locator("#sched-problem")).to_be_visible(timeout=PATIENCE)
        (deployment.home / "away").rename(deployment.home / "sched.sqlite3")
        expect(page.locator("#sched-empty")).to_be_visible(timeout=PATIENCE)
        assert "Traceback" not in site.log.read_text()


def test_a_silent_database_stops_no_other_page(
    browser: Browser, deployment: Deployment, postgres: PostgresServer, postgresql_url: str, proxy: Proxy
) -> None:
    """While the database swallows bytes Flower answers everybody, our page says so, and it recovers."""
    schema.upgrade(postgresql_url)
    proxy.start(postgres.port)
    deployment.env["CELERY_SCHED_DATABASE_URL"] = postgresql_url.replace(
        f":{postgres.port}/", f":{proxy.port}/"
    )
    client = client_of(deployment, postgresql_url)
    client.add("waiting", task="celery_sched.ping", schedule="0 3 1 1 *")
    with flower(deployment, client=client) as site, opened(browser, site) as page:
        expect(row(page, "waiting")).to_be_visible()
        proxy.blackhole()
        codes: list[int] = []
        asking = [
            threading.Thread(target=lambda: codes.append(site.ask("/schedules").code)) for _ in range(8)
        ]
        begun = time.monotonic()
        for one in asking:
            one.start()
        while any(one.is_alive() for one in asking):
            before = time.monotonic()
            assert 200 == site.ask("/healthcheck").code
            assert time.monotonic() - before < 4, "Flower's loop waited for the database"
            asking[0].join(0.2)
            assert time.monotonic() - begun < 60
        assert [503] * 8 == codes
        expect(page.locator("#sched-problem")).to_contain_text("database", timeout=PATIENCE)
        proxy.passing()
        proxy.cut()
        expect(row(page, "waiting")).to_be_visible(timeout=60_000)
        assert "Traceback" not in site.log.read_text()


OWN_APP = """
from celery import Celery
import celery_sched

app = Celery("shop", broker="memory://")
app.conf.sched_home = {home!r}
celery_sched.setup(app)
"""


def test_somebody_elses_app_behind_a_prefix(browser: Browser, deployment: Deployment) -> None:
    """`celery -A shop flower --url-prefix=...` shows that app's jobs, and all links keep the prefix."""
    (deployment.folder / "shop.py").write_text(OWN_APP.format(home=str(deployment.home)))
    assert 0 == deployment.sched("migrate", app="shop").code
    made = deployment.sched(
        "jobs", "add", "buy/milk", "--task=celery_sched.ping", "--schedule=every 1h", app="shop"
    )
    assert 0 == made.code, made.err
    with flower(deployment, "--url-prefix=ops/flower", app="shop") as site:
        with opened(browser, site, "/ops/flower/schedules") as page:
            row(page, "buy/milk").get_by_role("link", name="buy/milk", exact=True).click()
            expect(page).to_have_url(f"{site.url}/ops/flower/schedules/buy%2Fmilk")
            page.get_by_role("button", name="Pause buy/milk").click()
            expect(page.locator("#sched-job-status")).to_contain_text(
                "paused by flower:alice", timeout=PATIENCE
            )
            page.locator(".page-eyebrow").get_by_role("link", name="Schedules").click()
            expect(row(page, "buy/milk")).to_contain_text("paused")
