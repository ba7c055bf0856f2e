"""The requests of a recording: every kind that callers send, named, the same ones each time.

They fit the model that is served: lengths, layers and heads are taken from its `/info`.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

Group = Literal["encode", "attention", "engines", "operations", "pages", "errors", "slow", "keys"]
"""`engines` names an engine, which the fake one is not; `pages` describe the service, and change
with it; `slow` waits until the service is tired of waiting."""

BINARY = {"accept": "application/vnd.safetensors"}
BASE64 = {"encoding_format": "base64"}
POOLED, TOKENS = {"outputs": ["pooled"]}, {"outputs": ["tokens"]}
STATS, ROLLOUT = {"include": ["stats"]}, {"include": ["rollout"]}
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


@dataclass(frozen=True, slots=True)
class Shape:
    """What is served, as far as requests depend on it."""

    tokens: int
    """That fit, special ones included."""
    characters: int
    inputs: int
    layers: int
    heads: int
    hidden: int

    @classmethod
    def of(cls, info: Mapping[str, Any]) -> Shape:
        """What `/info` says."""
        return cls(
            info["max_input_length"],
            info["max_characters"],
            info["max_client_batch_size"],
            info["layers"],
            info["heads"],
            info["hidden_size"],
        )

    def text(self, tokens: int) -> str:
        """A text of so many tokens, special ones included."""
        words = ("the", "of", "water", "time", "a", "day", "new", "house", "by")
        return " ".join(words[n % len(words)] for n in range(tokens - 2))


@dataclass(frozen=True, slots=True)
class Request:
    """Bytes to send over a connection of their own."""

    group: Group
    name: str
    content: bytes
    replies: int = 1
    """How many come: more of several requests at once."""
    exact: bool = True
    """Whether the fake engine's reply has the same bytes on every processor."""

    @property
    def method(self) -> str:
        """Of the first request; the reply to HEAD has no body."""
        return self.content.partition(b" ")[0].decode("latin-1")


def plain(
    method: str, path: str, headers: Mapping[str, str] | None = None, body: bytes | None = None
) -> bytes:
    """A request of HTTP/1.1."""
    lines = [f"{method} {path} HTTP/1.1", "host: recording"]
    if body is not None:
        lines.append(f"content-length: {len(body)}")
    lines += [f"{name}: {value}" for name, value in (headers or {}).items()]
    return "\r\n".join([*lines, "", ""]).encode() + (body or b"")


def post(path: str, body: Any, headers: Mapping[str, str] | None = None) -> bytes:
    """A POST of some JSON; of bytes, as they are."""
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    return plain("POST", path, {"content-type": "application/json", **(headers or {})}, content)


def both_forms(
    group: Group, path: str, named: Iterable[tuple[str, dict[str, Any]]]
) -> Iterator[Request]:
    """Each body twice, for JSON and for safetensors."""
    for name, body in named:
        exact = not inexact(body)
        yield Request(group, f"{path} {name}", post(path, body), exact=exact)
        if body.get("dtype") != "float16" and "encoding_format" not in body:
            binary = post(path, body, BINARY)
            yield Request(group, f"{path} {name}, binary", binary, exact=exact)


def inexact(body: Mapping[str, Any]) -> bool:
    """Whether the service itself computes sums of many terms, in whatever order is fastest."""
    asked = {*body.get("include", [])} & {"stats", "rollout"}
    return bool(asked or any(body.get(name) for name in ("normalize", "dimensions", "ablate")))


def encode_bodies(shape: Shape) -> Iterator[tuple[str, dict[str, Any]]]:
    """Every option of /encode, alone and with others."""
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
    """Texts about as long as fits, and what is cut of longer ones."""
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
    """Every option of /attention, alone and with others."""
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


def half_precision(shape: Shape) -> Iterator[Request]:
    """Weights of float16, binary only."""
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
        yield Request("attention", f"/attention float16, {name}", content, exact=not inexact(body))
    body = {"inputs": "Hello", "dtype": "float32", "layers": [0]}
    yield Request("attention", "/attention float32", post("/attention", body, BINARY))


def texts() -> Iterator[Request]:
    """All kinds of text."""
    for name, text in TEXTS.items():
        alone = {"inputs": text, **POOLED}
        yield Request("encode", f"/encode text: {name}", post("/encode", alone))
        some = {"layers": [0], "heads": [0], "top_k": 1}
        pairs = {"inputs": [[text, "and"], ["and", text]], **some}
        yield Request("attention", f"/attention pair with: {name}", post("/attention", pairs))
    every = json.dumps({"inputs": [*TEXTS.values()], **POOLED}, ensure_ascii=False).encode()
    yield Request("encode", "/encode every text, as UTF-8", post("/encode", every))
    escaped = b'{"inputs":"\\ud83d\\ude00 \\u0041\\n\\/","outputs":["pooled"]}'
    yield Request("encode", "/encode escapes", post("/encode", escaped))


def engines() -> Iterator[Request]:
    """Requests that name an engine, and those that compare both."""
    some = {"inputs": [FOX, "no"]}
    for backend in ("onnx", "torch", None):
        text: tuple[str, dict[str, Any]] = (f"by {backend}", {**some, "backend": backend})
        yield from both_forms("engines", "/encode", [text])
        bodies: dict[str, dict[str, Any]] = {
            "one head": {"layers": [-1], "heads": [0]},
            "all": {},
            "ablated": {"ablate": [{"layer": 0, "head": 0}], "include": ["stats", "rollout"]},
        }
        named = [
            (f"by {backend}, {name}", {**some, **body, "backend": backend})
            for name, body in bodies.items()
        ]
        yield from both_forms("engines", "/attention", named)
    for name, body in {"text": FOX, "list": [FOX, ""], "pairs": [PAIR]}.items():
        yield Request("engines", f"/verify {name}", post("/verify", {"inputs": body}))
    cut = {"inputs": "the " * 600, "truncate": True}
    yield Request("engines", "/verify, cut", post("/verify", cut))


def headers() -> Iterator[Request]:
    """What a caller may say in headers."""
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
        yield Request("encode", f"accept {name}", post("/encode", body, {"accept": value}))
    ids = {
        "tame": "abc-1.2_3:/+=@",
        "longest": "a" * 128,
        "too long": "a" * 129,
        "of spaces": "a b",
    }
    for name, value in ids.items():
        given = post("/encode", body, {"x-request-id": value})
        yield Request("encode", f"request id {name}", given)
        given = post("/encode", {}, {"x-request-id": value})
        yield Request("errors", f"request id {name}, error", given)
    for value in ("0", "60000", "999999999", "1000000000", "-1", "1.5", "abc", ""):
        for path in ("/encode", "/attention"):
            asked = post(path, {"inputs": "Hello"}, {"x-request-timeout-ms": value})
            yield Request("errors", f"{path} within {value!r} ms", asked)
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
        yield Request("errors", f"content type {name}", given)
    for value in ("gzip", "br", "identity"):
        for path in ("/encode", "/verify"):
            given = post(path, {**body, "layer": "x"}, {"content-encoding": value})
            yield Request("errors", f"{path} content encoding {value}", given)


def operations() -> Iterator[Request]:
    """What operators and readers ask."""
    for path in ("/health", "/health/live", "/health/ready"):
        yield Request("operations", f"GET {path}", plain("GET", path))
    for path in ("/health", "/health/live", "/health/ready", "/info"):
        yield Request("operations", f"HEAD {path}", plain("HEAD", path))
    for path in ("/info", "/docs", "/redoc", "/openapi.json"):
        yield Request("pages", f"GET {path}", plain("GET", path))
    files = "index.html main.js api.js state.js style.css favicon.svg heatmap.js float16.js"
    for path in ("/", *(f"/dashboard/{file}" for file in files.split())):
        yield Request("pages", f"GET {path}", plain("GET", path))
    stale = plain("GET", "/", {"if-none-match": '"0", W/"1"'})
    yield Request("pages", "GET / that has changed", stale)
    for path in ("/dashboard/none.js", "/dashboard/../app.py", "/dashboard/", "/dashboard"):
        yield Request("errors", f"GET {path}", plain("GET", path))
    queries = ("/health/live?a=b", "/health?" + "a" * 2000, "/%68ealth/live", "//health/live")
    for path in queries:
        yield Request("operations", f"GET {path[:30]}", plain("GET", path))
    two = plain("GET", "/health/live") + post("/encode", {"inputs": "Hello", **POOLED})
    yield Request("operations", "two requests at once", two, replies=2)


def answered(shape: Shape) -> Iterator[Request]:
    """All kinds of request that are answered, beside some that are nearly so."""
    yield from operations()
    yield from both_forms("encode", "/encode", encode_bodies(shape))
    yield from both_forms("attention", "/attention", attention_bodies(shape))
    yield from half_precision(shape)
    yield from texts()
    yield from engines()
    yield from headers()


def keys(key: str) -> list[Request]:
    """Those for a service that wants this key, and lets pages of https://example.org use it."""
    basic = base64.b64encode(f"user:{key}".encode()).decode()
    given = {
        "none": {},
        "bearer": {"authorization": f"Bearer {key}"},
        "bearer in lower case": {"authorization": f"bearer {key}"},
        "bearer after spaces": {"authorization": f"Bearer   {key}"},
        "basic": {"authorization": f"Basic {basic}"},
        "another": {"authorization": f"Bearer {key}x"},
        "its beginning": {"authorization": f"Bearer {key[:-1]}"},
        "no scheme": {"authorization": key},
        "another scheme": {"authorization": f"Digest {key}"},
        "empty": {"authorization": ""},
        "no base64": {"authorization": "Basic ???"},
        "too long": {"authorization": f"Bearer {key}" + "x" * 5000},
        "x-api-key": {"x-api-key": key},
        "twice": {"authorization": f"Bearer {key}\r\nauthorization: Bearer {key}"},
    }
    paths: tuple[str, ...] = ("/info", "/health", "/health/live", "/health/ready", "/metrics")
    paths += ("/", "/openapi.json", "/none", "/docs", "/dashboard/main.js")
    found = []
    for name, sent in given.items():
        found.append(Request("keys", f"GET /info, key {name}", plain("GET", "/info", sent)))
        body = {"inputs": "Hello", **POOLED}
        found.append(Request("keys", f"/encode, key {name}", post("/encode", body, sent)))
    found += [Request("keys", f"GET {path}, no key", plain("GET", path)) for path in paths]
    large = plain("POST", "/encode", {"content-length": "99999999"})
    found.append(Request("keys", "too large a body, no key", large))
    asks = {"access-control-request-method": "POST", "access-control-request-headers": "accept"}
    for origin in ("https://example.org", "https://example.com"):
        before = plain("OPTIONS", "/encode", {"origin": origin, **asks})
        found.append(Request("keys", f"preflight of {origin}", before))
        sent = {"origin": origin, **given["bearer"]}
        content = post("/encode", {"inputs": "Hello", **POOLED}, sent)
        found.append(Request("keys", f"/encode from {origin}", content))
        refused = plain("GET", "/info", {"origin": origin})
        found.append(Request("keys", f"GET /info from {origin}, no key", refused))
    return found
