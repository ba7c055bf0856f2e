"""Bounds of settings, and their presentation in help and docs: group, unit, default in words."""

from __future__ import annotations

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
