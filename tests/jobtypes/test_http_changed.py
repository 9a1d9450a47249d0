"""The sensor ``http_changed``: what counts as a change, and what is no answer."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from celery_sched.errors import InvalidValue
from celery_sched.jobtypes.http_address import AddressRefused
from celery_sched.jobtypes.http_changed import NotLookedAt
from tests.jobtypes.sensing import Watch, make_bench
from tests.jobtypes.site import Site
from tests.store.world import Bench


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    made = make_bench(tmp_path, http_allowed_hosts=["127.0.0.1"])
    yield made
    made.close()


def answer(site: Site, content: bytes, status: int = 200, **headers: str) -> None:
    """From now on the page is this."""
    site.answers["/page"] = (
        status,
        {name.replace("_", "-"): text for name, text in headers.items()},
        content,
    )


@pytest.fixture
def watch(bench: Bench, site: Site) -> Watch:
    """A sensor that has looked once."""
    answer(site, b"one", ETag='"1"', Last_Modified="Mon, 01 Jan 2001 00:00:00 GMT")
    made = Watch(bench, "http_changed", url=site.url("/page?token=t"))
    found = made.look()
    assert (0, True, 200) == (found["published"], found["first"], found["status"])
    return made


def test_changed(watch: Watch, site: Site) -> None:
    """A page with another tag and another content is published once, with what it was before."""
    assert 0 == watch.look()["published"]
    answer(site, b"two!", ETag='"2"')
    assert 1 == watch.look()["published"]
    assert 0 == watch.look()["published"]
    assert [
        {
            "url": site.url("/page"),
            "status": 200,
            "etag": '"2"',
            "last_modified": None,
            "sha256": hashlib.sha256(b"two!").hexdigest(),
            "size": 4,
            "previous": {
                "etag": '"1"',
                "last_modified": "Mon, 01 Jan 2001 00:00:00 GMT",
                "sha256": hashlib.sha256(b"one").hexdigest(),
                "size": 3,
            },
        }
    ] == watch.events()


def test_asks_whether_it_has_changed(watch: Watch, site: Site) -> None:
    """What is known is sent along, and 304 means as it was; nothing is written then."""
    version = watch.version()
    answer(site, b"", 304)
    assert {"published": 0, "status": 304} == watch.look()
    sent = site.asked[-1].headers
    assert ('"1"', "Mon, 01 Jan 2001 00:00:00 GMT") == (sent["If-None-Match"], sent["If-Modified-Since"])
    assert version == watch.version()


def test_same_tag(watch: Watch, site: Site) -> None:
    """With the same tag it is the same, whatever else comes (a time of day in the page)."""
    answer(site, b"other", ETag='"1"')
    assert 0 == watch.look()["published"]


def test_other_tag_same_content(watch: Watch, site: Site) -> None:
    """Servers behind one name may have tags of their own: the content decides."""
    answer(site, b"one", ETag='"of the other server"')
    assert 0 == watch.look()["published"]
    answer(site, b"one", ETag='"1"')
    assert 0 == watch.look()["published"]


def test_content_alone(watch: Watch, site: Site) -> None:
    """With ``compare: body`` tags mean nothing, and no condition is sent."""
    watch.kwargs["compare"] = "body"
    answer(site, b"two", ETag='"1"')
    assert 1 == watch.look()["published"]
    assert "If-None-Match" not in site.asked[-1].headers


def test_without_tags(bench: Bench, site: Site) -> None:
    """A server that names no version is looked at by its content."""
    answer(site, b"one")
    watch = Watch(bench, "http_changed", url=site.url("/page"), start="beginning", keep=2)
    assert 1 == watch.look()["published"]
    answer(site, b"two")
    watch.look()
    assert [("on", None), ("tw", hashlib.sha256(b"one").hexdigest())] == [
        (event["body"], event["previous"] and event["previous"]["sha256"]) for event in watch.events()
    ]


def test_head(bench: Bench, site: Site) -> None:
    """With HEAD the tags decide; a server that has none is refused."""
    answer(site, b"", ETag='"1"')
    watch = Watch(bench, "http_changed", url=site.url("/page"), method="HEAD")
    watch.look()
    answer(site, b"", Last_Modified="Tue, 02 Jan 2001 00:00:00 GMT")
    assert 1 == watch.look()["published"]
    assert {"HEAD"} == {asked.method for asked in site.asked}
    answer(site, b"")
    with pytest.raises(NotLookedAt, match="neither ETag nor Last-Modified"):
        watch.look()


@pytest.mark.parametrize("status", [404, 500, 204, 304])
def test_no_answer_is_no_change(watch: Watch, site: Site, status: int) -> None:
    """An error fails the run and is forgotten: the page that comes back is the page that was there."""
    watch.kwargs["compare"] = "body"  # so that 304 is no answer to what was asked
    answer(site, b"broken", status)
    with pytest.raises(NotLookedAt, match=f"answered {status}"):
        watch.look()
    answer(site, b"one", ETag='"1"')
    assert 0 == watch.look()["published"]


def test_half_an_answer_is_no_change(watch: Watch, site: Site) -> None:
    """A content that breaks off is not looked at."""

    def half(talk: Any) -> None:
        talk.send_response(200)
        talk.send_header("Content-Length", "1000")
        talk.end_headers()
        talk.wfile.write(b"half")

    site.answers["/page"] = half
    with pytest.raises(NotLookedAt, match="996 bytes before"):
        watch.look()


def test_trickle_ends(watch: Watch, site: Site) -> None:
    """A server that sends a byte now and then does not hold the run beyond its time-out."""

    def trickle(talk: Any) -> None:
        talk.send_response(200)
        talk.end_headers()
        try:
            for _ in range(2000):
                talk.wfile.write(b"x")
                talk.wfile.flush()
                time.sleep(0.05)
        except OSError:
            talk.close_connection = True

    site.answers["/page"] = trickle
    began = time.monotonic()
    with pytest.raises(NotLookedAt, match="its time was over"):
        watch.look(timeout="1s")
    assert time.monotonic() - began < 10


def test_too_large(watch: Watch, site: Site) -> None:
    """A content larger than allowed is not looked at."""
    answer(site, b"x" * 101)
    with pytest.raises(NotLookedAt, match="longer than 100 bytes"):
        watch.look(most=100)


def test_redirect(bench: Bench, site: Site) -> None:
    """A redirect is followed; another server gets none of the headers; a circle ends."""
    with Site() as other:
        answer(other, b"there")
        site.answers["/here"] = (302, {"Location": other.url("/page")}, b"")
        watch = Watch(bench, "http_changed", url=site.url("/here"), headers={"Authorization": "Bearer b"})
        assert 200 == watch.look()["status"]
        assert "Bearer b" == site.asked[0].headers["Authorization"]
        assert "Authorization" not in other.asked[0].headers
    site.answers["/here"] = (302, {"Location": "/here"}, b"")
    with pytest.raises(NotLookedAt, match="more than 5 times"):
        watch.look()


def test_redirect_to_where_nobody_may_go(tmp_path: Path) -> None:
    """The addresses of a redirect are checked as the first one's."""
    bench = make_bench(tmp_path, http_allowed_hosts=["127.0.0.1"])
    try:
        with Site() as site, Site(address="127.0.0.2") as inner:
            site.answers["/here"] = (302, {"Location": inner.url("/page")}, b"")
            watch = Watch(bench, "http_changed", url=site.url("/here"))
            with pytest.raises(AddressRefused, match=r"127\.0\.0\.2"):
                watch.look()
            assert [] == inner.asked
    finally:
        bench.close()


def test_secret_of_the_url_is_not_stored(bench: Bench, site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """A key in the address stands in no table: neither in the event nor in what was seen."""
    from celery_sched import secrets
    from celery_sched.store.tables import sensor

    key = "a-key-that-nobody-reads"
    monkeypatch.setenv("CELERY_SCHED_SECRET_URL_KEY", key)
    site.answers[f"/{key}"] = (200, {}, f"the page of {key}".encode())
    watch = Watch(bench, "http_changed", url=site.url("/${secret:URL_KEY}"), start="beginning", keep=100)
    run = watch.begun()
    database = bench.database

    class ThisDatabase(type(watch.kind)):  # type: ignore[misc]
        """The type, on the database of the test."""

        def run(self, config: Any, ctx: Any) -> Any:
            return self.sense(config, ctx, database)

    @secrets.kept
    def body() -> Any:
        return ThisDatabase().carry_out(watch.kwargs, watch.context(run), bench.config, None)

    assert 1 == body()["published"]
    (event,) = watch.events()
    assert (site.url("/***"), "the page of ***") == (event["url"], event["body"])
    stored = database.read(lambda tx, now: str(tx.execute(sensor.select()).all()))
    assert "***" in stored
    assert key not in stored


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"url": "ftp://x/"}, "url"),
        ({"url": "http://u:p@x/"}, "url"),
        ({"method": "POST"}, "method"),
        ({"method": "HEAD", "compare": "body"}, "HEAD brings no content"),
        ({"method": "HEAD", "keep": 5}, "keep"),
        ({"headers": {"Host": "x"}}, "headers"),
        ({"timeout": "2h"}, "timeout"),
        ({"topic": ""}, "topic"),
    ],
)
def test_refused_when_defined(bench: Bench, given: dict[str, Any], named: str) -> None:
    """A sensor that cannot work is not defined; the message names the field."""
    with pytest.raises(InvalidValue, match=named):
        Watch(bench, "http_changed", **{"url": "http://x/", **given})
