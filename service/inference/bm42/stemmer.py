"""English stemmer of Snowball, "Porter 2", in its versions up to 2.

http://snowball.tartarus.org/algorithms/english/stemmer.html. R1 is the region after the first
consonant that follows a vowel, R2 is the same region within R1.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

_WHOLE: Mapping[str, str] = {
    "skis": "ski",
    "skies": "sky",
    "dying": "die",
    "lying": "lie",
    "tying": "tie",
    "idly": "idl",
    "gently": "gentl",
    "ugly": "ugli",
    "early": "earli",
    "only": "onli",
    "singly": "singl",
    **{word: word for word in ("sky", "news", "howe", "atlas", "cosmos", "bias", "andes")},
}
_FINISHED = re.compile(r"(inn|out|cann|herr|earr)ing|(proc|exc|succ)eed")
"""Words that do not change further once their plural ending is removed."""
_PREFIX = re.compile(r"gener|commun|arsen")
_REGION = re.compile(r"[aeiouy][^aeiouy]")
_VOWEL = re.compile(r"[aeiouy]")
_SHORT = re.compile(r"([^aeiouy][aeiouy][^aeiouywxY]|^[aeiouy][^aeiouy])$")
_PLURALS = re.compile(r"(sses|ied|ies|us|ss|s)$")
_PASTS = re.compile(r"(eedly|eed|ingly|edly|ing|ed)$")
_STEP_2: Mapping[str, str] = {
    **dict.fromkeys(("ational", "ation", "ator"), "ate"),
    **dict.fromkeys(("ization", "izer"), "ize"),
    **dict.fromkeys(("iveness", "iviti"), "ive"),
    **dict.fromkeys(("ousness", "ousli"), "ous"),
    **dict.fromkeys(("fulness", "fulli"), "ful"),
    **dict.fromkeys(("biliti", "bli"), "ble"),
    **dict.fromkeys(("alism", "aliti", "alli"), "al"),
    "tional": "tion",
    "lessli": "less",
    "entli": "ent",
    "enci": "ence",
    "anci": "ance",
    "abli": "able",
    "ogi": "og",
    "li": "",
}
_STEP_3: Mapping[str, str] = {
    **dict.fromkeys(("icate", "iciti", "ical"), "ic"),
    **dict.fromkeys(("ative", "ness", "ful"), ""),
    "ational": "ate",
    "tional": "tion",
    "alize": "al",
}
_STEP_4 = re.compile(
    r"(ement|ance|ence|able|ible|ment|ant|ent|ism|ate|iti|ous|ive|ize|ion|al|er|ic)$"
)


def stem(word: str) -> str:
    """Return the stem of a lower-case word."""
    if len(word) <= 2:
        return word
    if word in _WHOLE:
        return _WHOLE[word]
    plain = word.removeprefix("'")
    word = _marked(plain)
    marked = word != plain
    prefix = _PREFIX.match(word)
    r1 = prefix.end() if prefix else _after(word, 0)
    r2 = _after(word, r1)
    word = _without_plural(re.sub(r"('s'|'s|')$", "", word))
    if _FINISHED.fullmatch(word):
        return word
    word = _without_past(word, r1)
    word = re.sub(r"(?<=.[^aeiouy])[yY]$", "i", word)
    word = _replaced(word, _STEP_2, r1, r2)
    word = _replaced(word, _STEP_3, r1, r2)
    suffix = _STEP_4.search(word)
    if suffix and suffix.start() >= r2:
        before = word[: suffix.start()]
        word = before if suffix[0] != "ion" or before.endswith(("s", "t")) else word
    word = _without_end(word, r1, r2)
    return word.replace("Y", "y") if marked else word


def _marked(word: str) -> str:
    """Return the word with a capital Y for each y that is a consonant."""
    letters = list(word)
    for i, letter in enumerate(letters):
        if letter == "y" and (i == 0 or letters[i - 1] in "aeiouy"):
            letters[i] = "Y"
    return "".join(letters)


def _after(word: str, start: int) -> int:
    found = _REGION.search(word, start)
    return found.end() if found else len(word)


def _without_plural(word: str) -> str:
    ending = _PLURALS.search(word)
    if not ending:
        return word
    before = word[: ending.start()]
    match ending[0]:
        case "sses":
            return before + "ss"
        case "ied" | "ies":
            return before + ("i" if len(before) > 1 else "ie")
        case "s" if _VOWEL.search(before[:-1]):
            return before
    return word


def _without_past(word: str, r1: int) -> str:
    ending = _PASTS.search(word)
    if not ending:
        return word
    before = word[: ending.start()]
    if ending[0].startswith("ee"):
        return before + "ee" if ending.start() >= r1 else word
    if not _VOWEL.search(before):
        return word
    if before.endswith(("at", "bl", "iz")):
        return before + "e"
    if re.search(r"(bb|dd|ff|gg|mm|nn|pp|rr|tt)$", before):
        return before[:-1]
    return before + "e" if r1 >= len(before) and _SHORT.search(before) else before


def _replaced(word: str, endings: Mapping[str, str], r1: int, r2: int) -> str:
    """Replace the longest matching ending of a word, if the ending lies in its region."""
    matching = (ending for ending in endings if word.endswith(ending))
    ending = max(matching, key=len, default=None)
    if ending is None:
        return word
    before = word[: len(word) - len(ending)]
    needs = {"li": "cdeghkmnrt", "ogi": "l"}.get(ending)
    if len(before) < (r2 if ending == "ative" else r1):
        return word
    if needs is not None and (not before or before[-1] not in needs):
        return word
    return before + endings[ending]


def _without_end(word: str, r1: int, r2: int) -> str:
    last = len(word) - 1
    if word.endswith("e") and (last >= r2 or (last >= r1 and not _SHORT.search(word[:-1]))):
        return word[:-1]
    return word[:-1] if word.endswith("ll") and last >= r2 else word
