"""Sentences with dates and numbers in digits, and the same spelled out.

    source    paid 17 on 1984 03 23
    target    seventeen twenty third march nineteen eighty four

A date is spelled day first, so that cross-attention is not the diagonal.
"""

from __future__ import annotations

import calendar
import random
from collections.abc import Iterator
from dataclasses import dataclass, field

DIGITS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
TEENS = (
    *("ten", "eleven", "twelve", "thirteen", "fourteen"),
    *("fifteen", "sixteen", "seventeen", "eighteen", "nineteen"),
)
TENS = ("twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety")
IRREGULAR = {
    "one": "first",
    "two": "second",
    "three": "third",
    "five": "fifth",
    "eight": "eighth",
    "nine": "ninth",
    "twelve": "twelfth",
    "twenty": "twentieth",
}
"""Ordinals that do not merely end in "th"."""
YEARS = [century + year for century in range(1600, 2000, 100) for year in range(10, 100)]
"""Of several centuries, each of which is spelled by a word that only the year tells."""
MONTHS, DAYS = range(1, 13), range(1, 29)
VERBS = ("born", "built", "closed", "opened", "paid", "read", "sent", "sold")
PREPOSITIONS = ("after", "before", "on", "until")


@dataclass
class Pair:
    """Words of a source and of its target."""

    source: list[str] = field(default_factory=list)
    target: list[str] = field(default_factory=list)

    def add_number(self, number: int) -> None:
        """Add a number of at most two digits."""
        self.source.append(f"{number}")
        self.target += cardinal(number)

    def add_date(self, year: int, month: int, day: int) -> None:
        """Add year, month and day to the source; day, month and year to the target."""
        self.source += [f"{year}", f"{month:02}", f"{day:02}"]
        century, rest = divmod(year, 100)
        name = calendar.month_name[month].lower()
        self.target += [*ordinal(day), name, *cardinal(century), *cardinal(rest)]


def cardinal(number: int) -> list[str]:
    """Words of 0 … 99."""
    if number < 20:
        return [(*DIGITS, *TEENS)[number]]
    tens, rest = divmod(number, 10)
    return [TENS[tens - 2], *([DIGITS[rest]] if rest else [])]


def ordinal(number: int) -> list[str]:
    """Words of the 1st … 29th."""
    *before, last = cardinal(number)
    return [*before, IRREGULAR.get(last, f"{last}th")]


def pairs(seed: int) -> Iterator[Pair]:
    """Pairs without end, the same for the same seed: one to three clauses each."""
    generator = random.Random(seed)
    while True:
        pair = Pair()
        for clause in range(generator.randint(1, 3)):
            if clause:
                pair.source.append(",")
            pair.source.append(generator.choice(VERBS))
            if generator.random() < 0.5:
                pair.add_number(generator.randrange(100))
            pair.source.append(generator.choice(PREPOSITIONS))
            pair.add_date(*map(generator.choice, (YEARS, MONTHS, DAYS)))
        yield pair
