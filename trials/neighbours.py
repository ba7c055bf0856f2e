"""Single requests beside one other client whose requests are legal, on the real engine.

Each kind of neighbour in turn; the single requests come at fixed times, whatever the service does,
and latency counts from then. Meanwhile liveness is probed and memory is measured.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import itertools
import json
import math
import random
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import transformers

from model.images.pixels import sample_file
from model.sources.locate import DEFAULT_MODEL, embedded_default
from testing.blocking import ask as ask_blocking
from testing.client import ask, request
from testing.load import Job, load_beside
from testing.pictures import crowded
from trials.gates import Gate, Scale, at_most, exactly
from trials.servers import BINARY, SEED, Probes, Service, load, meanwhile, p99, probing, serve

RATE = 10.0
"""Single texts a second."""
Requests = list[tuple[str, object]]
SINGLE: Requests = [
    ("/encode", {"inputs": f"a short text, number {n}", "outputs": ["pooled"]}) for n in range(50)
]
MOST_BYTES = (512 + 256) * 2**20
"""Defaults of `--max-bytes-in-flight` and `--max-body-bytes-in-flight`: memory that requests and
their bodies take beyond what the service has at work."""
MAP_WORDS = "the water runs down the hill and " * 34 + "on and"
"""240 words, 242 tokens: their maps are 55 MB of JSON."""
WORDS = "the water runs down the hill and " * 36
"""250 words, more tokens than a text may have."""
LONG = (WORDS * 4)[:3760]
"""Longest text of which a list of 512 fits into a body of 2 MB."""
TASK_MODEL = "with-task-head"
POOLED = {"outputs": ["pooled"]}
CUT = {"truncate": True}
TASK = {**CUT, "model": TASK_MODEL}
SLOW_BYTES, SLOW_SECONDS = 2**16, 0.1
MEMORY_SECONDS = 60
DEADLINE = 30_000.0
"""Default of `--request-timeout-seconds`, in milliseconds."""
ADDRESS = "127.0.0.2"
"""Address of the other client."""
CONNECTIONS = 64
SILENT_MS = 250.0
Beside = Callable[[Service], AbstractAsyncContextManager[object]]
TaskClass = Literal["ForSequenceClassification", "ForMaskedLM"]
"""Suffix of a class of transformers: of a cross-encoder, or of a sparse encoder."""


@contextlib.asynccontextmanager
async def with_task_model(task: TaskClass) -> AsyncIterator[Service]:
    """Run a service of a model with a task head of the default model's size and random weights."""
    default = embedded_default()
    assert default is not None
    with tempfile.TemporaryDirectory() as folder:
        checkpoint = Path(folder) / TASK_MODEL
        config = transformers.BertConfig.from_pretrained(default, num_labels=1)
        getattr(transformers, f"Bert{task}")(config).save_pretrained(checkpoint)
        names = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "vocab.txt")
        for path in (default / name for name in names):
            if path.exists():
                shutil.copy(path, checkpoint)
        pooling = ["--pooling", "splade"] if task == "ForMaskedLM" else []
        flags = ["--model", str(checkpoint), "--served-model-name", TASK_MODEL, *pooling]
        async with serve(*flags) as service:
            yield service


def sending(path: str, body: object, connections: int = 1, binary: bool = False) -> Beside:
    """A client that sends the same request again as soon as it has its reply.

    It has an address of its own, by which the service tells it from the client of single texts.
    """

    @contextlib.asynccontextmanager
    async def beside(service: Service) -> AsyncIterator[None]:
        job = Job(
            service.port,
            [(path, body)],
            BINARY if binary else {},
            connections=connections,
            seconds=3600.0,
            patience_seconds=600.0,
            address=ADDRESS,
        )
        with load_beside(job):
            yield

    return beside


def slow_reader(service: Service) -> AbstractAsyncContextManager[None]:
    """Run a client that takes 75 MB of maps, 64 KiB at a time."""
    content = request("/attention", {"inputs": [WORDS] * 4, **CUT}, BINARY)

    async def read() -> None:
        while True:
            reader, writer = await asyncio.open_connection(
                "127.0.0.1", service.port, limit=SLOW_BYTES
            )
            with contextlib.closing(writer):
                writer.write(content)
                while await reader.read(SLOW_BYTES):
                    await asyncio.sleep(SLOW_SECONDS)

    return meanwhile(read())


@dataclass(frozen=True)
class Neighbour:
    """Kind of other client."""

    name: str
    beside: Beside
    start: Callable[[], AbstractAsyncContextManager[Service]] | None = None
    """Function that starts the service of which it is the first client; None for a warm service."""


explaining = sending("/explain", {"inputs": [[WORDS, WORDS]], "include": ["occlusion"], **CUT}, 8)
LISTS: Mapping[str, tuple[str, object]] = {
    "512 texts of 3,760 characters to /tokenize": ("/tokenize", {"inputs": [LONG] * 512}),
    "500,000 exclamation marks to /tokenize": ("/tokenize", {"inputs": "!" * 500_000}),
    "512 texts of 3,760 characters to /encode": (
        "/encode",
        {"inputs": [LONG] * 512, **CUT, **POOLED},
    ),
    "512 texts of 3,760 characters to /verify": ("/verify", {"inputs": [LONG] * 512, **CUT}),
}
"""Path and body of large requests, by their description."""


def _encoding(text: str, count: int) -> Beside:
    return sending("/encode", {"inputs": [text] * count, **CUT, **POOLED})


NEIGHBOURS: Sequence[Neighbour] = (
    Neighbour("lists of 512 texts of 250 words", _encoding(WORDS, 512)),
    Neighbour("lists of 32 texts of 250 words", _encoding(WORDS, 32)),
    Neighbour("bodies of 8 MB", _encoding("!" * 16384, 512)),
    Neighbour("bodies of 2 MB", _encoding("!" * 16384, 128)),
    Neighbour(
        "every map of 6 texts", sending("/attention", {"inputs": [WORDS] * 6, **CUT}, binary=True)
    ),
    Neighbour("/verify of 20 texts", sending("/verify", {"inputs": [WORDS] * 20, **CUT})),
    Neighbour("a slow reader of 75 MB", slow_reader),
    Neighbour(
        "every map as JSON, 32 connections", sending("/attention", {"inputs": MAP_WORDS}, 32)
    ),
    Neighbour("8 connections of /explain, warm", explaining),
    Neighbour("8 connections of /explain, cold", explaining, serve),
    *(
        Neighbour(f"{name}, 64 connections", sending(*asked, CONNECTIONS))
        for name, asked in LISTS.items()
    ),
    Neighbour(
        "512 texts of 3,760 characters to /rerank, 64 connections",
        sending("/rerank", {"query": "water", "texts": [LONG] * 512, **TASK}, CONNECTIONS),
        lambda: with_task_model("ForSequenceClassification"),
    ),
    Neighbour(
        "32 texts of 3,760 characters to /embed_sparse, 64 connections",
        sending("/embed_sparse", {"inputs": [LONG] * 32, **TASK}, CONNECTIONS),
        lambda: with_task_model("ForMaskedLM"),
    ),
)


async def singles(
    service: Service, seconds: int, requests: Requests = SINGLE, rate: float = RATE
) -> tuple[set[str], float]:
    """Return the outcomes of single requests, and the p99 of their latency in ms."""
    result = await load(service, requests, rate=rate, count=round(rate * seconds))
    return set(result.outcomes), p99(result.latencies_ms)


async def bytes_at_work(service: Service, scale: Scale) -> int:
    """Return the memory of a service whose engines have had full batches and all maps once.

    At short scale, where its growth is not judged, of a service that has just started.

    ONNX Runtime keeps 170 MB for such batches with the default model, until memory is released.
    """
    if scale is Scale.FULL:
        await ask(service.port, "/verify", {"inputs": WORDS, **CUT})
        for _ in range(2):
            await ask(service.port, "/encode", {"inputs": [WORDS] * 256, **CUT, **POOLED})
            await ask(service.port, "/attention", {"inputs": WORDS, **CUT}, **BINARY)
        await asyncio.sleep(1)
    return service.resident_bytes()


async def growth(service: Service, before: int, scale: Scale) -> Gate:
    """Return the gate of memory a minute later."""
    await asyncio.sleep(scale.of(MEMORY_SECONDS, 0))
    times = service.resident_bytes() / before
    return at_most("memory a minute later, times that before", 1.2 * scale.slack, times)


async def judged(
    service: Service,
    name: str,
    beside: Beside,
    most_ms: dict[str, float],
    seconds: int,
    slack: float,
) -> list[Gate]:
    """Return the gates of single requests beside a client, by what they encode, and of liveness."""
    gates, probes = [], Probes()
    async with probing(service, probes), beside(service):
        for what, most in most_ms.items():
            outcomes, found = await singles(service, seconds, *KINDS[what])
            gates += [
                exactly(f"{name}: single {what}", {"right"}, outcomes),
                at_most(f"{name}: p99 of single {what}", most * slack, found, " ms"),
            ]
    return [*gates, *probes.gates(f"{name}: ", SILENT_MS * slack)]


async def alone(service: Service, seconds: int, what: str = "texts") -> tuple[Gate, float]:
    """Return the gate of single requests to an idle service, and the p99 of their latency."""
    await singles(service, seconds, *KINDS[what])
    outcomes, found = await singles(service, seconds, *KINDS[what])
    return exactly(f"single {what} alone, p99 {found:.0f} ms", {"right"}, outcomes), found


async def neighbours(scale: Scale) -> list[Gate]:
    """Send single texts alone, then beside each neighbour."""
    seconds = scale.of(30, 1)
    async with serve() as service:
        before = await bytes_at_work(service, scale)
        gate, usual = await alone(service, seconds)
        gates, most = [gate], {"texts": min(1000.0, 10 * usual)}
        for neighbour in NEIGHBOURS[scale.of(0, 1) :: scale.of(1, 5)]:
            name = f"beside {neighbour.name}"
            started = neighbour.start or (lambda: contextlib.nullcontext(service))
            async with started() as asked:
                asked.forget_peak()
                gates += await judged(asked, name, neighbour.beside, most, seconds, scale.slack)
                peak = asked.peak_bytes()
            gates.append(at_most(f"{name}: peak of memory", before + MOST_BYTES, peak, " bytes"))
        return [*gates, await growth(service, before, scale)]


async def at_once(scale: Scale) -> list[Gate]:
    """Return the gates of each large request, of which a fresh service gets 64 at once."""
    gates = []
    for name, asked in [*LISTS.items()][: scale.of(len(LISTS), 1)]:
        async with serve() as service:
            before = await bytes_at_work(service, scale)
            service.forget_peak()
            counts = {"count": CONNECTIONS, "connections": CONNECTIONS, "patience_seconds": 120.0}
            result = await load(service, [asked], **counts)
            peak = service.peak_bytes()
        answered, shed = (max([0, *result.latencies(one)]) for one in ("right", "shed"))
        others, most = set(result.outcomes) - {"right", "shed"}, DEADLINE * scale.slack
        gates += [
            exactly(f"{name}: otherwise", set(), others),
            at_most(f"{name}: last answer", most, answered, " ms"),
            at_most(f"{name}: last refusal", most, shed, " ms"),
            at_most(f"{name}: peak", before + MOST_BYTES, peak, " bytes"),
        ]
    return gates


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


def of_default_model(unit: str, most: int) -> Mapping[str, tuple[str, object]]:
    """Return the path and body of a request of each route of pairs of the default model."""
    pair = {"inputs": [[(unit * most)[:most]] * 2], **CUT}
    options: Mapping[str, dict[str, object]] = {
        "/encode": POOLED,
        "/attention": {"layers": [0], "heads": [0], "top_k": 1},
        "/attention/scores": {"layer": 0, "head": 0, "queries": [0], "keys": [0]},
        "/verify": {},
    }
    return {path: (path, {**pair, **given}) for path, given in options.items()}


def of_cross_encoder(unit: str, most: int) -> Mapping[str, tuple[str, object]]:
    """Return the path and body of a request of each route of pairs of a cross-encoder."""
    text, document = ((unit * size)[: min(most, size)] for size in (CHARACTERS, OF_DOCUMENT))
    many, model = [document] * DOCUMENTS, {"model": TASK_MODEL}
    pairs = {"text_1": document, "text_2": many, "truncate_prompt_tokens": -1}
    return {
        "/predict": ("/predict", {"inputs": [[text, text]], **TASK}),
        "/rerank": ("/rerank", {"query": text, "texts": [text], **TASK}),
        "/rerank of 20": ("/rerank", {"query": document, "texts": many, **TASK}),
        "/v2/rerank of 20": ("/v2/rerank", {"query": document, "documents": many, **model}),
        "/score of 20": ("/score", {**pairs, **model}),
        "/rank of 20": ("/rank", {"query": document, "documents": many, **TASK}),
    }


async def pairs(scale: Scale) -> list[Gate]:
    """Send pairs of long texts that are truncated, on every route of the default model and others.

    Both texts have as many characters as the service takes. A cost of the product of their lengths
    would take minutes and gigabytes.
    """
    gates, seconds = [], scale.of(4, 1)
    for start, routes in (
        (serve, of_default_model),
        (lambda: with_task_model("ForSequenceClassification"), of_cross_encoder),
    ):
        async with start() as service:
            gate, usual = await alone(service, seconds)
            gates.append(gate)
            most = {"texts": 10 * usual}
            for unit, content in [*UNITS.items()][: scale.of(len(UNITS), 1)]:
                short = routes(content, SHORT)
                for route in [*short][: scale.of(len(short), 1)]:
                    asked, name = routes(content, CHARACTERS)[route], f"{route}, {unit}"
                    reply = await ask(service.port, *asked)
                    service.forget_peak()
                    async with sending(*short[route])(service):
                        await singles(service, seconds)
                    before = service.peak_bytes()
                    service.forget_peak()
                    gates += [
                        exactly(f"{name}: status", 200, reply.status),
                        *await judged(service, name, sending(*asked), most, seconds, scale.slack),
                    ]
                    more = service.peak_bytes() - before
                    name = f"{name}: more memory than short ones"
                    gates.append(at_most(name, MORE_BYTES, more, " bytes"))
    return gates


def _picture(data: bytes) -> dict[str, str]:
    """Return a file as an input of a request."""
    return {"image": base64.b64encode(data).decode()}


PICTURES = "pictures"
FILE = _picture(sample_file(512))
OF_PICTURES = {"model": PICTURES, **POOLED}
KINDS: dict[str, tuple[Requests, float]] = {
    "texts": (SINGLE, RATE),
    "pictures": ([("/encode", {"inputs": FILE, **OF_PICTURES})], 2.0),
}
"""Single requests, and their number a second, by what they encode."""


def picture_lists() -> Iterator[tuple[str, Beside]]:
    """Yield other clients by their description."""
    for name, inputs, connections in (
        ("lists of 32 pictures", [FILE] * 32, 1),
        ("lists of 32 pictures, 8 connections", [FILE] * 32, 8),
        (
            "pictures of many chunks, 3 connections",
            [_picture(crowded(10_000_000)["PNG texts"])],
            3,
        ),
        (
            "lists of 32 pictures with as many chunks as are taken",
            [_picture(crowded(7_500)["PNG profiles"])] * 32,
            1,
        ),
    ):
        yield name, sending("/encode", {"inputs": inputs, **OF_PICTURES}, connections)
    yield "lists of 32 texts of 250 words", _encoding(WORDS, 32)


@contextlib.asynccontextmanager
async def texts_and_pictures() -> AsyncIterator[Service]:
    """Run a service of the default model and of a model of pictures of its size, by random weights.

    It has 6 layers, 384 features and 197 tokens, and is named `PICTURES`.
    """
    with tempfile.TemporaryDirectory() as folder:
        checkpoint = Path(folder) / PICTURES
        config = transformers.ViTConfig(
            hidden_size=384, num_hidden_layers=6, num_attention_heads=6, intermediate_size=1536
        )
        transformers.ViTModel(config).save_pretrained(checkpoint)
        processor = {"image_processor_type": "ViTImageProcessor"}
        (checkpoint / "preprocessor_config.json").write_text(json.dumps(processor))
        artifact = str(Path(folder) / "artifact")
        command = [sys.executable, "-m", "service", "export", "--model", str(checkpoint)]
        await asyncio.to_thread(subprocess.run, [*command, "--out", artifact], check=True)
        names = ("--served-model-name", "default", "--served-model-name", PICTURES)
        async with serve("--model", DEFAULT_MODEL, "--artifact", artifact, *names) as service:
            yield service


async def picture_loads(scale: Scale) -> list[Gate]:
    """Send single texts and pictures alone, then beside lists of both and other pictures."""
    gates, most = [], {}
    async with texts_and_pictures() as service:
        for what in KINDS:
            gate, usual = await alone(service, scale.of(20, 2), what)
            gates.append(gate)
            most[what] = min(2000.0, 10 * usual)
        for name, beside in [*picture_lists()][: scale.of(5, 1)]:
            gates += await judged(
                service, f"beside {name}", beside, most, scale.of(20, 2), scale.slack
            )
    return gates


MOST_BODY_BYTES, LEAST_BODY_BYTES = 16 * 2**20, 2**10
GOOD = {"inputs": "a short text", **POOLED}
ALLOWED = {200, 400, 413, 422, 429}
"""Statuses with which a body of any shape may be answered."""
SHAPES = {
    "pairs": (b'{"inputs":[', b'["a","b"],', b"]}"),
    "empty lists": (b'{"inputs":[', b"[],", b"]}"),
    "objects": (b'{"inputs":[', b'{"a":1},', b"]}"),
    "numbers": (b'{"inputs":[', b"1,", b"]}"),
    "fields": (b'{"inputs":"a"', b',"x":1', b"}"),
    "short texts": (b'{"truncate":true,"inputs":[', b'"a b",', b"]}"),
    "deep": (b'{"inputs":', b"[", b""),
    "one text": (b'{"truncate":true,"inputs":"', b"water ", b'"}'),
    "long texts": (
        b'{"truncate":true,"outputs":["pooled"],"inputs":[',
        b'"' + b"!" * 16384 + b'",',
        b"]}",
    ),
    "commas in a text": (b'{"truncate":true,"inputs":"', b",", b'"}'),
    "escapes": (b'{"truncate":true,"inputs":"', b"\\u0041", b'"}'),
    "quotes": (b'{"truncate":true,"inputs":"', b'\\"', b'"}'),
    "blanks": (b'{"inputs":"a"', b" ", b"}"),
    "no JSON": (b"", b"{", b""),
    "no UTF-8": (b'{"inputs":"', b"\xff", b'"}'),
}
"""Beginning, repeated part and end of bodies."""


def any_bodies(count: int, seed: int) -> Iterator[bytes]:
    """Yield bodies of each shape in turn, of sizes that are spread evenly over their logarithm."""
    generator = random.Random(seed)
    logarithms = math.log(LEAST_BODY_BYTES), math.log(MOST_BODY_BYTES)
    for name in itertools.islice(itertools.cycle(SHAPES), count):
        size = round(math.exp(generator.uniform(*logarithms)))
        yield _body(name, min(size, MOST_BODY_BYTES - 100))


def _body(name: str, size: int) -> bytes:
    opening, item, closing = SHAPES[name]
    if name == "deep":
        return opening + b"[" * (size // 2) + b"]" * (size // 2) + b"}"
    count = max(1, (size - len(opening) - len(closing)) // len(item))
    return opening + (item * count).rstrip(b",") + closing


async def status_of(service: Service, content: bytes) -> int:
    """Return the status of a body of any shape, by a client that waits long."""
    asking = asyncio.to_thread(ask_blocking, service.port, "/encode", content, seconds=120.0)
    return (await asking).status


async def bodies(scale: Scale) -> list[Gate]:
    """Send bodies of any shape and size one after another, each followed by a good request."""
    statuses, probes, wrong = set[int](), Probes(), 0
    async with serve() as service:
        expected = (await ask(service.port, "/encode", GOOD)).body
        before = await bytes_at_work(service, scale)
        async with probing(service, probes):
            for content in any_bodies(scale.of(300, len(SHAPES)), SEED):
                statuses.add(await status_of(service, content))
                wrong += (await ask(service.port, "/encode", GOOD)).body != expected
        grown = await growth(service, before, scale)
    return [
        exactly("statuses that no body may have", set(), statuses - ALLOWED),
        exactly("a good request answered otherwise than before", 0, wrong),
        *probes.gates("", SILENT_MS * scale.slack),
        grown,
    ]


ROUND_SECONDS = 15


async def abuse(scale: Scale) -> list[Gate]:
    """Run two random neighbours, bodies of every shape and single texts together, in rounds."""
    generator, probes = random.Random(SEED), Probes()
    outcomes, statuses, latencies = Counter[str](), Counter[int](), list[float]()
    async with serve() as service:
        pattern = {"rate": RATE, "count": round(RATE * ROUND_SECONDS)}
        before = await bytes_at_work(service, scale)
        await load(service, SINGLE, **pattern)
        async with probing(service, probes):
            for number in range(scale.of(30 * 60 // ROUND_SECONDS, 1)):
                async with contextlib.AsyncExitStack() as stack:
                    for neighbour in generator.sample(NEIGHBOURS, 2):
                        await stack.enter_async_context(neighbour.beside(service))
                    asking = asyncio.create_task(load(service, SINGLE, **pattern))
                    contents = any_bodies(2000, number)
                    while not asking.done():
                        statuses[await status_of(service, next(contents))] += 1
                    result = await asking
                outcomes += Counter(result.outcomes)
                latencies += result.latencies_ms
        grown = await growth(service, before, scale)
    late = statuses[504] / statuses.total()
    return [
        exactly("outcomes of single texts", {"right"}, set(outcomes)),
        at_most("… p99 of their latency", 1000 * scale.slack, p99(latencies), " ms"),
        exactly("statuses that no body may have", set(), set(statuses) - ALLOWED - {504}),
        at_most("bodies that met their deadline first", 0.01, late),
        exactly("liveness probes that failed", 0, probes.failed),
        grown,
    ]
