"""Real texts that every clone has: sentences of the licence, odd texts, and pairs."""

from __future__ import annotations

import re
from pathlib import Path

Text = str | tuple[str, str]

ODD = [
    "",
    " ",
    "a",
    "The",
    "Hello world",
    "What is Deep Learning?",
    "The animal didn't cross the street because it was too tired",
    "注意力机制的核心思想是允许模型对不同位置赋予不同的权重",
    "日本語のテキストと English を混ぜる",
    "한국어 문장도 하나 있습니다",
    "Привет, мир! Ещё одно предложение.",
    "שלום עולם, זה משפט בעברית",
    "مرحبا بالعالم، هذه جملة بالعربية",
    "\u202eright to left override\u202c and back",
    "naïve café, Ünïcödé, ﬁne print and ½ of it",
    "cafe\u0301 decomposed, A\u030angstro\u0308m",
    "👩‍👩‍👧‍👦 family, 🏳️‍🌈 flag, 👍🏽 thumb, 🇫🇷🇩🇪",
    "😀",
    "tabs\tand\nnew\r\nlines",
    "a NUL \x00 a bell \x07 and an escape \x1b here",
    "zero\u200bwidth\u200djoiners\ufeff and soft\u00adhyphens",
    "A literal [SEP] in the text, and [CLS] [MASK] [PAD] [UNK] too",
    "[SEP]",
    "[sep] lower-case, [ SEP ] spaced, ##ing alone",
    "Donaudampfschifffahrtsgesellschaftskapitän",
    "x" * 101,
    "ab" * 60,
    "!?.,;:-_#'+*~`´^°§$%&/()=",
    "1234567890 3.14159 1e-12 0x7f 10,000,000",
    "def softmax(x): return np.exp(x) / np.exp(x).sum()",
    "https://example.org/path?query=1&other=%20#fragment",
    "<script>alert('xss')</script>",
    "ALL CAPS AND mIxEd CaSe",
    "\U0001d4d0\U0001d4d1 mathematical script, Ⅷ, ①, ㎏",
    "\ud7ff\ue000\uffff\U0010ffff",
    "…—–‘’“”",
]

PAIRS: list[Text] = [
    ("My name is John", "pair"),
    ("The animal didn't cross the street", "it was too tired"),
    ("", "an empty first segment"),
    ("an empty second segment", ""),
    ("", ""),
    ("注意力", "机制"),
    ("one [SEP] two", "three [SEP] four"),
    ("😀👍🏽", "café"),
]


def licence_sentences() -> list[str]:
    """Return the sentences of the repository's LICENSE."""
    licence = Path(__file__).resolve().parents[2] / "LICENSE"
    paragraphs = licence.read_text(encoding="utf-8").split("\n\n")
    joined = [" ".join(paragraph.split()) for paragraph in paragraphs]
    return [part for text in joined for part in re.split(r"(?<=[.;:,]) ", text) if part]


def all_texts() -> list[Text]:
    """Return at least 200 texts and pairs, from empty to long."""
    sentences = licence_sentences()
    pairs: list[Text] = list(zip(sentences[0:40:2], sentences[1:40:2], strict=True))
    paragraphs = [" ".join(sentences[i : i + 8]) for i in range(0, 80, 8)]
    return [*ODD, *sentences[:150], *paragraphs, *PAIRS, *pairs]
