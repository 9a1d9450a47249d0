"""The job type `http` against real servers: what is sent, what is a success, what is bounded."""

from __future__ import annotations

import json
import socket
import ssl
import subprocess
import threading
from pathlib import Path
from typing import Any

import pytest

from celery_sched.errors import InvalidValue
from celery_sched.jobtypes import registry
from celery_sched.jobtypes.base import JobType
from celery_sched.jobtypes.http import RedirectRefused, UnexpectedStatus
from tests.jobtypes.carried import RUN, carry_out
from tests.jobtypes.site import Site

LOCAL = ["127.0.0.1"]


def call(url: str, hosts: list[str] | None = LOCAL, **kwargs: Any) -> Any:
    """The result of a request; only 127.0.0.1 may be called."""
    return carry_out("http", {"url": url, **kwargs}, http_allowed_hosts=hosts)


def test_a_request_says_whose_it_is(site: Site) -> None:
    """Run, attempt, fencing number and an idempotency key that is the same for every attempt are sent."""
    site.answers["/ok"] = (
        200,
        {"Content-Type": "application/json", "ETag": '"1"', "X-Own": "x"},
        b'{"a": 1}',
    )
    result = call(site.url("/ok?x=1"), query={"y": ["2", 3], "z": "ä &"})
    assert {"status": 200, "body": {"a": 1}, "truncated": False} == {
        key: result[key] for key in ("status", "body", "truncated")
    }
    assert {"content-type", "content-length", "date", "etag"} == result["headers"].keys()
    assert site.url("/ok") == result["url"]
    asked = site.asked[0]
    assert ("GET", "/ok?x=1&y=2&y=3&z=%C3%A4+%26", "") == (asked.method, asked.path, asked.body)
    sent = {name: asked.headers.get(name) for name in ("Idempotency-Key", "Sched-Run", "Sched-Attempt")}
    assert {"Idempotency-Key": RUN, "Sched-Run": RUN, "Sched-Attempt": "2"} == sent
    assert ("7", "job", "2026-01-31T09:00:00+00:00") == tuple(
        asked.headers[name] for name in ("Sched-Fence", "Sched-Job", "Sched-Scheduled-For")
    )


@pytest.mark.parametrize(
    ("kwargs", "body", "kind"),
    [
        ({"body": "ä"}, "ä", None),
        ({"json": {"a": [1, "ä"]}}, '{"a": [1, "ä"]}', "application/json"),
        ({"form": {"a": "1 2", "b": [3, "x"]}}, "a=1+2&b=3&b=x", "application/x-www-form-urlencoded"),
        ({"body": "<a/>", "headers": {"content-type": "text/xml"}}, "<a/>", "text/xml"),
    ],
)
def test_bodies(site: Site, kwargs: dict[str, Any], body: str, kind: str | None) -> None:
    """A body is a text, JSON or a form; a header of the job's own wins."""
    site.answers["/"] = (204, {}, b"")
    call(site.url(), method="post", idempotency_key=False, **kwargs)
    asked = site.asked[0]
    headers = {name.lower(): text for name, text in asked.headers.items()}
    assert ("POST", body, kind) == (asked.method, asked.body, headers.get("content-type"))
    assert "idempotency-key" not in headers


@pytest.mark.parametrize(
    ("expect", "status", "succeeds"),
    [
        (None, 204, True),
        (None, 302, False),
        (None, 404, False),
        (404, 404, True),
        ("200-299", 300, False),
        ([200, "500-599"], 503, True),
        ([200, "500-599"], 404, False),
        (302, 302, True),
    ],
)
def test_what_is_a_success(site: Site, expect: Any, status: int, succeeds: bool) -> None:
    """An answer whose status is not expected fails the run, and says what the server said."""
    site.answers["/"] = (status, {}, b"" if status == 204 else b"because of this")
    if succeeds:
        assert status == call(site.url(), expect=expect, redirects=0)["status"]
        return
    with pytest.raises(UnexpectedStatus, match=f"answered {status} .*, expected .*: because of this"):
        call(site.url("/?token=x"), expect=expect, redirects=0)


def test_a_long_answer_is_cut(site: Site) -> None:
    """No more than `keep` bytes of an answer are read, however long it is; that it was cut is said."""
    endless = threading.Event()

    def pour(handler: Any) -> None:
        handler.send_response(200)
        handler.end_headers()
        try:
            while True:
                handler.wfile.write(b"x" * 65536)
        except OSError:
            endless.set()

    site.answers["/"] = pour
    result = call(site.url(), keep=1000)
    assert (1000, True) == (len(result["body"]), result["truncated"])
    assert endless.wait(10), "the connection was not closed"


def drip(handler: Any) -> None:
    """Never silent for long, never done."""
    handler.send_response(200)
    handler.end_headers()
    stop = threading.Event()
    try:
        while not stop.wait(0.1):
            handler.wfile.write(b"x")
            handler.wfile.flush()
    except OSError:
        stop.set()


def drip_headers(handler: Any) -> None:
    """Headers that never end."""
    stop = threading.Event()
    try:
        while not stop.wait(0.1):
            handler.wfile.write(b"x")
            handler.wfile.flush()
    except OSError:
        stop.set()


@pytest.mark.parametrize("slow", [drip, drip_headers])
def test_the_time_limit_is_for_all_of_it(site: Site, slow: Any) -> None:
    """A server that sends a byte now and then does not stretch the time limit."""
    site.answers["/"] = slow
    with pytest.raises(TimeoutError, match="no whole answer within 1 s"):
        call(site.url(), timeout="1s")


def test_a_server_that_says_nothing() -> None:
    """A server that takes the connection and is silent ends with the time limit, TLS or not."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        for scheme in ("http", "https"):
            with pytest.raises(TimeoutError, match=r"no whole answer within 0\.5 s"):
                call(f"{scheme}://127.0.0.1:{silent.getsockname()[1]}/", timeout=0.5)


def test_a_server_that_is_not_there() -> None:
    """A refused connection names the URL, without its query."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    with pytest.raises(ConnectionError) as caught:
        call(f"http://127.0.0.1:{port}/path?token=x")
    assert str(caught.value).startswith(f"http://127.0.0.1:{port}/path: ")


def test_redirects_are_followed(site: Site) -> None:
    """A redirect is followed: a POST becomes a GET without a body after 303, and stays after 307."""
    site.answers |= {
        "/303": (303, {"Location": "/end"}, b""),
        "/307": (307, {"Location": site.url("/end")}, b""),
        "/end": (200, {}, b"here"),
    }
    for path in ("/303", "/307"):
        assert ("here", site.url("/end")) == (
            (result := call(site.url(path), method="POST", json=[1]))["body"],
            result["url"],
        )
    ends = [(asked.method, asked.body) for asked in site.asked if asked.path == "/end"]
    assert [("GET", ""), ("POST", "[1]")] == ends


def test_redirects_end(site: Site) -> None:
    """A circle of redirects ends at the job's limit."""
    site.answers["/"] = (302, {"Location": "/"}, b"")
    with pytest.raises(RedirectRefused, match="redirected more than 3 times"):
        call(site.url(), redirects=3)
    assert 4 == len(site.asked)


@pytest.mark.parametrize("target", ["file:///etc/passwd", "ftp://127.0.0.1/", "http://u:p@127.0.0.1/", ""])
def test_redirects_to_what_is_no_web_server(site: Site, target: str) -> None:
    """A redirect to another scheme, or to nothing, fails the run."""
    site.answers["/"] = (302, {"Location": target} if target else {}, b"")
    with pytest.raises(RedirectRefused):
        call(site.url())


def test_another_server_gets_no_credentials(site: Site) -> None:
    """Redirected to another server, what was meant for the first one is not sent along."""
    with Site() as other:
        other.answers["/"] = (200, {}, b"there")
        site.answers["/"] = (302, {"Location": other.url()}, b"")
        headers = {"Authorization": "Bearer x", "Cookie": "a=b", "X-Plain": "y"}
        assert "there" == call(site.url(), headers=headers)["body"]
        assert headers == {name: site.asked[0].headers.get(name) for name in headers}
        got = {name: other.asked[0].headers.get(name) for name in headers}
    assert {"Authorization": None, "Cookie": None, "X-Plain": "y"} == got


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A key and a certificate for 127.0.0.1 that signs itself."""
    folder = tmp_path_factory.mktemp("tls")
    made = folder / "both.pem"
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=test"),
            *("-addext", "subjectAltName=IP:127.0.0.1"),
            *("-keyout", folder / "key.pem", "-out", folder / "cert.pem"),
        ],
        check=True,
        capture_output=True,
    )
    made.write_text((folder / "key.pem").read_text() + (folder / "cert.pem").read_text())
    return made


def test_certificates_are_checked(certificate: Path) -> None:
    """A server whose certificate nobody vouches for is not talked to; `ca_file` names who does."""
    with Site(certificate=certificate) as site:
        site.answers["/"] = (200, {}, b"safe")
        with pytest.raises(ConnectionError, match="CERTIFICATE_VERIFY_FAILED"):
            call(site.url())
        trusted = {"ca_file": str(certificate.with_name("cert.pem"))}
        assert "safe" == call(site.url(), **trusted)["body"]
        # the certificate is for 127.0.0.1 and for nobody else
        with pytest.raises(ConnectionError, match="CERTIFICATE_VERIFY_FAILED"):
            call(site.url(host="localhost"), ["localhost"], **trusted)
        plain = Site()
        with plain:
            site.answers["/down"] = (302, {"Location": plain.url()}, b"")
            with pytest.raises(RedirectRefused, match="which is not encrypted"):
                call(site.url("/down"), **trusted)
            assert [] == plain.asked
            plain.answers["/up"] = (302, {"Location": site.url()}, b"")
            assert "safe" == call(plain.url("/up"), **trusted)["body"]
    assert ssl.HAS_TLSv1_3


@pytest.mark.parametrize(
    ("kwargs", "said"),
    [
        ({}, "http: url None is refused: it must be given"),
        ({"url": "ftp://example.com/"}, "an http:// or https:// URL with a host"),
        ({"url": "http://"}, "an http:// or https:// URL with a host"),
        ({"url": "http://a b/"}, "without blanks"),
        ({"url": "http://u:p@example.com/"}, "no user or password in a URL"),
        ({"url": "http://e.com/", "metod": "GET"}, "Did you mean method?"),
        ({"url": "http://e.com/", "method": "PSOT"}, "Did you mean POST?"),
        ({"url": "http://e.com/", "expect": 99}, "status codes"),
        ({"url": "http://e.com/", "expect": "299-200"}, "status codes"),
        ({"url": "http://e.com/", "expect": []}, "at least one"),
        ({"url": "http://e.com/", "headers": {"a b": "c"}}, "a header's name"),
        ({"url": "http://e.com/", "headers": {"Host": "c"}}, "a header's name"),
        ({"url": "http://e.com/", "headers": {"X": "a\r\nY: b"}}, "one line"),
        ({"url": "http://e.com/", "auth": {"user": "x"}}, "user and password"),
        ({"url": "http://e.com/", "body": "x"}, "a GET has no body"),
        ({"url": "http://e.com/", "method": "PUT", "body": "x", "json": 1}, "one body at most"),
        ({"url": "http://e.com/", "timeout": "2d"}, "at most 1d"),
        ({"url": "http://e.com/", "keep": -1}, "a whole number from 0 to"),
        ({"url": "http://e.com/", "ca_file": "secret:a b"}, "secret:NAME"),
    ],
)
def test_what_is_refused(kwargs: dict[str, Any], said: str) -> None:
    """A wrong field is named with its value and what is allowed, before the job is stored."""
    kind = registry.find("http")
    assert isinstance(kind, JobType)
    with pytest.raises(InvalidValue) as caught:
        kind.read(kwargs)
    assert said in str(caught.value)
    assert str(caught.value).startswith("http: ")


def test_an_event_is_the_body(site: Site) -> None:
    """A job that an event starts, and that has no body of its own, sends the event."""
    site.answers["/"] = (200, {}, b"")
    event = {"topic": "orders", "payload": {"id": 1}}
    carry_out("http", {"url": site.url(), "method": "POST", "event": event}, http_allowed_hosts=LOCAL)
    assert event == json.loads(site.asked[0].body)
