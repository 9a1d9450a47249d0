"""Where a job of the type `http` may go: names, addresses, redirects, names that change their mind."""

from __future__ import annotations

import socket
from ipaddress import ip_address
from typing import Any

import pytest

from celery_sched.jobtypes.http_address import AddressRefused, Policy, is_public
from tests.jobtypes.carried import carry_out
from tests.jobtypes.site import Site


@pytest.mark.parametrize(
    "address",
    [
        *("127.0.0.1", "127.8.8.8", "0.0.0.0", "10.1.2.3", "172.16.0.1", "192.168.1.1", "100.64.0.1"),
        *("169.254.169.254", "224.0.0.1", "255.255.255.255", "192.0.2.1", "::1", "::", "fe80::1", "fc00::1"),
        *("fd00:ec2::254", "ff02::1", "fec0::1", "::ffff:127.0.0.1", "::ffff:10.0.0.1", "64:ff9b::7f00:1"),
        *("2002:7f00:1::", "2002:a9fe:a9fe::", "2001:0:4136:e378:8000:63bf:80ff:fffe"),
    ],
)
def test_private_addresses(address: str) -> None:
    """Loopback, private, link-local, metadata and multicast addresses are no public ones, however written."""
    assert not is_public(ip_address(address))
    assert not Policy(None, False).allows("example.com", ip_address(address))
    assert Policy(None, True).allows("example.com", ip_address(address))


@pytest.mark.parametrize("address", ["93.184.216.34", "1.1.1.1", "2606:4700::1111", "::ffff:1.1.1.1"])
def test_public_addresses(address: str) -> None:
    """Everybody's addresses may be called without a setting."""
    assert is_public(ip_address(address))
    assert Policy(None, False).allows("example.com", ip_address(address))


@pytest.mark.parametrize(
    ("hosts", "host", "address", "allowed"),
    [
        (("example.com",), "example.com", "1.1.1.1", True),
        (("example.com",), "example.org", "1.1.1.1", False),
        (("example.com",), "example.com", "10.0.0.1", True),
        (("*.example.com",), "a.example.com", "10.0.0.1", True),
        (("*.example.com",), "example.com", "1.1.1.1", False),
        (("*",), "example.org", "1.1.1.1", True),
        (("*",), "example.org", "10.0.0.1", False),
        (("*", "intern"), "intern", "10.0.0.1", True),
        (("10.0.0.0/8",), "intern", "10.0.0.1", True),
        (("10.0.0.0/8",), "intern", "11.0.0.1", False),
        (("10.0.0.0/8",), "10.0.0.1", "::ffff:10.0.0.1", True),
        ((), "example.org", "1.1.1.1", False),
    ],
)
def test_the_list_of_hosts(hosts: tuple[str, ...], host: str, address: str, allowed: bool) -> None:
    """With a list only what it names may be called, then private addresses too; `*` names nobody's."""
    assert allowed == Policy(hosts, False).allows(host, ip_address(address))


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "127.1", "2130706433", "0x7f000001", "[::1]"])
def test_this_machine_is_refused(site: Site, host: str) -> None:
    """However this machine is written, it is not called unless it is allowed."""
    site.answers["/"] = (200, {}, b"inside")
    with pytest.raises(AddressRefused, match="may not call"):
        carry_out("http", {"url": site.url(host=host)})
    assert [] == site.asked
    if host not in ("[::1]",):
        assert 200 == carry_out("http", {"url": site.url(host=host)}, http_allow_private=True)["status"]


def test_a_host_that_is_not_on_the_list_is_not_looked_up() -> None:
    """With a list of names, others do not even reach the resolver, which could tell the outside."""
    with pytest.raises(
        AddressRefused, match=r"may not call secret-data\.example\.org: .* has api\.example\.com"
    ):
        carry_out("http", {"url": "http://secret-data.example.org/"}, http_allowed_hosts=["api.example.com"])


def test_redirects_to_private_addresses(site: Site) -> None:
    """A redirect from an allowed host into this machine is refused, and not asked."""
    with Site() as inside:
        inside.answers["/"] = (200, {}, b"inside")
        site.answers["/"] = (302, {"Location": inside.url(host="localhost")}, b"")
        with pytest.raises(AddressRefused, match="may not call localhost"):
            carry_out("http", {"url": site.url()}, http_allowed_hosts=["127.0.0.1"])
        assert (1, 0) == (len(site.asked), len(inside.asked))


def test_a_name_that_changes_its_mind(monkeypatch: pytest.MonkeyPatch) -> None:
    """The connection goes to the address that was checked: a name is looked up once, not twice."""
    with Site("127.0.0.2") as checked:
        checked.answers["/"] = (200, {}, b"checked")
        looked_up = []
        real = socket.getaddrinfo

        def rebinding(host: Any, *args: Any, **kwargs: Any) -> Any:
            if host != "rebind.example.com":
                return real(host, *args, **kwargs)
            looked_up.append(host)
            return real("127.0.0.2" if len(looked_up) == 1 else "127.0.0.1", *args, **kwargs)

        monkeypatch.setattr(socket, "getaddrinfo", rebinding)
        url = checked.url(host="rebind.example.com")
        result = carry_out("http", {"url": url}, http_allowed_hosts=["127.0.0.2/32"])
    assert ("checked", 1) == (result["body"], len(looked_up))
    assert f"rebind.example.com:{checked.port}" == checked.asked[0].headers["Host"]


def test_of_several_addresses_only_those_allowed(monkeypatch: pytest.MonkeyPatch, site: Site) -> None:
    """A name with an allowed and a private address is called at the allowed one, or not at all."""
    with Site("127.0.0.3") as private:
        both = [
            (socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, private.port))
            for address in ("127.0.0.3", "127.0.0.4")
        ]
        monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: both)
        with pytest.raises(ConnectionError):  # nobody listens at 127.0.0.4
            carry_out("http", {"url": private.url(host="both.test")}, http_allowed_hosts=["127.0.0.4/32"])
        assert [] == private.asked


def test_a_name_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is a ConnectionError, as no connection is: a job's `retry_on` names one thing for both."""

    def unknown(*_: object, **__: object) -> None:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    with pytest.raises(ConnectionError, match=r"^gone\.invalid: Name or service not known$"):
        carry_out("http", {"url": "http://gone.invalid/"})


def test_a_resolver_that_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    """The time limit holds while a name is looked up, too."""
    import threading

    release = threading.Event()
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: release.wait(30) and [])
    try:
        with pytest.raises(TimeoutError, match=r"was not looked up within 0\.3 s"):
            carry_out("http", {"url": "http://example.com/", "timeout": 0.3})
    finally:
        release.set()
