"""What the benchmarks say is right: arrivals, replies, percentiles, ratios, tables and figures."""

from __future__ import annotations

import asyncio
import json
import statistics
from dataclasses import asdict

import numpy as np
import pytest

from benchmarks.inprocess import InProcess
from benchmarks.layouts import LENGTHS, batch_of
from benchmarks.load import Result, arrivals, encode, read_reply
from benchmarks.report import content, percentiles, summarise, table
from benchmarks.scale_points import texts_of
from benchmarks.servers import artifact_of
from benchmarks.ways import Sample, Way
from benchmarks.workload import read_workload, workload_flop
from model.artifact.manifest import load_artifact

CHUNKED = (
    b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\nA\r\n0123456789\r\n0\r\n\r\n"
)
COUNTED = b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nabc"


def way(system: str, connections: int | None = None, paced_by: str | None = None) -> Way:
    return Way(system, "fp32", lambda _texts, _rate: Result(1, 0, []), connections, paced_by)


def sample(rate: float, latencies: list[float] | None = None) -> Sample:
    return Sample(rate, 1e9, rate / 1000, 0.01, latencies or [])


WAYS = [
    way("st"),
    way("peer", 16),
    way("ours"),
    way("ours", 16),
    way("ours", 256, "ours, HTTP, 16 connections"),
]
SAMPLES = {
    "st, in process": [sample(10), sample(20), sample(40)],
    "peer, HTTP, 16 connections": [sample(5, [1]), sample(5, [2]), sample(5, [3])],
    "ours, in process": [sample(20), sample(60), sample(80)],
    "ours, HTTP, 16 connections": [sample(10, [1, 2]), sample(15, [3, 4]), sample(20, [5])],
    "ours, HTTP, fixed arrivals": [sample(7, [1]), sample(8, [1]), sample(9, [1])],
}
BASES = ("st, in process", "peer")


@pytest.fixture
def rows():
    return summarise(WAYS, SAMPLES, BASES)


def test_arrivals_are_a_fixed_poisson_process():
    times = arrivals(20_000, 50)
    gaps = np.diff(times)
    assert times == arrivals(20_000, 50)
    assert times == pytest.approx([2 * at for at in arrivals(20_000, 100)])
    assert (gaps > 0).all()
    assert gaps.mean() == pytest.approx(1 / 50, rel=0.02)
    assert gaps.std() == pytest.approx(1 / 50, rel=0.05)


@pytest.mark.parametrize("reply", [CHUNKED, COUNTED])
def test_one_reply_is_read_and_no_more(reply):
    async def read() -> bytes:
        reader = asyncio.StreamReader()
        reader.feed_data(reply + b"the next")
        reader.feed_eof()
        await read_reply(reader)
        return await reader.read()

    assert asyncio.run(read()) == b"the next"


def test_a_refusal_ends_the_run():
    async def read() -> None:
        reader = asyncio.StreamReader()
        reader.feed_data(b"HTTP/1.1 429 Too Many Requests\r\ncontent-length: 0\r\n\r\n")
        await read_reply(reader)

    with pytest.raises(SystemExit, match="429"):
        asyncio.run(read())


def test_a_request_is_whole():
    head, _, body = encode("/encode", {"inputs": "naïve"}).partition(b"\r\n\r\n")
    assert head.startswith(b"POST /encode HTTP/1.1\r\n")
    assert f"content-length: {len(body)}".encode() in head
    assert json.loads(body) == {"inputs": "naïve"}


def test_percentiles():
    assert percentiles([]) == {}
    assert percentiles(range(101)) == {"p50": 50, "p90": 90, "p99": 99}


def test_ratios_are_medians_of_the_rounds(rows):
    ratios = {row.name: row.ratios for row in rows}
    assert ratios["ours, in process"] == {"st, in process": 2}
    assert ratios["ours, HTTP, 16 connections"] == {"st, in process": 0.75, "peer": 3}
    assert ratios["ours, HTTP, fixed arrivals"] == {}


def test_a_row_gives_medians_and_spread(rows):
    row = rows[3]
    assert (row.least, row.texts_per_second, row.most) == (10, 15, 20)
    assert row.share == 0.015
    assert row.latency_ms["p50"] == statistics.median([1, 2, 3, 4, 5])


def test_the_table_has_a_cell_for_everything(rows):
    lines = table(rows, BASES).splitlines()
    assert {line.count(" | ") for line in lines} == {6}
    assert lines[2].startswith("| st, in process | 20 (10 to 40) | 1.00 |")
    assert "| ours, HTTP, 16 connections | 15 (10 to 20) | 0.75 | 3.00 | 0.01" in lines[5]


def test_json_has_every_sample(rows):
    found = json.loads(json.dumps(content(rows, SAMPLES, {"absent": {"peer": "why"}})))
    assert found["absent"] == {"peer": "why"}
    assert [row["name"] for row in found["rows"]] == list(SAMPLES)
    assert found["samples"]["st, in process"][0] == asdict(sample(10))


def test_the_workload_is_many_different_texts():
    texts = read_workload(None, 2000)
    assert len(texts) == len(set(texts)) == 2000


def test_a_workload_is_spread_over_its_file(tmp_path):
    path = tmp_path / "texts.jsonl"
    lines = [json.dumps({"text": f"text {i % 10}"}) for i in range(30)]
    path.write_text("\n".join(lines), encoding="utf-8")
    assert read_workload(path, 5) == [f"text {i}" for i in (0, 2, 4, 6, 8)]
    assert len(read_workload(path, 100)) == 10


def test_cost_grows_with_the_square_of_the_length():
    assert workload_flop([10]) == 10 * 21.23e6 + 100 * 9216
    assert workload_flop([10, 10]) == 2 * workload_flop([10])


def test_texts_of_a_length_differ():
    words = [f"word{i}" for i in range(50)]
    texts = texts_of(16, 20, words)
    assert {len(text.split()) for text in texts} == {14}
    assert len(set(texts)) == 20


def test_figures_are_the_same_bytes_for_the_same_numbers(rows, tmp_path):
    plots = pytest.importorskip("benchmarks.plots", exc_type=ImportError)
    first = [path.read_bytes() for path in plots.draw(rows, tmp_path / "first")]
    again = [path.read_bytes() for path in plots.draw(rows, tmp_path / "again")]
    assert len(first) == 3
    assert first == again


@pytest.mark.slow
def test_in_process_and_the_layouts_take_what_the_service_takes():
    artifact = artifact_of("fp32")
    assert InProcess(artifact)(["one text", "and another"]) > 0
    inputs = load_artifact(artifact).manifest.signature["encoder"].inputs
    feed = batch_of(LENGTHS)
    assert list(feed) == [spec.name for spec in inputs]
    assert [array.dtype.name for array in feed.values()] == [spec.dtype for spec in inputs]
