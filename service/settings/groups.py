"""Bounds of settings, validators of values that clients must match, and groups in help and docs."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated

from pydantic import Field

MOST, DAY_SECONDS = 2**53 - 1, 86_400
"""Maximum count or size, which every JSON reader reads exactly, and maximum time."""
Seconds = Annotated[float, Field(ge=0.001, le=DAY_SECONDS)]
Count = Annotated[int, Field(gt=0, le=MOST)]
Processes = Annotated[int, Field(gt=0, le=1024)]
DeviceIndex = Annotated[int, Field(ge=0, le=1023)]
ModelBytes = Annotated[int, Field(ge=2**20, le=MOST)]
QueueTokens = Annotated[int, Field(ge=6, le=MOST)]
"""Half of them are the first, a letter's and the last token of one text."""
QueueTexts = Annotated[int, Field(ge=2, le=MOST)]


class Group(StrEnum):
    """Groups of settings, in the order of help."""

    MODEL = "Model"
    DEVICE = "Device"
    NETWORK = "Network"
    SECURITY = "Security"
    LIMITS = "Limits"
    TIME_LIMITS = "Time limits"
    HEALTH = "Health"
    LOGS = "Logs and traces"


@dataclass(frozen=True)
class Shown:
    """Presentation of a setting beside its name and description."""

    group: Group
    unit: str = ""
    """Unit of the value in capitals; empty for choices and switches."""
    default: str = ""
    """Default in words, if it is None or depends on the machine."""


_INDEX = re.compile(r"[0-9]{1,3}")
IMAGE_HOST = re.compile(r"(\[[0-9A-Fa-f:.]+\]|(?:\*\.)?[A-Za-z0-9._-]+)(?::([0-9]{1,5}))?")
"""Entry of `--image-hosts`: host, and port."""


def _each(listed: str | None) -> list[str]:
    return [] if listed is None else [item.strip() for item in listed.split(",")]


def _list_of(pattern: str, mistake: str) -> Callable[[str | None], str | None]:
    """Return a validator of a list whose items match a pattern."""

    def validate(listed: str | None) -> str | None:
        if not all(re.fullmatch(pattern, item) for item in _each(listed)):
            raise ValueError(mistake)
        return listed

    return validate


validate_api_keys = _list_of(r"[!-~]+", "a key is empty, or not of printable ASCII without spaces")
validate_origins = _list_of(
    r"\*|https?://[^/?#\s]+", "an origin is `*`, or a scheme and a host: https://example.org"
)
validate_hosts = _list_of(
    r"\*|[A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\]",
    "a host is `*`, or a name or an address without a port: [::1]",
)


def validate_image_hosts(hosts: str | None) -> str | None:
    """Return a list of hosts of pictures, if each is valid."""
    for host in _each(hosts):
        match = IMAGE_HOST.fullmatch(host)
        if match is None or not 0 < int(match[2] or 1) < 2**16:
            raise ValueError(
                "a host of pictures is a name, an address ([::1]), or *. and the end of a name; a "
                "port may follow: images.example.org, *.example.org, 10.0.0.5:8080"
            )
    return hosts


def validate_devices(devices: str | None) -> str | None:
    """Return a list of devices, if it is `all`, or has each index once."""
    listed = _each(devices)
    indices = {int(item) for item in listed if _INDEX.fullmatch(item)}
    if devices != "all" and len(indices) != len(listed):
        raise ValueError("devices are `all`, or different indices below 1000: 0,1")
    return devices


def validate_aliases(aliases: tuple[str, ...]) -> tuple[str, ...]:
    """Return the aliases, if each has the form ALIAS=NAME."""
    for alias in aliases:
        name, _, model = alias.partition("=")
        if not name or not model:
            raise ValueError(f"{alias!r} is not of the form ALIAS=NAME")
    return aliases
