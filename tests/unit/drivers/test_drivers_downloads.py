"""From where something is fetched for a lessee: decided by address, not by name alone."""

from __future__ import annotations

import ipaddress
import socket
from typing import Any

import pytest
import yarl

from bullpen.drivers.downloads import FetchRefused, Sources, checked_addresses

PUBLIC = "93.184.216.34"


def refusal(entries: tuple[str, ...], host: str, address: str) -> str:
    return Sources.of(entries).refusal(host, ipaddress.ip_address(address))


@pytest.mark.parametrize(
    ("entries", "host", "address"),
    [
        pytest.param(("example.org",), "example.org", PUBLIC, id="a name"),
        pytest.param(("example.org",), "EXAMPLE.org.", PUBLIC, id="written otherwise"),
        pytest.param(("*.example.org",), "a.b.example.org", PUBLIC, id="a name below"),
        pytest.param(("images.lab",), "images.lab", "10.1.2.3", id="a private address by name"),
        pytest.param(("10.0.0.0/8",), "anything", "10.1.2.3", id="a network"),
        pytest.param(("10.1.2.3",), "10.1.2.3", "10.1.2.3", id="an address"),
        pytest.param(("*",), "anything", PUBLIC, id="everything public"),
        pytest.param(("2001:db8::/32",), "x", "2001:db8::1", id="a network of IPv6"),
    ],
)
def test_what_a_class_lists_is_allowed(entries: tuple[str, ...], host: str, address: str) -> None:
    assert refusal(entries, host, address) == ""


@pytest.mark.parametrize(
    ("entries", "host", "address"),
    [
        pytest.param((), "example.org", PUBLIC, id="nothing is listed"),
        pytest.param(("example.org",), "evil-example.org", PUBLIC, id="a name that ends alike"),
        pytest.param(("*.example.org",), "example.org", PUBLIC, id="the name above"),
        pytest.param(("*.example.org",), "evilexample.org", PUBLIC, id="no dot between"),
        pytest.param(("*",), "x", "10.1.2.3", id="a private address is not public"),
        pytest.param(("*",), "x", "100.64.0.1", id="nor is a carrier's"),
        pytest.param(("*",), "x", "fd00::1", id="nor a local one of IPv6"),
        pytest.param(("10.0.0.0/8",), "x", "11.0.0.1", id="beside the network"),
    ],
)
def test_what_a_class_does_not_list_is_refused(
    entries: tuple[str, ...], host: str, address: str
) -> None:
    assert "fetchFrom" in refusal(entries, host, address)


@pytest.mark.parametrize(
    "address",
    ["127.0.0.1", "127.9.9.9", "::1", "::ffff:127.0.0.1", "0.0.0.0", "::", "169.254.169.254",
     "fe80::1", "::ffff:169.254.1.1", "224.0.0.1", "ff02::1"],
)  # fmt: skip
def test_some_addresses_are_never_fetched_from(address: str) -> None:
    everything = ("*", "name", "0.0.0.0/0", "::/0", address)
    assert "never" in refusal(everything, "name", address)


async def test_one_bad_address_among_good_ones_refuses_the_name(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def resolved(*_: Any, **__: Any) -> list[Any]:
        return [
            (socket.AF_INET, socket.SOCK_STREAM, 6, "", (place, 80))
            for place in (PUBLIC, "127.0.0.1")
        ]

    monkeypatch.setattr(socket, "getaddrinfo", resolved)
    with pytest.raises(FetchRefused, match=r"127\.0\.0\.1 is a loopback address"):
        await checked_addresses(yarl.URL("http://rebinding.example/x"), Sources.of(("*",)))


async def test_a_refusal_repeats_no_secret() -> None:
    url = yarl.URL("http://user:password@127.0.0.1/x?token=secret")
    with pytest.raises(FetchRefused) as caught:
        await checked_addresses(url, Sources())
    assert "secret" not in str(caught.value)
    assert "password" not in str(caught.value)
