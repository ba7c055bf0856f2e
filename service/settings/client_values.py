"""Validators of settings that clients must match: API keys, origins, hosts and aliases."""

from __future__ import annotations

import re

_KEY = re.compile(r"[!-~]+")
_ORIGIN = re.compile(r"\*|https?://[^/?#\s]+")
IMAGE_HOST = re.compile(r"(\[[0-9A-Fa-f:.]+\]|(?:\*\.)?[A-Za-z0-9._-]+)(?::([0-9]{1,5}))?")
"""Entry of `--image-hosts`: host, and port."""
_HOST = re.compile(r"\*|[A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\]")


def keys_to_send(keys: str | None) -> str | None:
    """Return a list of API keys, if clients can send each key."""
    if not all(_KEY.fullmatch(key) for key in _each(keys)):
        raise ValueError("a key is empty, or not of printable ASCII without spaces")
    return keys


def origins_to_meet(origins: str | None) -> str | None:
    """Return a list of origins, if each is valid."""
    if not all(_ORIGIN.fullmatch(origin) for origin in _each(origins)):
        raise ValueError("an origin is `*`, or a scheme and a host: https://example.org")
    return origins


def hosts_to_meet(hosts: str | None) -> str | None:
    """Return a list of hosts, if each is valid."""
    if not all(_HOST.fullmatch(host) for host in _each(hosts)):
        raise ValueError("a host is `*`, or a name or an address without a port: [::1]")
    return hosts


def image_hosts_to_reach(hosts: str | None) -> str | None:
    """Return a list of hosts of pictures, if each is valid."""
    for host in _each(hosts):
        match = IMAGE_HOST.fullmatch(host)
        if match is None or not 0 < int(match[2] or 1) < 2**16:
            raise ValueError(
                "a host of pictures is a name, an address ([::1]), or *. and the end of a name; a "
                "port may follow: images.example.org, *.example.org, 10.0.0.5:8080"
            )
    return hosts


def aliases_to_meet(aliases: tuple[str, ...]) -> tuple[str, ...]:
    """Return the aliases, if each has the form ALIAS=NAME."""
    for alias in aliases:
        name, _, model = alias.partition("=")
        if not name or not model:
            raise ValueError(f"{alias!r} is not of the form ALIAS=NAME")
    return aliases


def _each(listed: str | None) -> list[str]:
    return [] if listed is None else [item.strip() for item in listed.split(",")]
