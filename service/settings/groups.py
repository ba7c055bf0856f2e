"""How help and docs show a setting: its group, its unit, and its default in words."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Group(StrEnum):
    """The groups of settings, in the order of help."""

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
    """What help adds to a setting's name, description and value."""

    group: Group
    unit: str = ""
    """Of its value, in capitals; a choice shows its values, and a switch none."""
    default: str = ""
    """In words, where it is None or the machine's."""
