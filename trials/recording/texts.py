"""Texts of many scripts and kinds, well formed and odd."""

from __future__ import annotations

SENTENCE = "The animal didn't cross the street because it was too tired"
FOX = "The quick brown fox jumps over the lazy dog"
PAIR = ["How many people live in Berlin?", "Berlin has 3.7 million inhabitants."]
TEXTS = {
    "one word": "Hello",
    "punctuation": "Wait... what?! (Really -- \"yes\", 'no'; 50% & more.)",
    "numbers": "On 2024-02-29 at 12:34:56 it cost $1,234.56 (±0.5 %).",
    "code": "def f(x): return {k: v**2 for k, v in x.items()}",
    "address": "Mail max@example.org or see https://example.org/a?b=c#d",
    "german": "Über den Wolken muss die Freiheit wohl grenzenlos sein – Straße, Größe.",
    "french": "L'été où j'ai mangé des œufs à la crème brûlée, ça va ?",
    "spanish": "¿Dónde está la biblioteca? ¡Mañana será otro día, señor!",
    "polish": "Zażółć gęślą jaźń",
    "turkish": "İstanbul'da ılık bir Iğdır akşamı",
    "greek": "Η γρήγορη καφέ αλεπού πηδάει",
    "russian": "Быстрая коричневая лиса прыгает через ленивую собаку",
    "arabic": "الثعلب البني السريع يقفز فوق الكلب الكسول",
    "hebrew": "השועל החום המהיר קופץ מעל הכלב העצלן",
    "hindi": "तेज़ भूरी लोमड़ी आलसी कुत्ते के ऊपर कूदती है",
    "thai": "สุนัขจิ้งจอกสีน้ำตาลกระโดดข้ามสุนัขขี้เกียจ",
    "chinese": "敏捷的棕色狐狸跳过懒狗。",
    "japanese": "すばしっこい茶色の狐はのろまな犬を飛び越える",
    "korean": "빠른 갈색 여우가 게으른 개를 뛰어넘는다",
    "vietnamese": "Con cáo nâu nhanh nhẹn nhảy qua con chó lười",
    "mixed": "Das iPhone costs 999€ في برلين 今日 сейчас",
    "right to left override": "abc\u202edef\u202c אבג 123",
    "joined emoji": "A 👩‍👩‍👧‍👦 family, a 🏳️‍🌈 flag, 👍🏽 and 🇫🇷🇩🇪",
    "combining": "e\u0301 A\u030a " + "a" + "\u0301" * 20,
    "ligatures": "ﬁ Ⅷ ½ ǅ ß İ",
    "control characters": "a\x00b\x01c\x1bd\x7fe\x85f",
    "invisible": "a\u200bb\u200dc\ufeffd\u00ade",
    "whitespace": " \t\r\n a \u3000 b \u2028 c\n\n",
    "only whitespace": " \t\n ",
    "empty": "",
    "special tokens": "[CLS] one [SEP] two [PAD] [MASK] [UNK] [sep]",
    "wordpieces": "##ing unbelievably antidisestablishmentarianism",
    "replacement": "\ufffd \U0010ffff \ue000 \uffff",
    "a long word": "x" * 300,
}
