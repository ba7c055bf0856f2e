"""Requests of every kind and option that are answered, and some that are barely refused."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from trials.recording.operations import headers, operations
from trials.recording.requests import (
    BASE64,
    BINARY,
    POOLED,
    ROLLOUT,
    STATS,
    TOKENS,
    Request,
    Shape,
    both_forms,
    inexact,
    post,
)
from trials.recording.texts import FOX, PAIR, SENTENCE, TEXTS


def answered(shape: Shape) -> Iterator[Request]:
    """Yield all requests, in the order in which they are sent."""
    yield from operations()
    yield from both_forms("encode", "/encode", encode_bodies(shape))
    yield from both_forms("attention", "/attention", attention_bodies(shape))
    yield from both_forms("explain", "/explain", explain_bodies())
    yield from rankings()
    yield from head_scores()
    yield from half_precision(shape)
    yield from texts()
    yield from engines()
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
        yield Request("rank", f"/rank {name}", content, exact=False)


def head_scores() -> Iterator[Request]:
    """Yield requests for one head's queries, keys and scores."""
    bodies: dict[str, dict[str, Any]] = {
        "all": {"inputs": "Hello world"},
        "a pair": {"inputs": [PAIR], "queries": [0, -1], "keys": [2]},
        "ablated": {"inputs": [FOX, "no"], "keys": [0], "ablate": [{"layer": 0, "head": 0}]},
    }
    for name, body in bodies.items():
        content = post("/attention/scores", {**body, "layer": -1, "head": 0})
        yield Request("attention", f"/attention/scores {name}", content, exact=False)


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
        yield Request("attention", f"/attention float16, {name}", content, exact=not inexact(body))
    body = {"inputs": "Hello", "dtype": "float32", "layers": [0]}
    yield Request("attention", "/attention float32", post("/attention", body, BINARY))


def texts() -> Iterator[Request]:
    """Yield requests for each text alone and in pairs, and for all texts at once."""
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
    """Yield requests that name an engine, and requests that compare both engines."""
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
