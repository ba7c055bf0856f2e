"""Texts beside pictures, and pictures beside texts, long lists of pictures, and many chunks.

One service has the default model and a model of pictures of its size with random weights: 6 layers,
384 features, 197 tokens. Single requests come at fixed times, whatever the service does. Beside
them another client sends its requests as fast as it gets replies.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path

import transformers

from model.images.pixels import sample_file
from model.sources.locate import DEFAULT_MODEL
from testing.generators import generate
from testing.load import Job
from testing.pictures import crowded
from trials.gates import Gate, Scale, at_most, exactly, main
from trials.neighbours import SINGLE, WORDS, Beside, sending
from trials.overload import Probes, p99, probing
from trials.servers import Service, serve

PICTURES = "pictures"


def encoded(data: bytes) -> dict[str, str]:
    """Return a file as an input of a request."""
    return {"image": base64.b64encode(data).decode()}


FILE = encoded(sample_file(512))
OF_PICTURES = {"model": PICTURES, "outputs": ["pooled"]}
ONE = [("/encode", {"inputs": FILE, **OF_PICTURES})]
RATES = {"texts": 10.0, "pictures": 2.0}
"""Single requests a second, by what they encode."""
REQUESTS = {"texts": SINGLE, "pictures": ONE}
CUT = {"truncate": True, "outputs": ["pooled"]}
LISTS = {
    "lists of 32 pictures": sending("/encode", {"inputs": [FILE] * 32, **OF_PICTURES}),
    "lists of 32 pictures, 8 connections": sending(
        "/encode", {"inputs": [FILE] * 32, **OF_PICTURES}, None, 8
    ),
    "pictures of many chunks, 3 connections": sending(
        "/encode", {"inputs": encoded(crowded(10_000_000)["PNG texts"]), **OF_PICTURES}, None, 3
    ),
    "lists of 32 pictures with as many chunks as are taken": sending(
        "/encode", {"inputs": [encoded(crowded(7_500)["PNG profiles"])] * 32, **OF_PICTURES}
    ),
    "lists of 32 texts of 250 words": sending("/encode", {"inputs": [WORDS] * 32, **CUT}),
}
"""Other client by its description."""


@contextlib.asynccontextmanager
async def texts_and_pictures() -> AsyncIterator[Service]:
    """Run a service of the default model and of a model of pictures, named `PICTURES`."""
    with tempfile.TemporaryDirectory() as folder:
        checkpoint = Path(folder) / PICTURES
        config = transformers.ViTConfig(
            hidden_size=384, num_hidden_layers=6, num_attention_heads=6, intermediate_size=1536
        )
        transformers.ViTModel(config).save_pretrained(checkpoint)
        processor = {"image_processor_type": "ViTImageProcessor"}
        (checkpoint / "preprocessor_config.json").write_text(json.dumps(processor))
        artifact = str(Path(folder) / "artifact")
        export = ("export", "--model", str(checkpoint), "--out", artifact)
        await asyncio.to_thread(
            subprocess.run, [sys.executable, "-m", "service", *export], check=True
        )
        models = ("--model", DEFAULT_MODEL, "--artifact", artifact)
        async with serve(
            *models, "--served-model-name", "default", "--served-model-name", PICTURES
        ) as service:
            yield service


async def singles(service: Service, what: str, seconds: int) -> tuple[set[str], float]:
    """Return the outcomes of single requests, and the p99 of their latency in ms."""
    rate = RATES[what]
    job = Job(service.port, list(REQUESTS[what]), rate=rate, count=round(rate * seconds))
    result = await asyncio.to_thread(generate, job)
    return set(result.outcomes), p99(result.latencies_ms)


async def _beside(
    service: Service, name: str, beside: Beside, scale: Scale, alone: dict[str, float]
) -> list[Gate]:
    """Return the gates of single texts and single pictures beside another client."""
    gates, probes = [], Probes()
    async with probing(service, probes), beside(service):
        for what in RATES:
            outcomes, found = await singles(service, what, scale.of(20, 2))
            allowed = min(2000.0, 10 * alone[what]) * scale.slack
            title = f"single {what} beside {name}"
            gates += [
                exactly(title, {"right"}, outcomes),
                at_most(f"{title}: p99 (alone {alone[what]:.0f} ms)", allowed, found, " ms"),
            ]
    silence = max(probes.latencies_ms)
    return [
        *gates,
        exactly(f"beside {name}: liveness probes that failed", 0, probes.failed),
        at_most(f"beside {name}: silence of liveness", 250 * scale.slack, silence, " ms"),
    ]


async def trial(scale: Scale) -> list[Gate]:
    """Return the gates of single texts and pictures alone, then beside each other client."""
    gates, alone = [], {}
    async with texts_and_pictures() as service:
        for what in RATES:
            await singles(service, what, scale.of(5, 1))
            outcomes, alone[what] = await singles(service, what, scale.of(20, 2))
            gates.append(exactly(f"single {what} alone", {"right"}, outcomes))
        for name, beside in [*LISTS.items()][: scale.of(len(LISTS), 1)]:
            gates += await _beside(service, name, beside, scale, alone)
    return gates


def run(scale: Scale) -> list[Gate]:
    """Run the trial of texts and pictures beside each other."""
    return asyncio.run(trial(scale))


if __name__ == "__main__":
    main(__doc__, picture_loads=run)
