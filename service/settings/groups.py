"""Presentation of settings in help and docs: group, unit, and default in words."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


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
