"""Requests of the recording: bodies, options and HTTP of every kind, answered and refused.

Requests fit the served model: lengths, layers and heads come from `/info`.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from testing import raw_http

BINARY = {"accept": "application/vnd.safetensors"}
BASE64 = {"encoding_format": "base64"}
POOLED, TOKENS = {"outputs": ["pooled"]}, {"outputs": ["tokens"]}
STATS, ROLLOUT = {"include": ["stats"]}, {"include": ["rollout"]}


@dataclass(frozen=True, slots=True)
class Shape:
    """Sizes and limits of the served model."""

    tokens: int
    """Maximum tokens of a text, special tokens included."""
    characters: int
    inputs: int
    layers: int
    heads: int
    hidden: int

    @classmethod
    def of(cls, info: Mapping[str, Any]) -> Shape:
        """Return the shape in a reply of `/info`."""
        return cls(
            info["max_input_length"],
            info["max_characters"],
            info["max_client_batch_size"],
            info["layers"],
            info["heads"],
            info["hidden_size"],
        )

    def text(self, tokens: int) -> str:
        """Return a text of `tokens` tokens, special tokens included."""
        words = ("the", "of", "water", "time", "a", "day", "new", "house", "by")
        return " ".join(words[n % len(words)] for n in range(tokens - 2))


@dataclass(frozen=True, slots=True)
class Request:
    """Named bytes, to be sent over a connection of their own."""

    name: str
    content: bytes
    replies: int = 1
    """Number of replies; several if the bytes hold several requests."""
    exact: bool = True
    """Whether the fake engine's reply has the same bytes on every processor."""


def plain(
    method: str, path: str, headers: Mapping[str, str] | None = None, body: bytes | None = None
) -> bytes:
    """Return an HTTP/1.1 request."""
    lines = [f"{method} {path} HTTP/1.1", "host: recording"]
    if body is not None:
        lines.append(f"content-length: {len(body)}")
    lines += [f"{name}: {value}" for name, value in (headers or {}).items()]
    return "\r\n".join([*lines, "", ""]).encode() + (body or b"")


def post(path: str, body: Any, headers: Mapping[str, str] | None = None) -> bytes:
    """Return a POST of a body as JSON, or of bytes as they are."""
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    return plain("POST", path, {"content-type": "application/json", **(headers or {})}, content)


def both_forms(path: str, named: Iterable[tuple[str, dict[str, Any]]]) -> Iterator[Request]:
    """Yield each body as two requests, for JSON and for safetensors."""
    for name, body in named:
        exact = path != "/explain" and not inexact(body)
        yield Request(f"{path} {name}", post(path, body), exact=exact)
        if body.get("dtype") != "float16" and "encoding_format" not in body:
            binary = post(path, body, BINARY)
            yield Request(f"{path} {name}, binary", binary, exact=exact)


def inexact(body: Mapping[str, Any]) -> bool:
    """Return whether the service itself sums many terms, in the processor's fastest order."""
    asked = {*body.get("include", [])} & {"stats", "rollout", "norms", "norm_rollout"}
    return bool(asked or any(body.get(name) for name in ("normalize", "dimensions", "ablate")))


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


def answered(shape: Shape) -> Iterator[Request]:
    """Yield all requests, in the order in which they are sent."""
    yield from operations()
    yield from both_forms("/encode", encode_bodies(shape))
    yield from both_forms("/attention", attention_bodies(shape))
    yield from both_forms("/explain", explain_bodies())
    yield from rankings()
    yield from head_scores()
    yield from half_precision(shape)
    yield from texts()
    yield from headers()


def encode_bodies(shape: Shape) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield bodies with every option of /encode, alone and with others."""
    yield "text", {"inputs": FOX}
    yield "list of one", {"inputs": [FOX]}
    yield "list", {"inputs": [SENTENCE, "", FOX, "no"]}
    yield "pair", {"inputs": [PAIR]}
    yield "pairs", {"inputs": [PAIR, ["", ""], ["a", ""], ["", "b"], PAIR[::-1]], **POOLED}
    yield "tokens", {"inputs": "Hello world", **TOKENS}
    yield "pooled", {"inputs": "Hello world", **POOLED}
    yield "pooled, tokens", {"inputs": "Hello world", "outputs": ["pooled", "tokens"]}
    yield "base64", {"inputs": [FOX, "no"], **BASE64}
    yield "base64 of a pair", {"inputs": [PAIR], **BASE64, **TOKENS}
    yield "float", {"inputs": "no", "encoding_format": "float"}
    for layer in sorted({0, 1, shape.layers, -1, -2, -shape.layers - 1}):
        yield f"layer {layer}", {"inputs": [FOX, "no"], "layer": layer, **POOLED}
        yield f"tokens of layer {layer}", {"inputs": "Hello you", "layer": layer, **TOKENS}
    for pooling in ("mean", "cls", "max", "last"):
        yield f"pooling {pooling}", {"inputs": [FOX, ""], "pooling": pooling, **POOLED}
        options = {"pooling": pooling, "normalize": True, "layer": 1}
        yield f"pooling {pooling}, unit, layer 1", {"inputs": PAIR, **options, **POOLED}
    for normalize in (True, False, None):
        yield f"normalize {normalize}", {"inputs": FOX, "normalize": normalize, **POOLED}
    for dimensions in (1, 7, shape.hidden, None):
        yield f"dimensions {dimensions}", {"inputs": FOX, "dimensions": dimensions, **POOLED}
    few = {"dimensions": 16, "normalize": False}
    yield "dimensions, not normalised", {"inputs": [FOX, "no"], **few, **POOLED}
    yield "dimensions in base64", {"inputs": [FOX, "no"], "dimensions": 16, **BASE64, **POOLED}
    yield "no prompt", {"inputs": FOX, "prompt_name": None, **POOLED}
    yield from lengths(shape, POOLED)
    many = [f"{n} {FOX[: n % 43]}" for n in range(shape.inputs)]
    yield "most inputs", {"inputs": many, **POOLED}
    yield "long texts", {"inputs": [shape.text(shape.tokens)] * 3 + [FOX]}


def lengths(shape: Shape, asked: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield bodies of texts near the maximum length, and of truncated longer texts."""
    for more in (-1, 0, 1):
        text = shape.text(shape.tokens + more)
        yield f"longest {more:+}", {"inputs": text, **asked}
        yield f"longest {more:+}, truncate", {"inputs": text, "truncate": True, **asked}
    long = [shape.text(2 * shape.tokens), FOX, shape.text(shape.tokens)]
    for direction in ("right", "left"):
        cut = {"truncate": True, "truncation_direction": direction, **asked}
        yield f"cut {direction}", {"inputs": long, **cut}
        yield f"pair cut {direction}", {"inputs": [[long[0], FOX], [FOX, long[0]]], **cut}
    yield "left, nothing to cut", {"inputs": FOX, "truncation_direction": "left", **asked}


def attention_bodies(shape: Shape) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield bodies with every option of /attention, alone and with others."""
    one = {"layers": [-1], "heads": [0]}
    turned = {"layers": [-1, 0], "heads": [1, 0]}
    yield "text", {"inputs": "Hello world"}
    yield "list", {"inputs": ["Hello", "", "to the world"]}
    yield "pairs", {"inputs": [PAIR, ["a", ""]], **one}
    yield "one head", {"inputs": SENTENCE, **one}
    yield "one layer", {"inputs": "Hello world", "layers": [1]}
    yield "one head of each layer", {"inputs": "Hello world", "heads": [-1]}
    yield "layers and heads turned round", {"inputs": ["Hello world", "no"], **turned}
    yield "all layers from the end", {"inputs": "no", "layers": [*range(-shape.layers, 0)]}
    yield "all heads backwards", {"inputs": "no", "heads": [*range(shape.heads - 1, -1, -1)]}
    yield "weights", {"inputs": "no", "include": ["weights"], **one}
    for k in (1, 2, 3, 1000):
        yield f"top_k {k}", {"inputs": ["Hello big world", "no"], "top_k": k, **turned}
    yield "top_k of a sentence", {"inputs": SENTENCE, "top_k": 3, "layers": [0]}
    yield "top_k of many keys", {"inputs": shape.text(90), "top_k": 40, **one}
    for include in (STATS, ROLLOUT, {"include": ["rollout", "stats"]}):
        yield " ".join(include["include"]), {"inputs": ["Hello world", ""], **include}
        yield " ".join([*include["include"], "of some"]), {"inputs": PAIR, **include, **turned}
    everything = {"include": ["weights", "stats", "rollout"]}
    yield "everything", {"inputs": ["Hello world", "no"], **everything, **turned}
    yield "everything of pairs", {"inputs": [PAIR], **everything, **one}
    yield "everything, top_k", {"inputs": ["Hello you", "no"], **everything, **one, "top_k": 2}
    yield "separators in a text", {"inputs": "a [SEP] b [SEP]", **STATS}
    first, last = {"layer": 0, "head": 0}, {"layer": -1, "head": -1}
    yield "ablated", {"inputs": "Hello world", "ablate": [first], **one}
    yield "ablated in the last layer", {"inputs": "Hello world", "ablate": [last], **one}
    yield "two ablated", {"inputs": [FOX, "no"], "ablate": [last, first], **one}
    yield "ablated, everything", {"inputs": "Hi", "ablate": [first], **everything, **turned}
    layer = [{"layer": 0, "head": head} for head in range(shape.heads)]
    yield "a layer ablated", {"inputs": ["Hello", PAIR[0]], "ablate": layer, **STATS}
    yield "a layer ablated, top_k", {"inputs": "Hello", "ablate": layer, "top_k": 2, **one}
    yield from lengths(shape, {**one, "top_k": 1})
    yield "many texts", {"inputs": [FOX[:n] for n in range(43)], **one, "top_k": 1}
    yield "all maps", {"inputs": shape.text(60)}
    yield "all maps of the longest", {"inputs": shape.text(shape.tokens)}
    yield "all maps of several", {"inputs": [shape.text(n) for n in (50, 3, 70, 2, 64)]}

    norms = {"include": ["norms", "norm_rollout"]}
    yield "norms", {"inputs": ["Hello world", ""], **norms, **turned}
    yield "norms, top_k", {"inputs": "Hello you", "include": ["weights", "norms"], "top_k": 2}

    rows = {"inputs": ["Hello big world", "no"], "queries": [-1, 0], **turned}
    yield "rows", rows
    yield "rows and columns", {**rows, "keys": [1]}
    yield "rows, top_k", {**rows, "top_k": 2}
    yield "pooled maps", {"inputs": [shape.text(50), "no"], "max_size": 8, **turned}


def explain_bodies() -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield bodies with every option of /explain, alone and with others."""
    some = [PAIR, ["Hello world", "no"]]
    yield "pairs", {"inputs": some}
    yield "occlusion", {"inputs": some, "include": ["occlusion"]}
    yield "both", {"inputs": [PAIR], "include": ["occlusion", "pairs"], "layer": 1}
    yield "heads", {"inputs": some, "include": ["heads"]}
    yield "no text", {"inputs": [["", "Hello"]], "include": ["pairs", "occlusion"]}
    yield "another pooling", {"inputs": some, "pooling": "cls", "include": ["occlusion"]}
    yield "pairs of another pooling", {"inputs": some, "pooling": "cls"}


def rankings() -> Iterator[Request]:
    """Yield requests for every explanation of /rank."""
    bodies: dict[str, dict[str, Any]] = {
        "scores": {},
        "the best": {"top_n": 1},
        "tokens": {"explain": "tokens"},
        "contrast": {"explain": "contrast", "compare": [2, 0], "top_words": 2},
    }
    for name, body in bodies.items():
        content = post("/rank", {"query": FOX, "documents": [*PAIR, "Hello, world!"], **body})
        yield Request(f"/rank {name}", content, exact=False)


def head_scores() -> Iterator[Request]:
    """Yield requests for one head's queries, keys and scores."""
    bodies: dict[str, dict[str, Any]] = {
        "all": {"inputs": "Hello world"},
        "a pair": {"inputs": [PAIR], "queries": [0, -1], "keys": [2]},
        "ablated": {"inputs": [FOX, "no"], "keys": [0], "ablate": [{"layer": 0, "head": 0}]},
    }
    for name, body in bodies.items():
        content = post("/attention/scores", {**body, "layer": -1, "head": 0})
        yield Request(f"/attention/scores {name}", content, exact=False)


def half_precision(shape: Shape) -> Iterator[Request]:
    """Yield requests for weights in float16, binary only."""
    named: dict[str, dict[str, Any]] = {
        "all maps": {"inputs": ["Hello world", "no"]},
        "one head": {"inputs": SENTENCE, "layers": [-1], "heads": [0]},
        "top_k": {"inputs": [SENTENCE, "no"], "top_k": 3, "layers": [0]},
        "everything": {"inputs": "Hello", "include": ["stats", "weights", "rollout"]},
        "stats": {"inputs": "Hello", "include": ["stats"]},
        "all maps of the longest": {"inputs": shape.text(shape.tokens)},
    }
    for name, body in named.items():
        content = post("/attention", {**body, "dtype": "float16"}, BINARY)
        yield Request(f"/attention float16, {name}", content, exact=not inexact(body))
    body = {"inputs": "Hello", "dtype": "float32", "layers": [0]}
    yield Request("/attention float32", post("/attention", body, BINARY))


def texts() -> Iterator[Request]:
    """Yield requests for each text alone and in pairs, and for all texts at once."""
    for name, text in TEXTS.items():
        alone = {"inputs": text, **POOLED}
        yield Request(f"/encode text: {name}", post("/encode", alone))
        some = {"layers": [0], "heads": [0], "top_k": 1}
        pairs = {"inputs": [[text, "and"], ["and", text]], **some}
        yield Request(f"/attention pair with: {name}", post("/attention", pairs))
    every = json.dumps({"inputs": [*TEXTS.values()], **POOLED}, ensure_ascii=False).encode()
    yield Request("/encode every text, as UTF-8", post("/encode", every))
    escaped = b'{"inputs":"\\ud83d\\ude00 \\u0041\\n\\/","outputs":["pooled"]}'
    yield Request("/encode escapes", post("/encode", escaped))


def operations() -> Iterator[Request]:
    """Yield requests of operators and readers."""
    for path in ("/health", "/health/live", "/health/ready"):
        yield Request(f"GET {path}", plain("GET", path))
    for path in ("/health", "/health/live", "/health/ready", "/info"):
        yield Request(f"HEAD {path}", plain("HEAD", path))
    for path in ("/dashboard/none.js", "/dashboard/../app.py", "/dashboard/", "/dashboard"):
        yield Request(f"GET {path}", plain("GET", path))
    queries = ("/health/live?a=b", "/health?" + "a" * 2000, "/%68ealth/live", "//health/live")
    for path in queries:
        yield Request(f"GET {path[:30]}", plain("GET", path))
    two = plain("GET", "/health/live") + post("/encode", {"inputs": "Hello", **POOLED})
    yield Request("two requests at once", two, replies=2)


def headers() -> Iterator[Request]:
    """Yield requests with various headers."""
    body = {"inputs": "Hello", **POOLED}
    kind = BINARY["accept"]
    accepts = {
        "anything": "*/*",
        "json": "application/json",
        "html": "text/html",
        "json or binary": f"application/json, {kind}",
        "binary, of less quality": f"{kind};q=0.5, */*",
        "binary in capitals": kind.upper(),
        "nothing": "",
    }
    for name, value in accepts.items():
        yield Request(f"accept {name}", post("/encode", body, {"accept": value}))
    ids = {
        "tame": "abc-1.2_3:/+=@",
        "longest": "a" * 128,
        "too long": "a" * 129,
        "of spaces": "a b",
    }
    for name, value in ids.items():
        given = post("/encode", body, {"x-request-id": value})
        yield Request(f"request id {name}", given)
        given = post("/encode", {}, {"x-request-id": value})
        yield Request(f"request id {name}, error", given)
    for value in ("0", "60000", "999999999", "1000000000", "-1", "1.5", "abc", ""):
        for path in ("/encode", "/attention"):
            asked = post(path, {"inputs": "Hello"}, {"x-request-timeout-ms": value})
            yield Request(f"{path} within {value!r} ms", asked)
    types = {
        "with a charset": "application/json; charset=utf-8",
        "in capitals": "APPLICATION/JSON",
        "text": "text/plain",
        "problem": "application/problem+json",
        "a form": "application/x-www-form-urlencoded",
        "none": "",
    }
    for name, value in types.items():
        given = post("/encode", body, {"content-type": value})
        yield Request(f"content type {name}", given)
    for value in ("gzip", "br", "identity"):
        for path in ("/encode", "/verify"):
            given = post(path, {**body, "layer": "x"}, {"content-encoding": value})
            yield Request(f"{path} content encoding {value}", given)


LIMIT = 128 * 2**20
"""Default limit on a reply's bytes."""
BODY_LIMIT = 16 * 2**20
TEXT_ROUTES = ("/encode", "/attention", "/verify")
NOT_JSON = {
    "nothing": b"",
    "spaces": b"  \n",
    "cut off": b'{"inputs": "a"',
    "a comma too many": b'{"inputs": "a",}',
    "two values": b'{"inputs": "a"} {}',
    "single quotes": b"{'inputs': 'a'}",
    "a comment": b'{"inputs": "a"} // b',
    "NaN": b'{"inputs": "a", "layer": NaN}',
    "Infinity": b'{"inputs": "a", "layer": -Infinity}',
    "a surrogate": b'{"inputs": "\\ud800"}',
    "a surrogate in the middle": b'{"inputs": "a\\udc00\\ud83db"}',
    "broken UTF-8": b'{"inputs": "\xff\xfe"}',
    "a surrogate in UTF-8": b'{"inputs": "\xed\xa0\x80"}',
    "overlong UTF-8": b'{"inputs": "\xc0\x80"}',
    "latin-1": '{"inputs": "é"}'.encode("latin-1"),
    "UTF-16": '{"inputs": "a"}'.encode("utf-16"),
    "a byte order mark": b'\xef\xbb\xbf{"inputs": "a"}',
    "a raw control character": b'{"inputs": "a\x01b"}',
    "deep lists": b'{"inputs": ' + b"[" * 5000 + b"]" * 5000 + b"}",
    "deep objects": b'{"a":' * 2000 + b"1" + b"}" * 2000,
    "a bad escape": b'{"inputs": "\\x"}',
    "a number with a zero before": b'{"inputs": "a", "layer": 01}',
    "gzip": b"\x1f\x8b\x08\x00\x00\x00\x00\x00",
}
OF_ALL: dict[str, Any] = {
    "no object": [],
    "null": None,
    "a text": "inputs",
    "no inputs": {},
    "inputs null": {"inputs": None},
    "inputs a number": {"inputs": 1},
    "inputs an object": {"inputs": {"a": "b"}},
    "no texts": {"inputs": []},
    "a number among texts": {"inputs": ["a", 1]},
    "a pair among texts": {"inputs": ["a", ["b", "c"]]},
    "a text among pairs": {"inputs": [["b", "c"], "a"]},
    "pair of one": {"inputs": [["a"]]},
    "pair of three": {"inputs": [["a", "b", "c"]]},
    "pair with a number": {"inputs": [["a", 1]]},
    "ids": {"inputs": [101, 102]},
    "truncate 1": {"inputs": "a", "truncate": 1},
    "truncate null": {"inputs": "a", "truncate": None},
    "an unknown field": {"inputs": "a", "input": "b"},
    "an odd unknown field": {"inputs": "a", "<b> c": 1},
    "many unknown fields": {"inputs": "a", **{f"x{n}": n for n in range(20)}},
    "too many fields": {"inputs": "a", **{f"x{n}": n for n in range(70)}},
    "huge unknown field": {"inputs": "a", "x" * 5000: 1},
}
OF_TEXTS: dict[str, dict[str, Any]] = {
    "truncation_direction up": {"truncation_direction": "up"},
    "truncation_direction null": {"truncation_direction": None},
    "unknown prompt": {"prompt_name": "query"},
    "empty prompt": {"prompt_name": ""},
    "prompt 1": {"prompt_name": 1},
    "backend fake": {"backend": "fake"},
    "backend in a list": {"backend": ["onnx"]},
    "several errors": {"truncate": "yes", "backend": 1, "prompt_name": []},
}
OF_ENCODE: dict[str, dict[str, Any]] = {
    "no outputs": {"outputs": []},
    "outputs a text": {"outputs": "pooled"},
    "unknown output": {"outputs": ["sparse"]},
    "outputs twice": {"outputs": ["pooled", "pooled"]},
    "layer 1.0": {"layer": 1.0},
    "layer '1'": {"layer": "1"},
    "layer true": {"layer": True},
    "layer null": {"layer": None},
    "layer huge": {"layer": 10**30},
    "layer 2^63": {"layer": 2**63},
    "pooling median": {"pooling": "median"},
    "normalize 0": {"normalize": 0},
    "dimensions 0": {"dimensions": 0},
    "dimensions -1": {"dimensions": -1},
    "dimensions 1.5": {"dimensions": 1.5},
    "dimensions 10^9": {"dimensions": 10**9},
    "encoding hex": {"encoding_format": "hex"},
    "a field of /attention": {"top_k": 1},
}
OF_ATTENTION: dict[str, dict[str, Any]] = {
    "layers none": {"layers": []},
    "layers a number": {"layers": 0},
    "layers of a text": {"layers": ["0"]},
    "layers true": {"layers": [True]},
    "layers twice": {"layers": [0, 0]},
    "layers twice, once from the end": {"layers": [1, 0, -1, -2, 2, -3, -4, -5, -6]},
    "layers 99": {"layers": [99]},
    "layers huge": {"layers": [10**30]},
    "heads none": {"heads": []},
    "heads 1.0": {"heads": [1.0]},
    "heads twice": {"heads": [1, 1]},
    "heads -99": {"heads": [0, -99]},
    "include none": {"include": []},
    "include a text": {"include": "stats"},
    "include unknown": {"include": ["maps"]},
    "include twice": {"include": ["stats", "stats"]},
    "top_k 0": {"top_k": 0},
    "top_k 1.0": {"top_k": 1.0},
    "top_k huge": {"top_k": 10**30},
    "top_k without weights": {"top_k": 1, "include": ["stats"]},
    "ablate none": {"ablate": []},
    "ablate a pair": {"ablate": [[0, 0]]},
    "ablate half": {"ablate": [{"layer": 0}]},
    "ablate more": {"ablate": [{"layer": 0, "head": 0, "x": 0}]},
    "ablate layer 99": {"ablate": [{"layer": 99, "head": 0}]},
    "ablate head -99": {"ablate": [{"layer": 0, "head": -99}]},
    "ablate twice": {"ablate": [{"layer": 0, "head": 0}] * 2},
    "ablate too many": {"ablate": [{"layer": 0, "head": 0}] * 5000},
    "dtype float64": {"dtype": "float64"},
    "float16 as JSON": {"dtype": "float16"},
    "a field of /encode": {"layer": 0},
}


def errors(shape: Shape) -> Iterator[Request]:
    """Yield all requests that are refused."""
    for path in TEXT_ROUTES:
        for name, content in NOT_JSON.items():
            yield Request(f"{path} not JSON: {name}", post(path, content))
        for name, body in OF_ALL.items():
            yield Request(f"{path} {name}", post(path, body))
    yield from wrong_options(shape)
    yield from too_much(shape)
    yield from wrong_routes()
    yield from raw()


def wrong_options(shape: Shape) -> Iterator[Request]:
    """Yield requests with a valid text and invalid options; the binary form has the same errors."""
    own = {
        "layer beyond the last": {"layer": shape.layers + 1},
        "layer before the first": {"layer": -shape.layers - 2},
        "dimensions beyond the last": {"dimensions": shape.hidden + 1},
    }
    tables = (
        ("/encode", OF_TEXTS | OF_ENCODE | own),
        ("/attention", OF_TEXTS | OF_ATTENTION),
    )
    for path, table in tables:
        for name, options in table.items():
            body = {"inputs": "a", **options}
            yield Request(f"{path} {name}", post(path, body))
    body = {"inputs": "a", "layer": 99}
    yield Request("/encode layer 99, binary", post("/encode", body, BINARY))
    body = {"inputs": "a", "truncation_direction": "left"}
    yield Request("/verify with an option", post("/verify", body))


def too_much(shape: Shape) -> Iterator[Request]:
    """Yield requests with more texts, tokens, characters or bytes than the limits."""
    long, longer = shape.text(shape.tokens + 1), "x" * (shape.characters + 1)
    named: dict[str, Any] = {
        "too many inputs": ["a"] * (shape.inputs + 1),
        "second too long": ["a", long],
        "pair too long": [["a", "b"], [long, "a"]],
        "too many characters": longer,
        "too many characters in a pair": [["a", longer]],
    }
    for path in TEXT_ROUTES:
        for name, inputs in named.items():
            yield Request(f"{path} {name}", post(path, {"inputs": inputs}))
            cut = {"inputs": inputs, "truncate": True}
            if "characters" in name:
                yield Request(f"{path} {name}, truncate", post(path, cut))
    each = shape.layers * shape.heads * shape.tokens**2
    texts = [shape.text(shape.tokens)]
    for name, size, headers in (("as JSON", 15, {}), ("binary", 4, BINARY)):
        body = {"inputs": texts * (LIMIT // (each * size) + 1)}
        content = post("/attention", body, headers)
        yield Request(f"/attention reply too large, {name}", content)
    each = shape.tokens * shape.hidden * 15
    body = {"inputs": texts * math.ceil(LIMIT / each + 1)}
    yield Request("/encode reply too large", post("/encode", body))
    announced = {"content-length": str(BODY_LIMIT + 1), "content-type": "application/json"}
    yield Request("body too large", plain("POST", "/encode", announced))
    chunk = b"%x\r\n%s\r\n" % (2**20, b" " * 2**20)
    head = {"transfer-encoding": "chunked", "content-type": "application/json"}
    content = plain("POST", "/encode", head) + chunk * 17 + b"0\r\n\r\n"
    yield Request("chunks too large", content)


def wrong_routes() -> Iterator[Request]:
    """Yield requests for paths and methods that do not exist."""
    for path in ("/none", "/encode/", "/Encode", "/encode/x", "/favicon.ico", "/a%00b", "/%ff"):
        yield Request(f"GET {path}", plain("GET", path))
    yield Request("POST /none", post("/none", {"inputs": "a"}))
    for path in (*TEXT_ROUTES, "/health", "/info", "/metrics", "/", "/openapi.json"):
        for method in ("GET", "HEAD", "OPTIONS", "PUT", "DELETE", "PATCH", "TRACE"):
            if path in TEXT_ROUTES or method not in ("GET", "HEAD"):
                yield Request(f"{method} {path}", plain(method, path))
    for path in ("/health", "/info", "/metrics", "/"):
        yield Request(f"POST {path}", post(path, {}))
    yield Request("HEAD /metrics", plain("HEAD", "/metrics"))
    yield Request("FETCH /info", plain("FETCH", "/info"))


def raw() -> Iterator[Request]:
    """Yield odd and wrong HTTP."""
    tables = (("odd", raw_http.GOOD), ("wrong", raw_http.AMBIGUOUS), ("large", raw_http.LARGE))
    for kind, table in tables:
        for name, content in table.items():
            yield Request(f"{kind} HTTP: {name}", content)
    body = json.dumps({"inputs": "Hello", **POOLED}).encode()
    twice = post("/encode", b'{"inputs":"a","inputs":"Hello","outputs":["pooled"]}')
    yield Request("/encode a field twice", twice)
    close = post("/encode", body, {"connection": "close"})
    yield Request("/encode, then close", close)
    after = post("/encode", body) + b"NONSENSE\r\n\r\n"
    yield Request("nonsense after a request", after, replies=2)
    yield Request("a head that does not end", b"GET /health/live HTTP/1.1\r\nHost: a\r\n")
    short = plain("POST", "/encode", {"content-type": "application/json", "content-length": "99"})
    yield Request("a body that does not end", short + b"{")


def requests(shape: Shape) -> list[Request]:
    """Return all requests in the order of sending; names are unique."""
    listed = [*answered(shape), *errors(shape)]
    assert len({request.name for request in listed}) == len(listed)
    return listed
