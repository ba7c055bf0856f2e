"""Figures of a run, each a line of the table and an object in JSON."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

BOUNDS = {"≥": float.__ge__, "≤": float.__le__}


@dataclass(frozen=True)
class Goal:
    """Bound that a figure has to reach."""

    bound: Literal["≥", "≤"]
    value: float

    def __str__(self) -> str:
        return f"{self.bound} {number(self.value)}"


@dataclass(frozen=True)
class Figure:
    """Measured value, or the reason why it was not measured."""

    name: str
    value: float | str | None
    """Measured value; None if it was not measured, and then the note is the reason."""
    unit: str = ""
    goal: Goal | None = None
    note: str = ""
    details: Mapping[str, Any] = field(default_factory=dict)
    """Values behind the figure, for JSON."""

    @property
    def met(self) -> bool | None:
        """Whether the goal is reached; None without a goal or without a number."""
        if self.goal is None or not isinstance(self.value, int | float):
            return None
        return BOUNDS[self.goal.bound](float(self.value), self.goal.value)

    @property
    def cells(self) -> tuple[str, str, str, str]:
        """Name, value, goal and note, as the table shows them."""
        value = "not measured" if self.value is None else f"{number(self.value)} {self.unit}"
        goal = "" if self.goal is None else str(self.goal)
        if self.met is not None:
            goal += " reached" if self.met else " MISSED"
        return self.name, value.strip(), goal, self.note

    def content(self) -> dict[str, Any]:
        """Return the figure as JSON's values."""
        return {
            "name": self.name,
            "value": finite(self.value),
            "unit": self.unit,
            "goal": str(self.goal) if self.goal else None,
            "met": self.met,
            "note": self.note,
            "details": finite(dict(self.details)),
        }


def not_measured(name: str, why: str) -> Figure:
    return Figure(name, None, note=why)


def number(value: float | str) -> str:
    """Format a value with three significant digits, and commas between thousands."""
    if isinstance(value, str):
        return value
    if not math.isfinite(value) or value == 0 or 0.001 <= abs(value) < 1000:
        return f"{value:.3g}"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.1e}"


def finite(value: Any) -> Any:
    """Replace infinite and NaN numbers, which JSON lacks, by strings."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, Mapping):
        return {str(name): finite(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite(item) for item in value]
    return value
