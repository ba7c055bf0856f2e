"""Pairs of long texts that are truncated, on every route of pairs, and a neighbour's single texts.

Both texts have as many characters as the service takes. A cost of the product of their lengths
would take minutes and gigabytes. Each request is sent again as soon as it is answered.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

from testing.client import ask
from trials.gates import Gate, Scale, at_most, exactly, main
from trials.neighbours import sending, singles
from trials.overload import Probes, probing
from trials.servers import Service, serve
from trials.task_models import TASK_MODEL, with_task_model

CHARACTERS = 2**17
"""Characters of each text of a pair, beyond which a pair that is cut is refused."""
DOCUMENTS, OF_DOCUMENT = 20, 16_000
"""Number of documents of a list, and characters of each and of the query."""
UNITS = {
    "exclamation marks": "!",
    "Chinese": "水和山",
    "English": "the water of the river ",
    "one-letter words": "a b c ",
}
SHORT = 2**12
"""Characters of each text of the pairs that are cut to the same tokens, for comparison."""
MORE_BYTES = 100 * 2**20
"""Memory that pairs of long texts may take in addition to pairs of short texts."""
CUT = {"truncate": True}
TASK = {"model": TASK_MODEL}
Requests = Mapping[str, tuple[str, object]]


def _text(unit: str, size: int) -> str:
    return (unit * size)[:size]


def of_default_model(unit: str, most: int) -> Requests:
    """Return the path and body of a request of each route of the default model."""
    pair = {"inputs": [[_text(unit, min(most, CHARACTERS))] * 2], **CUT}
    return {
        "/encode": ("/encode", {**pair, "outputs": ["pooled"]}),
        "/attention": ("/attention", {**pair, "layers": [0], "heads": [0], "top_k": 1}),
        "/attention/scores": (
            "/attention/scores",
            {**pair, "layer": 0, "head": 0, "queries": [0], "keys": [0]},
        ),
        "/verify": ("/verify", pair),
    }


def of_cross_encoder(unit: str, most: int) -> Requests:
    """Return the path and body of a request of each route of a cross-encoder."""
    one, document = (_text(unit, min(most, size)) for size in (CHARACTERS, OF_DOCUMENT))
    documents = {"query": document, "documents": [document] * DOCUMENTS, **TASK}
    return {
        "/predict": ("/predict", {"inputs": [[one, one]], **CUT, **TASK}),
        "/rerank": ("/rerank", {"query": one, "texts": [one], **CUT, **TASK}),
        "/rerank of 20": (
            "/rerank",
            {"query": document, "texts": [document] * DOCUMENTS, **CUT, **TASK},
        ),
        "/v2/rerank of 20": ("/v2/rerank", documents),
        "/score of 20": (
            "/score",
            {
                "text_1": document,
                "text_2": [document] * DOCUMENTS,
                "truncate_prompt_tokens": -1,
                **TASK,
            },
        ),
        "/rank of 20": ("/rank", {**documents, **CUT}),
    }


async def judge(
    service: Service, routes: Callable[[str, int], Requests], scale: Scale
) -> list[Gate]:
    """Return the gates of each request of each unit."""
    gates, seconds = [], scale.of(4, 1)
    await singles(service, seconds)
    outcomes, alone = await singles(service, seconds)
    gates.append(exactly("alone", {"right"}, outcomes))
    for unit, content in [*UNITS.items()][: scale.of(len(UNITS), 1)]:
        short = routes(content, SHORT)
        for route, asked in [*routes(content, CHARACTERS).items()][: scale.of(len(short), 1)]:
            reply = await ask(service.port, *asked)
            service.forget_peak()
            async with sending(*short[route])(service):
                await singles(service, seconds)
            before = service.peak_bytes()
            probes, name = Probes(), f"{route}, {unit}"
            service.forget_peak()
            async with probing(service, probes), sending(*asked)(service):
                outcomes, beside = await singles(service, seconds)
            more, silent = service.peak_bytes() - before, max(probes.latencies_ms)
            gates += [
                exactly(f"{name}: status", 200, reply.status),
                exactly(f"{name}: single texts", {"right"}, outcomes),
                at_most(f"{name}: their p99", 10 * alone * scale.slack, beside, " ms"),
                exactly(f"{name}: liveness probes that failed", 0, probes.failed),
                at_most(f"{name}: silence of liveness", 250 * scale.slack, silent, " ms"),
                at_most(f"{name}: more memory than short ones", MORE_BYTES, more, " bytes"),
            ]
    return gates


async def trial(scale: Scale) -> list[Gate]:
    """Return the gates of the default model, and of a cross-encoder of its size."""
    async with serve() as service:
        gates = await judge(service, of_default_model, scale)
    async with with_task_model("ForSequenceClassification") as service:
        return gates + await judge(service, of_cross_encoder, scale)


def run(scale: Scale) -> list[Gate]:
    """Run the trial of truncated pairs."""
    return asyncio.run(trial(scale))


if __name__ == "__main__":
    main(__doc__, pairs=run)
