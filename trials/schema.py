"""Schemathesis on the service's OpenAPI document, against a running server.

The document allows half of the cases and forbids the other half (it allows fewer where two engines
compute); a quarter of all request the binary form. The service may refuse a case that the document
allows, since the document does not give the model's number of layers. Everything else is checked.
"""

from __future__ import annotations

import functools
import itertools
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from multiprocessing import get_context
from typing import Any

from trials.gates import Gate, Scale, at_least, exactly

SEED, PROCESSES, SHOWN = 5, 2, 3
POSITIVE = {"POST /verify": 0.05}
"""Share of an operation's cases that the document allows, where it is not one half."""
BINARY = "application/vnd.safetensors"
REFUSALS = (400, 404, 408, 413, 415, 422, 429, "5xx")
"""Statuses that refuse a body; a body may also be too large, and another check judges a 5xx."""


@dataclass
class Fuzzed:
    """Results of one operation's cases."""

    operation: str
    cases: int = 0
    failures: list[str] = field(default_factory=list)
    """Messages of failed checks."""


def fuzz(url: str, path: str, method: str, count: int) -> Fuzzed:
    """Send `count` cases of one operation, and check every reply."""
    import requests
    from schemathesis import GenerationMode
    from schemathesis.checks import load_all_checks
    from schemathesis.core.failures import FailureGroup

    operation = _schema(url)[path][method]
    fuzzed = Fuzzed(f"{method} {path}")
    excluded = [_check("positive_data_acceptance", load_all_checks)]
    with requests.Session() as session:
        accepts = itertools.cycle(({}, {}, {}, {"accept": BINARY}))

        def send(case: Any) -> None:
            fuzzed.cases += 1
            response = case.call(session=session, headers=next(accepts), timeout=60)
            try:
                case.validate_response(response, excluded_checks=excluded)
            except (FailureGroup, AssertionError) as error:
                fuzzed.failures.append(f"{response.status_code}: {_message(error)}")

        positive = max(1, round(count * POSITIVE.get(fuzzed.operation, 0.5)))
        counts = {GenerationMode.POSITIVE: positive}
        if operation.body:
            counts[GenerationMode.NEGATIVE] = count - positive
        for mode, cases in counts.items():
            _generate(operation.as_strategy(generation_mode=mode), send, cases)
    return fuzzed


@functools.cache
def _schema(url: str) -> Any:
    """Return a server's document, read once in a process."""
    import schemathesis
    from schemathesis.config import SchemathesisConfig

    checks = {"negative_data_rejection": {"expected-statuses": [*REFUSALS]}}
    config = SchemathesisConfig.from_dict({"checks": checks})
    return schemathesis.openapi.from_url(f"{url}/openapi.json", config=config)


def _check(name: str, load: Any) -> Any:
    from schemathesis.checks import CHECKS

    load()
    return CHECKS.get_one(name)


def _generate(strategy: Any, send: Any, count: int) -> None:
    from hypothesis import HealthCheck, Phase, given, seed, settings

    chosen = settings(
        max_examples=count,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    seed(SEED)(chosen(given(strategy)(send)))()


def _message(error: BaseException) -> str:
    parts = getattr(error, "exceptions", [error])
    return " ".join("; ".join(str(part) for part in parts).split())[:500]


def operations(document: dict[str, Any]) -> list[tuple[str, str, bool]]:
    """Return each operation's path, method and whether it has a body, true ones first."""
    listed = [
        (path, method.upper(), "requestBody" in operation)
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
    ]
    return sorted(listed, key=lambda operation: not operation[2])


def trial(url: str, document: dict[str, Any], scale: Scale) -> list[Gate]:
    """Fuzz every operation of a server; an operation with a body must get enough cases."""
    count, todo = scale.of(10_000, 8), operations(document)
    processes = scale.of(
        PROCESSES, 1
    )  # for few cases importing the libraries takes longer than the cases
    with ProcessPoolExecutor(processes, get_context("spawn")) as pool:
        jobs = [pool.submit(fuzz, url, path, method, count) for path, method, _ in todo]
        results = [job.result() for job in jobs]
    return judge(results, {f"{method} {path}" for path, method, body in todo if body}, count)


def judge(results: list[Fuzzed], with_body: set[str], count: int) -> list[Gate]:
    """Return the gates of all operations: no check may fail."""
    gates = []
    for fuzzed in results:
        if fuzzed.operation in with_body:
            gates.append(at_least(f"{fuzzed.operation}: cases", count, fuzzed.cases))
        gates.append(exactly(f"{fuzzed.operation}: checks that failed", 0, len(fuzzed.failures)))
    shown = [failure for fuzzed in results for failure in fuzzed.failures[:SHOWN]]
    return [*gates, *(Gate("… said", "nothing", failure, False) for failure in shown)]
