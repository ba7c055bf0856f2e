"""Trials of Ray on this machine: replicas under Ray Serve, and a corpus by Ray Data; `make ray`."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import psutil
import pyarrow as pa
import pyarrow.parquet as pq

from testing.client import HANG_SECONDS, Lost, Reply, ask, request
from testing.clients import Clients
from trials import ray_cluster as cluster
from trials.faults import body, outcome
from trials.gates import Gate, Scale, at_least, at_most, exactly
from trials.oracle import WORDS
from trials.servers import PATIENT
from trials.swaps import repository

BATCH_SECONDS = 0.05
CAPACITY = 1 / BATCH_SECONDS
"""Texts a second of one replica, at one text a batch."""
ENGINE = {"batch_seconds": BATCH_SECONDS}
ONE_A_BATCH = {"max_batch_tokens": 1, **PATIENT}
LOAD = 0.4
CLEAN_SECONDS, BACK_SECONDS = 10.0, 30.0
SETTLE_SECONDS = 2.0
CLIENTS_A_REPLICA = 8
TEXT = ["the water"]


async def asked(port: int, name: str, body: object) -> Reply:
    """Return the reply to a request with an id, over a connection of its own."""
    return await ask(port, "/encode", body, x_request_id=name)


@dataclass
class Arrivals:
    """Requests that are due at a constant rate, whatever the earlier outcomes (open loop)."""

    port: int
    rate: float
    body: object = field(default_factory=lambda: body(TEXT))
    name: str = field(default_factory=lambda: uuid.uuid4().hex)
    """Prefix of these requests' ids."""
    sent: dict[str, float] = field(default_factory=dict)
    """`time.monotonic()` of sending, by id."""
    answered: dict[str, float] = field(default_factory=dict)
    """`time.monotonic()` of the reply or loss, by id."""
    replies: dict[str, Reply | None] = field(default_factory=dict)
    """Reply by id; None for a lost request."""

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Send requests during the block, and wait at the end until all have ended."""
        async with asyncio.TaskGroup() as group:
            source = group.create_task(self._source(group))
            yield
            source.cancel()

    async def _source(self, group: asyncio.TaskGroup) -> None:
        begun = time.monotonic()
        for number in itertools.count():
            await asyncio.sleep(begun + number / self.rate - time.monotonic())
            group.create_task(self._ask(f"{self.name}-{number}"))

    async def _ask(self, name: str) -> None:
        self.sent[name], self.replies[name] = time.monotonic(), None
        with contextlib.suppress(Lost, OSError):
            self.replies[name] = await asked(self.port, name, self.body)
        self.answered[name] = time.monotonic()

    @property
    def outcomes(self) -> dict[str, str]:
        """Outcome by id: `right`, `wrong`, `lost` or a status."""
        found = self.replies.items()
        return {name: "lost" if reply is None else outcome(TEXT, reply) for name, reply in found}


@dataclass(frozen=True)
class Kill:
    """Result of killing a replica."""

    lost: set[str]
    in_flight: set[str]
    """Requests that were unanswered as the replica died, and not begun by another replica."""
    right: int
    clean_seconds: float
    """Seconds until the last request was sent that was not answered right."""
    back_seconds: float
    """Seconds until two other replicas have answered."""


async def kill_once(port: int, journal: Path) -> Kill:
    """Kill one of two replicas by SIGKILL at 0.4 of their capacity."""
    load = Arrivals(port, LOAD * 2 * CAPACITY)
    async with load.running():
        await asyncio.sleep(SETTLE_SECONDS)
        victim = cluster.workers(cluster.REPLICA)[0]
        victim.kill()
        killed = time.monotonic()
        back = await _back(journal, victim) - killed
        await asyncio.sleep(SETTLE_SECONDS)
    lost = {name for name, outcome in load.outcomes.items() if outcome != "right"}
    waiting = {name for name, sent in load.sent.items() if sent < killed < load.answered[name]}
    last = max((load.sent[name] for name in lost), default=killed)
    return Kill(
        lost=lost,
        in_flight=waiting - cluster.begun(journal, besides=victim.pid),
        right=len(load.outcomes) - len(lost),
        clean_seconds=max(0.0, last - killed),
        back_seconds=back,
    )


async def _back(journal: Path, victim: psutil.Process) -> float:
    """Return the time at which two other replicas have answered."""
    async with asyncio.timeout(HANG_SECONDS):
        while True:
            pids = {process.pid for process in cluster.workers(cluster.REPLICA)} - {victim.pid}
            if sum(cluster.answered(journal, pid) for pid in pids) == 2:
                return time.monotonic()
            await asyncio.sleep(0.25)


async def killed(port: int, scale: Scale, journal: Path) -> list[Gate]:
    """Kill a replica several times."""
    count = scale.of(10, 1)
    kills = [await kill_once(port, journal) for _ in range(count)]
    clean = max(kill.clean_seconds for kill in kills)
    back, most = [kill.back_seconds for kill in kills], BACK_SECONDS * scale.slack
    name = f"kill -9 of one of two replicas at {LOAD} of capacity ×{count}"
    others = sum(len(kill.lost - kill.in_flight) for kill in kills)
    in_flight, lost = (
        sum(len(getattr(kill, name)) for kill in kills) for name in ("in_flight", "lost")
    )
    return [
        exactly(f"{name}: lost, but not in flight on it", 0, others),
        at_most("… lost of those that were", in_flight, lost),
        at_least("… requests answered", 1, sum(kill.right for kill in kills)),
        at_most("… routing clean after", CLEAN_SECONDS * scale.slack, clean, " s"),
        at_most("… capacity back after", most, max(back), " s"),
        at_most("… median", most, statistics.median(back), " s"),
    ]


async def stopped(port: int, journal: Path) -> list[Gate]:
    """Let Serve stop one of two replicas under load, as autoscaling does."""
    load = Arrivals(port, LOAD * CAPACITY)
    async with load.running():
        await asyncio.sleep(SETTLE_SECONDS)
        await asyncio.to_thread(cluster.run_stub, ENGINE, journal, ONE_A_BATCH, num_replicas=1)
        async with asyncio.timeout(HANG_SECONDS):
            while len(cluster.workers(cluster.REPLICA)) > 1:
                await asyncio.sleep(0.25)
        await asyncio.sleep(SETTLE_SECONDS)
    outcomes = set(load.outcomes.values())
    return [exactly("a replica is stopped under load: outcomes", {"right"}, outcomes)]


async def rate(port: int, replicas: int, seconds: float) -> float:
    """Return the texts a second with enough clients to keep every replica busy."""
    contents = (
        request("/encode", body(TEXT), {"x-request-id": f"r{number}"})
        for number in itertools.count()
    )
    load = Clients(port, ((content, partial(outcome, TEXT)) for content in contents))
    async with load.running(CLIENTS_A_REPLICA * replicas):
        await asyncio.sleep(seconds)
        done = load.outcomes["right"]
    return done / seconds


async def refusing(port: int) -> list[Gate]:
    """Send 64 requests at once where 4 texts may wait; all refusals must be the service's own."""
    replies = await asyncio.gather(*(asked(port, f"q{number}", body(TEXT)) for number in range(64)))
    refused = [reply for reply in replies if reply.status != 200]
    own = sum(
        reply.header("content-type") == "application/problem+json"
        and int(reply.header("retry-after") or 0) >= 1
        for reply in refused
    )
    return [
        exactly("too many at once: statuses", {200, 429}, {reply.status for reply in replies}),
        at_least("… refused", 1, len(refused)),
        exactly("… with the service's own problem and Retry-After", len(refused), own),
    ]


def ray_serve(scale: Scale) -> list[Gate]:
    """Kill and stop replicas under load, measure their throughput, and let them refuse."""
    seconds = scale.of(20, 2)
    with (
        tempfile.TemporaryDirectory() as folder,
        cluster.cluster(cpus=5),
        cluster.proxy() as port,
    ):
        journal = Path(folder)
        cluster.run_stub(ENGINE, journal, ONE_A_BATCH, num_replicas=2)
        gates = asyncio.run(killed(port, scale, journal))
        two = asyncio.run(rate(port, 2, seconds))
        gates += asyncio.run(stopped(port, journal))
        one = asyncio.run(rate(port, 1, seconds))
        name = "throughput of two replicas, times one"
        gates.append(at_least(name, 1.9 / scale.slack, two / one))
        cluster.run_stub(ENGINE, journal, {"max_batch_tokens": 1, "max_queue_texts": 4})
        gates += asyncio.run(refusing(port))
        gates += asyncio.run(configured(port, scale))
    return gates


FILE = "deploy/ray/serve.yaml"
CLIENTS, REPLICAS = 64, 2
CONFIGURED_SECONDS = 120.0
"""Seconds for the new application to answer, and for it to scale."""


async def configured(port: int, scale: Scale) -> list[Gate]:
    """Deploy the shipped file to the running Serve, in place of the stub: it serves and scales."""
    command = [Path(sys.executable).with_name("serve"), "run", "--non-blocking", FILE]
    environment = os.environ | {"RAY_ADDRESS": cluster.address()}
    await asyncio.to_thread(
        subprocess.run, command, cwd=cluster.ROOT, env=environment, capture_output=True, check=True
    )
    least, engine, replicas = scale.of(REPLICAS, 1), "", 0
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(CONFIGURED_SECONDS):
            while engine in ("", "fake"):
                await asyncio.sleep(0.5)
                reply = await asked(port, "engine", body(TEXT))
                engine = str(reply.json()["backend"]) if reply.status == 200 else ""
    content = request("/encode", body(TEXT), {"x-request-id": "load"})
    load = Clients(port, itertools.repeat((content, lambda reply: str(reply.status))))
    async with load.running(CLIENTS):
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(CONFIGURED_SECONDS):
                while (replicas := len(cluster.workers(cluster.REPLICA))) < least:
                    await asyncio.sleep(0.5)
        await load.until("200", 1)
    return [
        exactly(f"{FILE}: the engine of its replies", "onnx", engine),
        at_least(f"… replicas for {CLIENTS} clients", least, replicas),
        exactly("… statuses", set(), set(load.outcomes) - {"200", "429"}),
    ]


SIZES = {"old": 24, "new": 36}
"""Hidden size of each version of a model, by which replies show theirs."""


def deploy(root: Path, journal: Path, name: str) -> None:
    """Deploy a version by its configuration, and wait until all replicas have it."""
    settings = ONE_A_BATCH | {"artifact": root / name}
    cluster.run_stub(ENGINE, journal, settings, num_replicas=2)


async def _changed(port: int, root: Path, journal: Path) -> list[Gate]:
    whole = {"inputs": TEXT, "outputs": ["pooled"], "normalize": False}
    load = Arrivals(port, LOAD * CAPACITY, whole)
    async with load.running():
        await asyncio.sleep(SETTLE_SECONDS)
        changing = time.monotonic()
        await asyncio.to_thread(deploy, root, journal, "new")
        changed = time.monotonic()
        await asyncio.sleep(SETTLE_SECONDS)
    replies = {name: reply for name, reply in load.replies.items() if reply is not None}
    fine = {name: reply for name, reply in replies.items() if reply.status == 200}
    sizes = {name: len(reply.json()["results"][0]["pooled"]) for name, reply in fine.items()}
    fingerprints = {
        (sizes[name], reply.header("x-model-fingerprint")) for name, reply in fine.items()
    }
    before = {sizes[name] for name in fine if load.answered[name] <= changing}
    after = {sizes[name] for name in fine if load.sent[name] >= changed}
    name = "another version by the configuration, under load: lost or refused"
    meanwhile = sum(changing < at < changed for at in load.sent.values())
    return [
        exactly(name, 0, len(load.replies) - len(fine)),
        at_least("… requests sent while it changed", 1, meanwhile),
        exactly("… sizes of the replies before", {SIZES["old"]}, before),
        exactly("… sizes of the replies after", {SIZES["new"]}, after),
        exactly("… sizes and fingerprints", 2, len(fingerprints)),
    ]


def ray_change(_: Scale) -> list[Gate]:
    """Change a model's version by the configuration while requests run, with two replicas.

    A reply belongs to the old version until the change begins, and to the new one from its end on;
    between, to either.
    """
    with (
        repository(
            {name: {"config": {"hidden_size": size}} for name, size in SIZES.items()}
        ) as root,
        tempfile.TemporaryDirectory() as journal,
        cluster.cluster(cpus=5),
        cluster.proxy() as port,
    ):
        deploy(root, Path(journal), "old")
        return asyncio.run(_changed(port, root, Path(journal)))


SEED, ACTORS = 20170612, 2
ACTOR = "ray::MapWorker"
CORPUS_SECONDS = 1800.0


def write_corpus(folder: Path, files: int, rows: int) -> list[Path]:
    """Write Parquet files of short, numbered texts."""
    source, paths = (
        random.Random(SEED),
        [folder / f"{number:03}.parquet" for number in range(files)],
    )
    for number, path in enumerate(paths):
        texts = [" ".join(source.choices(WORDS, k=source.randint(2, 6))) for _ in range(rows)]
        ids = range(number * rows, (number + 1) * rows)
        pq.write_table(pa.table({"id": ids, "text": texts}), path)
    return paths


@contextlib.contextmanager
def encoding(inputs: Path, out: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Run the command on the running cluster."""
    command = [sys.executable, "-m", "deploy.ray.encode", f"{inputs}/*.parquet", "--out", str(out)]
    environment = os.environ | {"RAY_ADDRESS": cluster.address()}
    with subprocess.Popen(
        [*command, "--actors", str(ACTORS)],
        cwd=cluster.ROOT,
        env=environment,
        stderr=subprocess.DEVNULL,
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def until(what: Callable[[], bool], process: subprocess.Popen[bytes]) -> None:
    """Wait until a condition holds while the run goes on.

    Raises:
        RuntimeError: the run has ended, or the condition does not hold in time.

    """
    deadline = time.monotonic() + CORPUS_SECONDS
    while not what():
        if process.poll() is not None or time.monotonic() > deadline:
            raise RuntimeError(f"the run ended with {process.poll()}, or hangs")
        time.sleep(0.1)


def ray_corpus(scale: Scale) -> list[Gate]:
    """Encode 100,000 texts by Ray Data: kill an actor, then the run, and resume it.

    The outputs are compared with those of `headscope encode`.
    """
    files, rows = 10, scale.of(10_000, 300)
    with tempfile.TemporaryDirectory() as folder, cluster.cluster(cpus=ACTORS):
        inputs, out, alone = (Path(folder) / name for name in ("in", "out", "alone"))
        for path in inputs, alone:
            path.mkdir()
        paths = write_corpus(inputs, files, rows)

        def done() -> list[Path]:
            return sorted(out.glob("*.parquet"))

        with encoding(inputs, out) as process:
            until(lambda: any(out.glob("*.part/*.part")), process)
            cluster.workers(ACTOR)[0].kill()
            until(lambda: len(done()) >= files // 2, process)
        kept = {path: path.stat().st_mtime_ns for path in done()}
        cluster.wait_for_end(ACTOR)
        with encoding(inputs, out) as process:
            code = process.wait(CORPUS_SECONDS)
        again = [path for path, time_ns in kept.items() if path.stat().st_mtime_ns != time_ns]
        for path in paths:
            command = [sys.executable, "-m", "service", "encode", path, "--out", alone / path.name]
            subprocess.run(command, cwd=cluster.ROOT, stderr=subprocess.DEVNULL, check=True)
        equal = [(alone / p.name).read_bytes() == (out / p.name).read_bytes() for p in paths]
        rows_written = sum(pq.read_metadata(path).num_rows for path in done())
    return [
        exactly("an actor is killed, then the run: exit code of the one that goes on", 0, code),
        exactly("… texts in the outputs", files * rows, rows_written),
        exactly("… files equal to `headscope encode`'s, byte for byte", files, sum(equal)),
        at_least("… files that were finished before", files // 2, len(kept)),
        exactly("… of those, written again", 0, len(again)),
    ]
