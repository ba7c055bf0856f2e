"""Which hosts, ports and addresses pictures may come from."""

from __future__ import annotations

from ipaddress import ip_address

import pytest

from service.http.image_fetch import ImageHosts, is_public

HOSTS = ImageHosts("images.example.org, *.Example.com:8443, 10.0.0.5, [fd00:0::1]:8080")


@pytest.mark.parametrize(
    ("scheme", "host", "port"),
    [
        ("https", "images.example.org", 443),
        ("http", "IMAGES.example.org.", 80),
        ("https", "a.example.com", 8443),
        ("http", "a.b.EXAMPLE.com", 8443),
        ("http", "10.0.0.5", 80),
        ("http", "fd00::1", 8080),
    ],
)
def test_listed_hosts_are_allowed(scheme: str, host: str, port: int) -> None:
    assert HOSTS.allow(scheme, host, port)


@pytest.mark.parametrize(
    ("scheme", "host", "port"),
    [
        ("http", "images.example.org", 443),
        ("https", "images.example.org", 8443),
        ("https", "a.images.example.org", 443),
        ("https", "example.com", 8443),
        ("https", "evilexample.com", 8443),
        ("https", "a.example.com", 443),
        ("https", "images.example.org.evil.net", 443),
        ("http", "10.0.0.6", 80),
        ("http", "fd00::1", 80),
        ("http", "10.5", 80),
        ("http", "167772165", 80),
    ],
)
def test_other_hosts_and_ports_are_not(scheme: str, host: str, port: int) -> None:
    assert not HOSTS.allow(scheme, host, port)


@pytest.mark.parametrize("address", ["93.184.215.14", "2606:4700::1111", "64:ff9b::5db8:d70e"])
def test_public_addresses(address: str) -> None:
    assert is_public(ip_address(address))
    assert HOSTS.allow_address("http", address, 80)


@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1",
        "10.0.0.1",
        "172.16.0.1",
        "192.168.1.1",
        "100.64.0.1",
        "169.254.169.254",
        "0.0.0.0",
        "224.0.0.1",
        "239.1.2.3",
        "255.255.255.255",
        "::1",
        "::",
        "fe80::1",
        "fd00:ec2::254",
        "ff02::1",
        "ff0e::1",
        "::ffff:127.0.0.1",
        "::ffff:169.254.169.254",
        "64:ff9b::7f00:1",
        "2002:7f00:1::",
        "2001:0:7f00:1::",
    ],
)
def test_other_addresses_are_not_public(address: str) -> None:
    """RFC 6890's registries of special addresses, multicast, and IPv4 inside IPv6."""
    assert not is_public(ip_address(address))
    assert not HOSTS.allow_address("http", address, 80)


def test_a_private_address_is_listed_itself() -> None:
    assert HOSTS.allow_address("http", "10.0.0.5", 80)
    assert not HOSTS.allow_address("http", "10.0.0.5", 8080)
    assert HOSTS.allow_address("http", "fd00::1", 8080)
