"""Progress of a run on standard error: a bar on a terminal, else a line every `LINE_SECONDS`."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Self

from tqdm import tqdm

LINE_SECONDS = 10.0


class Progress:
    """Progress in rows, with their rate and the remaining time."""

    def __init__(
        self,
        total: int,
        done: int,
        clock: Callable[[], float] = time.monotonic,
        *,
        unit: str = "texts",
    ) -> None:
        """Start the display.

        Args:
            total: number of rows of all inputs.
            done: number of rows completed by an earlier run.
            clock: function that returns seconds.
            unit: what a row is, in the plural.

        """
        self._unit = unit
        self._total, self._done, self._begun = total, done, done
        self._clock = clock
        self._started = self._reported = clock()
        self._bar = (
            tqdm(total=total, initial=done, unit=f" {unit}", file=sys.stderr, dynamic_ncols=True)
            if sys.stderr.isatty()
            else None
        )

    def __enter__(self) -> Self:
        """Return the display itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close the bar, which stays on the terminal."""
        if self._bar is not None:
            self._bar.close()

    def advance(self, rows: int) -> None:
        """Add completed rows."""
        self._done += rows
        if self._bar is not None:
            self._bar.update(rows)
        elif self._clock() - self._reported >= LINE_SECONDS:
            self._reported = self._clock()
            self.say(self.line())

    def say(self, line: str) -> None:
        """Print a message, above the bar if there is one."""
        tqdm.write(f"headscope: {line}", file=sys.stderr)

    def line(self) -> str:
        """Return a line of rows, rate and remaining time."""
        seconds = self._clock() - self._started
        rate = (self._done - self._begun) / max(seconds, 1e-9)
        left = (self._total - self._done) / max(rate, 1e-9)
        return (
            f"{self._done:,} of {self._total:,} {self._unit}, {rate:,.0f} {self._unit}/s, "
            f"{tqdm.format_interval(left)} left"
        )
