"""The GPU lab on the CPU: a dry run of every cell, its checks, and the packing of its packages."""

from __future__ import annotations

import functools
import itertools
import json
import struct
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention

from benchmarks.gpu import ways
from benchmarks.gpu.lab import Lab, Shape, Unavailable, Work
from benchmarks.gpu.slim import slim

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "benchmarks" / "gpu"
WITHOUT_THE_SERVICE = """
import runpy, sys
for name in ("service", "benchmarks.harness", "testing", "fastapi", "starlette", "uvicorn",
             "pydantic_settings", "orjson", "prometheus_client", "httpx", "sentence_transformers"):
    sys.modules[name] = None
sys.argv[0] = "benchmarks.gpu"
runpy.run_module("benchmarks.gpu", run_name="__main__")
"""
NEEDS_GPU = {"limits", "memory"}
GPU_WAYS = {ways.COMPILED, ways.VARIABLE}


def dry_run(command: list[str], path: Path) -> list[dict]:
    """Run the lab on the CPU, and return its figures."""
    command = [sys.executable, *command, "--cpu", "--json", str(path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(path.read_text(encoding="utf-8"))


@pytest.mark.slow
def test_a_dry_run_measures_or_says_why_not(tmp_path: Path):
    figures = dry_run(["-m", "benchmarks.gpu"], tmp_path / "dry.json")
    cells = list(dict.fromkeys(figure["cell"] for figure in figures))
    assert cells[:6] == [
        *("environment", "limits", "MiniLM, mixed", "BERT-base, 128", "MiniLM, 128"),
        "BERT-base, 512",
    ]
    assert {*cells[6:]} >= {"maps", "MiniLM, 1 × 128", "pictures, 1", "memory"}
    for cell in cells[1:]:
        own = [figure for figure in figures if figure["cell"] == cell]
        assert "cell_seconds" in own[-1]
        skipped = {figure["skipped"] for figure in own if "skipped" in figure}
        assert skipped <= {"needs a GPU"}
        computed = {
            figure["way"]: figure for figure in own if "verdict" in figure and "way" in figure
        }
        assert bool(computed) == (cell not in {*NEEDS_GPU, "maps"})
        for figure in computed.values():
            assert figure["verdict"] == "right"
            assert figure["ms"] > 0
            assert figure["tokens_a_second"] > 0
            assert ("predicted_us_a_layer" in figure) == (cell in ways.PREDICTED_US)
        if cell in ways.PREDICTED_US:
            assert {ways.BOUND, ways.SERVED, ways.RIVAL} <= computed.keys()
            assert {figure["way"] for figure in own if "skipped" in figure} >= GPU_WAYS
    (maps,) = (figure for figure in figures if "map_bytes_a_second" in figure)
    size = 2 * 2 * 32 * 32 * 4
    assert maps["map_bytes_a_second"] == pytest.approx(1e3 * size / maps["all_maps_ms"], rel=0.01)


@pytest.mark.slow
def test_it_runs_without_the_service(tmp_path: Path):
    command = ["-c", WITHOUT_THE_SERVICE, "--only", "MiniLM, 128", "http", "--http"]
    *others, http, _ = dry_run(command, tmp_path / "dry.json")
    assert http["cell"] == "http"
    assert http["skipped"].startswith("not installed: fastapi, uvicorn")
    assert "transformers and pooling" in {figure.get("way") for figure in others}


@pytest.mark.slow
@pytest.mark.nightly
def test_the_service_is_measured(tmp_path: Path):
    command = ["-m", "benchmarks.gpu", "--only", "http", "--http"]
    figures = dry_run(command, tmp_path / "dry.json")
    (http,) = (figure for figure in figures if "texts_a_second" in figure)
    assert http["texts_a_second"] > 0


def test_variable_lengths_of_torch_are_right(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A CPU has no such kernel: a stand-in attends within each text."""

    def attend(q, k, v, query_ends, key_ends, longest_query, longest_key):
        assert query_ends is key_ends
        assert longest_query == longest_key == query_ends.diff().max()
        parts = [
            scaled_dot_product_attention(*(of[a:b].transpose(0, 1) for of in (q, k, v)))
            for a, b in itertools.pairwise(query_ends.tolist())
        ]
        return torch.cat(parts, dim=1).transpose(0, 1)

    monkeypatch.setattr("torch.nn.attention.varlen.varlen_attn", attend)
    model = ways.Model(lab_of(tmp_path), "MiniLM", tmp_path)
    texts = [np.arange(5, 5 + length) for length in (9, 7, 4, 1)]
    expected = ways.padded(functools.partial(ways.mean_of, model.exact), model, texts)()
    found = ways.variable_lengths(model, texts)()
    torch.testing.assert_close(found, expected, atol=1e-6, rtol=1e-5)


def lab_of(folder: Path) -> Lab:
    return Lab(folder / "lab.json", 60, cpu=True)


def test_a_wrong_way_is_called_wrong_and_a_failing_one_stops_no_other(tmp_path: Path):
    lab = lab_of(tmp_path)
    reference = torch.eye(2)

    def fail():
        raise RuntimeError("no such kernel")

    def skip():
        raise Unavailable("needs a GPU")

    makes = {
        "broken": fail,
        "absent": skip,
        "off": lambda: lambda: reference + 0.002,
        "rows exchanged": lambda: lambda: reference.flip(0),
        "not a number": lambda: lambda: reference * torch.nan,
        "too few": lambda: lambda: reference[:1],
        "right": lambda: lambda: reference.numpy() + 0.0005,
    }
    lab.run("cell", lambda: lab.compare(makes, Work(Shape(1, 1, 2, 2), [3, 3], reference, "right")))
    figures = {figure["way"]: figure for figure in lab.figures if "way" in figure}
    verdicts = {name: figure.get("verdict") for name, figure in figures.items()}
    wrong = dict.fromkeys(("off", "rows exchanged", "not a number", "too few"), "WRONG")
    assert verdicts == {"broken": None, "absent": None, **wrong, "right": "right"}
    assert figures["broken"]["failed"] == "no such kernel"
    assert figures["absent"]["skipped"] == "needs a GPU"
    assert figures["right"]["times_rival"] == 1


def test_a_failing_cell_stops_no_other_and_every_figure_is_in_the_file(tmp_path: Path):
    lab = lab_of(tmp_path)
    lab.run("first", lambda: 1 / 0)
    lab.run("second", lambda: lab.note(value=1.23456))
    written = json.loads((tmp_path / "lab.json").read_text(encoding="utf-8"))
    assert "ZeroDivisionError" in written[0]["failed"]
    assert written[2] == {"cell": "second", "value": 1.235}


def test_no_cell_begins_without_time(tmp_path: Path):
    lab = Lab(tmp_path / "lab.json", 1, cpu=True)
    lab.run("late", lambda: lab.note(value=1))
    assert lab.figures[0] == {"cell": "late", "skipped": "no time is left"}


def test_padding_is_at_most_a_quarter_of_a_row():
    assert list(ways.similar([8, 7, 6, 5, 4, 2])) == [(0, 3), (3, 5), (5, 6)]


def code(architecture: int, content: bytes, kind: int = 2) -> bytes:
    header = struct.pack("<HHIQ", kind, 0, 64, len(content)).ljust(28) + struct.pack(
        "<I", architecture
    )
    return header.ljust(64) + content


def binary(*parts: bytes) -> bytes:
    return struct.pack("<IHHQ", 0xBA55ED50, 1, 16, sum(map(len, parts))) + b"".join(parts)


def test_only_the_code_of_other_chips_is_zeroed(tmp_path: Path):
    library = tmp_path / "library.so"
    text = code(80, b"source", kind=1)
    chance = b"\x50\xed\x55\xba text"
    library.write_bytes(
        b"x"
        + binary(code(80, b"eighty"), text, code(90, b"ninety"))
        + chance
        + binary(code(120, b"b"))
    )
    assert slim(library, 90) == 7
    assert library.read_bytes() == (
        b"x"
        + binary(code(80, bytes(6)), text, code(90, b"ninety"))
        + chance
        + binary(code(120, b"\0"))
    )


def test_pieces_are_unpacked_once_all_are_there(tmp_path: Path):
    home, tree = tmp_path / "home", tmp_path / "tree"
    pieces, site = tree / ".lab", tmp_path / "site"
    for folder in (home, pieces, site):
        folder.mkdir(parents=True)
    (site / "module.py").write_text("x = 1\n")
    packed = subprocess.run(
        f"tar -C {site} -cf - . | xz", shell=True, capture_output=True, check=True
    )
    command = ["sh", str(FOLDER / "unpack.sh"), "2"]
    codes = []
    for number, part in enumerate((packed.stdout[:40], packed.stdout[40:])):
        for piece in pieces.iterdir():
            piece.unlink()
        (pieces / f"site.0{number}").write_bytes(part)
        environment = {"HOME": str(home), "PATH": "/usr/bin:/bin"}
        codes.append(subprocess.run(command, cwd=tree, env=environment, check=False).returncode)
    assert codes == [3, 0]
    assert (home / "site" / "module.py").read_text() == "x = 1\n"
