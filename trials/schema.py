"""What Schemathesis makes of our own OpenAPI document, against a server that runs.

Half of the cases are such as the document allows, half such as it forbids (where two engines
compute, fewer are allowed); a quarter of all ask for the binary form. A case that the document
allows may be refused: it cannot say how many layers the model has. Everything else is checked.
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
"""Which share of an operation's cases the document allows, unless that is half."""
BINARY = "application/vnd.safetensors"


@dataclass
class Fuzzed:
    """One operation."""

    operation: str
    cases: int = 0
    failures: list[str] = field(default_factory=list)
    """What a check said of a reply."""


def fuzz(url: str, path: str, method: str, count: int) -> Fuzzed:
    """Send so many cases of one operation, and check every reply."""
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
                fuzzed.failures.append(_told(error))

        positive = max(1, round(count * POSITIVE.get(fuzzed.operation, 0.5)))
        counts = {GenerationMode.POSITIVE: positive}
        if operation.body:
            counts[GenerationMode.NEGATIVE] = count - positive
        for mode, cases in counts.items():
            _generate(operation.as_strategy(generation_mode=mode), send, cases)
    return fuzzed


@functools.cache
def _schema(url: str) -> Any:
    """A server's document, read once in a process."""
    import schemathesis

    return schemathesis.openapi.from_url(f"{url}/openapi.json")


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


def _told(error: BaseException) -> str:
    parts = getattr(error, "exceptions", [error])
    return " ".join("; ".join(str(part) for part in parts).split())[:500]


def operations(document: dict[str, Any]) -> list[tuple[str, str, bool]]:
    """Path, method and whether it takes a body, of each operation; those that do come first."""
    found = [
        (path, method.upper(), "requestBody" in operation)
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
    ]
    return sorted(found, key=lambda one: not one[2])


def trial(url: str, document: dict[str, Any], scale: Scale) -> list[Gate]:
    """Every operation of a server; of those with a body at least so many cases."""
    count, todo = scale.of(10_000, 8), operations(document)
    processes = scale.of(PROCESSES, 1)  # for few cases the libraries take longer than the cases
    with ProcessPoolExecutor(processes, get_context("spawn")) as pool:
        jobs = [pool.submit(fuzz, url, path, method, count) for path, method, _ in todo]
        found = [job.result() for job in jobs]
    return judge(found, {f"{method} {path}" for path, method, body in todo if body}, count)


def judge(found: list[Fuzzed], with_body: set[str], count: int) -> list[Gate]:
    """No check may fail."""
    gates = []
    for one in found:
        if one.operation in with_body:
            gates.append(at_least(f"{one.operation}: cases", count, one.cases))
        gates.append(exactly(f"{one.operation}: checks that failed", 0, len(one.failures)))
    told = [failure for one in found for failure in one.failures[:SHOWN]]
    return [*gates, *(Gate("… said", "nothing", failure, False) for failure in told)]
