"""`headscope encode` killed, on full and read-only disks, and beside foreign files; and its rate.

A finished output is held against that of an undisturbed run; a folder that has to stay as it is, by
a listing with the inode and SHA-256 of each file. Most trials have an engine that answers from a
hash, so that what takes time is the files; `file_kills` and `file_rate` have the real one, and take
an hour at full scale on two cores. The command runs in processes that are forked from one that has
imported everything.
"""

from __future__ import annotations

import hashlib
import json
import multiprocessing
import os
import random
import shutil
import socket
import stat
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.harness.texts import read_workload
from service.cli import main
from testing.disks import mount, small_disk
from testing.memory import memory_bytes
from trials.gates import Gate, Scale, at_least, at_most, exactly
from trials.oracle import WORDS, artifact

OUTPUTS = (
    ("pooled", ".npy"),
    ("importance", ".npy"),
    ("tokens", ".npz"),
    ("stats", ".safetensors"),
    ("pooled", ".parquet"),
    ("tokens", ".parquet"),
    ("pooled", ".jsonl"),
    ("stats", ".jsonl"),
)
TEXTS, MAPPED_TEXTS, SEED = 600, 60, 0
"""Texts of a run; of one that takes the maps of every head, which are slow to make up."""
KILLS, FEW_TEXTS = 3, 1000
MOST_MEMORY, LEAST_RATE = 1.15, 0.95
DISK_BYTES = 64 * 2**20
_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(
    ["trials.files", "service.files.run", "service.files.parquet", "service.models.start"]
)
HANG_SECONDS = 3600.0


class Command:
    """Run of the command in a process of its own."""

    def __init__(self, arguments: Sequence[str], said: Path, engine: str) -> None:
        """Start the run; its standard error goes to the file `said`."""
        self._said = said
        self._peak: Any = _CONTEXT.Value("q", 0, lock=False)
        given = ([*arguments], said, engine, self._peak)
        self._process: Any = _CONTEXT.Process(target=_run, args=given)
        self._process.start()

    def ended(self) -> tuple[int, list[str]]:
        """Wait for the end; return the exit code, and the lines of what went wrong."""
        self.killed(HANG_SECONDS)
        lines = self._said.read_text(encoding="utf-8").splitlines()
        return int(self._process.exitcode), [line for line in lines if line.strip()]

    def killed(self, after_seconds: float) -> bool:
        """Kill the run after some seconds, and return whether it still ran."""
        self._process.join(after_seconds)
        running: bool = self._process.exitcode is None
        if running:
            self._process.kill()
            self._process.join()
        return running

    @property
    def peak_bytes(self) -> int:
        """Peak of the resident memory of a run that has ended."""
        return int(self._peak.value)


def _run(arguments: list[str], said: Path, engine: str, peak: Any) -> None:
    os.environ["HEADSCOPE_ENGINE"] = engine
    with said.open("wb") as file:
        os.dup2(file.fileno(), 2)
    code = main(arguments)
    peak.value = memory_bytes("self", "VmHWM")
    sys.exit(code)


Listing = dict[str, tuple[str, int, str]]


def listing(folder: Path) -> Listing:
    """Return what each thing below a folder is, its inode, and its SHA-256 or its link's target."""
    return {str(path.relative_to(folder)): _described(path) for path in folder.rglob("*")}


def _described(path: Path) -> tuple[str, int, str]:
    found = path.lstat()
    content = ""
    if stat.S_ISLNK(found.st_mode):
        content = str(path.readlink())
    elif stat.S_ISREG(found.st_mode):
        content = hashlib.sha256(path.read_bytes()).hexdigest()
    return stat.filemode(found.st_mode), found.st_ino, content


class Bench:
    """Folder with inputs, the outputs of undisturbed runs, and a folder for disturbed ones."""

    def __init__(self, folder: Path, engine: str = "fake") -> None:
        """Write the inputs of the fake engine."""
        self.folder, self.engine, self.chance = folder, engine, random.Random(SEED)
        self.source, self.few = folder / "texts.jsonl", folder / "few.jsonl"
        self.work = folder / "work"
        self.work.mkdir()
        self.seconds, self.peaks = dict[str, float](), dict[str, int]()
        """Seconds of each finished run and the peak of its memory, by the name of its output."""
        texts = [" ".join(self.chance.choices(WORDS, k=2 + n % 11)) for n in range(TEXTS)]
        self.write(texts, MAPPED_TEXTS)

    def write(self, texts: Sequence[str], few: int) -> None:
        """Write the texts, and the first few of them as an input of their own."""
        lines = [json.dumps({"id": n, "text": text}) + "\n" for n, text in enumerate(texts)]
        self.source.write_text("".join(lines), encoding="utf-8")
        self.few.write_text("".join(lines[:few]), encoding="utf-8")

    def start(self, kind: str, out: Path, *more: str, few: bool = False) -> Command:
        """Start a run that writes `out`."""
        source = self.few if few or kind in ("stats", "importance") else self.source
        options = ["--outputs", kind, "--artifact", str(artifact().folder), "--device", "cpu"]
        options += ["--max-batch-tokens", "16"] if self.engine == "fake" else ["--truncate"]
        said = self.folder / f"said-{self.chance.getrandbits(64):x}"
        command = ["encode", str(source), "--out", str(out), *options, *more]
        return Command(command, said, self.engine)

    def whole(self, kind: str, suffix: str) -> bytes:
        """Return the output of an undisturbed run, whose time is noted."""
        out = self.folder / f"whole-{kind}{suffix}"
        if not out.exists():
            for _ in range(2 if self.engine == "fake" else 1):  # the first run has more to load
                out.unlink(missing_ok=True)
                self.finish(kind, out)
        return out.read_bytes()

    def finish(self, kind: str, out: Path, *, few: bool = False) -> None:
        """Run the command to its end.

        Raises:
            RuntimeError: it failed.

        """
        began, run = time.monotonic(), self.start(kind, out, few=few)
        code, said = run.ended()
        if code:
            raise RuntimeError(f"headscope encode failed: {said}")
        self.seconds[out.name], self.peaks[out.name] = time.monotonic() - began, run.peak_bytes

    def clear(self) -> None:
        """Empty the folder of the outputs."""
        shutil.rmtree(self.work)
        self.work.mkdir()

    def moment(self, kind: str, suffix: str) -> float:
        """Return a random moment of a run."""
        self.whole(kind, suffix)
        return self.chance.uniform(0, self.seconds[f"whole-{kind}{suffix}"])


def populate(folder: Path, out: Path) -> None:
    """Put foreign files with similar names beside an output."""
    (folder / f"{out.name}.part.mine").mkdir()
    (folder / f"{out.name}.part.mine" / "lock").write_text("mine", encoding="utf-8")
    (folder / f"{out.name}.part.{'0' * 32}").mkdir()
    (folder / f"{out.name}.part.{'0' * 32}" / "mine").write_text("mine", encoding="utf-8")
    (folder / f"{out.name}.draft").write_text("mine", encoding="utf-8")
    (folder / "output").write_text("mine", encoding="utf-8")
    (folder / "link").symlink_to("output")
    (folder / "dangling").symlink_to("nowhere")
    socket_at(folder / "socket")


def socket_at(path: Path) -> None:
    """Make a socket; its name is bound from its folder, as a socket's path is at most 107 bytes."""
    before = Path.cwd()
    os.chdir(path.parent)
    try:
        with socket.socket(socket.AF_UNIX) as one:
            one.bind(path.name)
    finally:
        os.chdir(before)


def small_kills(scale: Scale) -> list[Gate]:
    """Kill runs of every output, with an engine that answers from a hash."""
    with tempfile.TemporaryDirectory() as name:
        return killed(Bench(Path(name)), OUTPUTS, scale.of(200, 8) // len(OUTPUTS))


def killed(bench: Bench, outputs: Sequence[tuple[str, str]], each: int) -> list[Gate]:
    """Kill at random moments until it is done: the bytes of an undisturbed run, nothing left."""
    ended, hits, wrong, touched = Counter[str](), 0, 0, 0
    for kind, suffix in outputs:
        whole, out, left = bench.whole(kind, suffix), bench.work / f"out{suffix}", each
        populate(bench.work, out)
        before = listing(bench.work)
        done = False
        while not done:
            run = bench.start(kind, out)
            if left and run.killed(bench.moment(kind, suffix)):
                left, hits = left - 1, hits + 1
                continue
            code, said = run.ended()
            ended[" ".join([f"exit code {code}", *said]) if code else "done"] += 1
            wrong += not out.exists() or out.read_bytes() != whole
            out.unlink(missing_ok=True)
            if (after := listing(bench.work)) != before:
                touched += 1
                print(dict(after.items() ^ before.items()), said, file=sys.stderr)
            done = not left
        bench.clear()
    print(dict(ended), file=sys.stderr)
    return [
        exactly("kills while it ran", each * len(outputs), hits),
        at_least("… outputs that were finished", len(outputs), ended.total()),
        exactly("… unlike an undisturbed run's", 0, wrong),
        exactly("… with anything more, less or else beside them than before", 0, touched),
    ]


def numbered(count: int) -> list[str]:
    """Return different texts of documentation, each with its number."""
    some = read_workload(None, count)
    return [f"{number} {some[number % len(some)]}" for number in range(count)]


def file_kills(scale: Scale) -> list[Gate]:
    """Kill runs with the real engine, whose memory does not grow with the number of texts."""
    with tempfile.TemporaryDirectory() as name:
        bench = Bench(Path(name), "onnx")
        bench.write(numbered(scale.of(100_000, 4000)), FEW_TEXTS)
        bench.finish("pooled", bench.folder / "few.parquet", few=True)
        gates = killed(bench, [("pooled", ".parquet")], KILLS)
        most, least = (bench.peaks[f"{name}.parquet"] for name in ("whole-pooled", "few"))
        print(f"{most / 2**20:.0f} MiB, of fewer {least / 2**20:.0f} MiB", file=sys.stderr)
        return [*gates, at_most("memory over that of 1,000 texts", MOST_MEMORY, most / least)]


def file_rate(scale: Scale) -> list[Gate]:
    """Compare the command's rate without its start to the rate of the same texts without files."""
    from benchmarks.harness.service import InProcess
    from service.engines.onnx import OnnxEngine
    from service.files.options import Encoding, FileOptions
    from service.files.run import run
    from service.settings import Settings

    own, texts, ratios = artifact(), numbered(scale.of(4000, 2000)), []
    plain, engine = InProcess(own.folder), OnnxEngine(own, "cpu")
    settings = Settings(artifact=own.folder)
    with tempfile.TemporaryDirectory() as name:
        bench = Bench(Path(name))
        bench.write(texts, 0)
        out, encoding = bench.work / "out.npy", Encoding(truncate=True)
        wanted = FileOptions((str(bench.source),), out, encoding=encoding, restart=True)
        for _ in range(scale.of(7, 3)):
            without_files = plain(texts)
            started = time.perf_counter()
            run(wanted, settings, lambda _: None, engine)
            seconds = time.perf_counter() - started
            ratios.append(without_files / seconds)
            rates = f"{len(texts) / without_files:.0f}, {len(texts) / seconds:.0f} texts/s"
            print(f"in process, from files: {rates}", file=sys.stderr)
    found = statistics.median(ratios)
    return [at_least("rate over that in process", LEAST_RATE / scale.slack, found)]


def full_disk(scale: Scale) -> list[Gate]:
    """On a disk that is full, or turns read-only: one line, and it goes on once there is room."""
    stopped, lines, wrong = Counter[int](), Counter[int](), 0
    with tempfile.TemporaryDirectory() as name:
        bench = Bench(Path(name))
        with small_disk(bench.work, DISK_BYTES) as problem:
            if problem:
                print(f"skipped: a small disk cannot be mounted here ({problem})", file=sys.stderr)
                return []
            for _ in range(scale.of(3, 1)):
                for kind, suffix in OUTPUTS[:: scale.of(1, 4)]:
                    whole, out = bench.whole(kind, suffix), bench.work / f"out{suffix}"
                    before = listing(bench.work)
                    room = int(bench.chance.uniform(0, 2) * len(whole))
                    ballast = bench.work / "ballast"
                    _fill(ballast, room)
                    for full in (True, False):
                        if not full:
                            ballast.unlink()
                            mount("-o", "remount,ro", str(bench.work))
                        code, said = bench.start(kind, out).ended()
                        if code == 0:  # there was room enough
                            break
                        stopped[code] += 1
                        lines[len(said)] += 1
                    mount("-o", "remount,rw", str(bench.work))
                    ballast.unlink(missing_ok=True)
                    if not out.exists():
                        bench.finish(kind, out)
                    wrong += out.read_bytes() != whole
                    out.unlink()
                    wrong += listing(bench.work) != before
    return [
        at_least("runs that a full or read-only disk stopped", scale.of(30, 1), stopped.total()),
        exactly("… exit codes", {1}, set(stopped)),
        exactly("… lines of each", {1}, set(lines)),
        exactly("… outputs unlike an undisturbed run's, or things left beside", 0, wrong),
    ]


def _fill(path: Path, room_bytes: int) -> None:
    """Fill a disk, except for `room_bytes`."""
    found = os.statvfs(path.parent)
    with path.open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, max(1, found.f_bavail * found.f_frsize - room_bytes))


def contention(scale: Scale) -> list[Gate]:
    """Several processes write one output: one does, and the others say so in a line."""
    codes, lines, wrong, done = Counter[int](), Counter[int](), 0, Counter[int]()
    with tempfile.TemporaryDirectory() as name:
        bench = Bench(Path(name))
        for number in range(scale.of(24, 2)):
            kind, suffix = OUTPUTS[number % len(OUTPUTS)]
            whole, out = bench.whole(kind, suffix), bench.work / f"out{suffix}"
            first, earlier = bench.start(kind, out), 0
            if number % 2:  # in the middle of it; else all at once
                first.killed(bench.moment(kind, suffix))
                earlier = int(out.exists())  # it ended before it was killed
                first = bench.start(kind, out)
            runs = [first, *(bench.start(kind, out) for _ in range(3))]
            ended = [run.ended() for run in runs]
            done[earlier + sum(code == 0 for code, _ in ended)] += 1
            for code, said in ended:
                if code:
                    codes[code] += 1
                    lines[len(said)] += 1
            wrong += not out.exists() or out.read_bytes() != whole
            out.unlink(missing_ok=True)
            wrong += listing(bench.work) != {}
    return [
        exactly("processes that wrote an output", {1}, set(done)),
        exactly("… exit codes of the others", {2}, set(codes)),
        exactly("… lines of each", {1}, set(lines)),
        exactly("… outputs unlike an undisturbed run's, or things left beside", 0, wrong),
    ]


Make = Callable[[Path], object]
THINGS: dict[str, Make] = {
    "an empty folder": lambda path: path.mkdir(),
    "a folder": lambda path: (path.mkdir(), (path / "mine").write_text("mine")),
    "a folder with a lock": lambda path: (path.mkdir(), (path / "lock").write_text("mine")),
    "a folder with an empty lock": lambda path: (path.mkdir(), (path / "lock").touch()),
    "a folder with a job": lambda path: (path.mkdir(), (path / "job.json").write_text("{}")),
    "a file": lambda path: path.write_text("mine"),
    "a link to a folder": lambda path: path.symlink_to("folder"),
    "a link to a file": lambda path: path.symlink_to("file"),
    "a dangling link": lambda path: path.symlink_to("nowhere"),
    "a socket": socket_at,
    "a pipe": os.mkfifo,
}
EMPTY = "an empty folder", "a folder with an empty lock"
"""Things that a killed run leaves too."""


def foreign(scale: Scale) -> list[Gate]:
    """Put foreign things in the place of outputs; each is refused with one line, untouched."""
    names = list(THINGS)[:: scale.of(1, 4)]
    refusals, touched = Counter[str](), list[str]()
    with tempfile.TemporaryDirectory() as name:
        bench = Bench(Path(name))
        for kind, suffix in OUTPUTS[:: scale.of(4, 8)]:
            for thing in names:
                for place in ("at OUTPUT", "at OUTPUT.part", "in OUTPUT.part", "as the draft"):
                    for restart in ([], ["--restart"]):
                        asked = place == "at OUTPUT" and restart and "folder" not in thing
                        used = [("a file", "as the draft")]
                        used += [(one, "at OUTPUT.part") for one in EMPTY]
                        if asked or (thing, place) in used:
                            continue  # a finished output is replaced, and these are its own
                        out = bench.work / f"out{suffix}"
                        before = _placed(bench, kind, out, thing, place)
                        code, said = bench.start(kind, out, *restart).ended()
                        refusals[f"exit code {code}, {len(said)} lines"] += 1
                        if listing(bench.work) != before:
                            touched.append(f"{thing} {place} {restart}")
                        bench.clear()
    print(touched, file=sys.stderr)
    return [
        at_least("things of somebody else in the way", scale.of(140, 15), refusals.total()),
        exactly("… refusals", {"exit code 2, 1 lines"}, set(refusals)),
        exactly("… folders that were touched", 0, len(touched)),
    ]


def _placed(bench: Bench, kind: str, out: Path, thing: str, place: str) -> Listing:
    """Put a thing where the run would write, and return the folder's listing with it."""
    (bench.work / "folder").mkdir()
    (bench.work / "folder" / "mine").write_text("mine", encoding="utf-8")
    (bench.work / "file").write_text("mine", encoding="utf-8")
    part = out.with_name(f"{out.name}.part")
    if place in ("in OUTPUT.part", "as the draft"):
        while not part.exists():
            bench.start(kind, out).killed(bench.moment(kind, out.suffix))
            out.unlink(missing_ok=True)
    named = {"in OUTPUT.part": part / "mine", "as the draft": part / "output"}
    path = named.get(place) or (out if place == "at OUTPUT" else part)
    path.unlink(missing_ok=True)
    THINGS[thing](path)
    return listing(bench.work)
