"""The GPU benchmark, dry: what it counts, what it calls wrong, what it says it did not measure."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import threading
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode
from transformers import AutoTokenizer, BertConfig, BertModel

from benchmarks.gpu import correctness, memory, over_http, profiling, throughput
from benchmarks.gpu.__main__ import STEPS, main
from benchmarks.gpu.bench import Bench, Options
from benchmarks.gpu.cost import flop
from benchmarks.gpu.encoding import Encoding, batches
from benchmarks.gpu.figures import Figure, Goal, not_measured, number
from benchmarks.gpu.load import Job, generate
from benchmarks.gpu.peer import padded
from benchmarks.gpu.report import Report
from benchmarks.gpu.sizes import FULL, QUICK
from benchmarks.gpu.timing import in_turn
from benchmarks.gpu.workloads import mixed, mixed_lengths, of_length
from benchmarks.workload import workload_flop
from model.artifact.batch import Batch, pack
from model.families.registry import parse_config
from tests.model.checkpoints import TINY, write_checkpoint

ROOT = Path(__file__).resolve().parents[1]
MINILM = TINY | {
    "hidden_size": 384,
    "num_hidden_layers": 6,
    "num_attention_heads": 12,
    "intermediate_size": 1536,
}
POSITIONS = 64


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("gpu") / "tiny"
    return write_checkpoint(folder, max_position_embeddings=POSITIONS)


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Exports that the runs of this file share."""
    return tmp_path_factory.mktemp("kept")


@pytest.fixture
def dry(checkpoint: Path, kept: Path, tmp_path: Path):
    """Run some steps on the CPU; returns the exit code and the JSON."""

    def run(*steps: str, device: str = "cpu") -> tuple[int, dict]:
        path = tmp_path / "out.json"
        arguments = ["--model", str(checkpoint), "--keep", str(kept), "--json", str(path)]
        arguments += ["--device", device, "--quick", *(["--only", *steps] if steps else [])]
        code = main(arguments)
        return code, json.loads(path.read_text(encoding="utf-8"))

    return run


@pytest.fixture
def bench(checkpoint: Path, kept: Path) -> Bench:
    return Bench(Options(str(checkpoint), "cpu", QUICK, kept))


def tokenizer_of(checkpoint: Path):
    return AutoTokenizer.from_pretrained(checkpoint).backend_tokenizer


# what is counted


@pytest.mark.parametrize("length", [1, 7, 40])
def test_cost_is_what_torch_counts(length: int):
    module = BertModel(BertConfig(**TINY, attn_implementation="eager"), add_pooling_layer=False)
    with FlopCounterMode(display=False) as counter, torch.inference_mode():
        module(input_ids=torch.ones(1, length, dtype=torch.int64))
    config = parse_config({"model_type": "bert"} | TINY)
    assert flop(config, [length]) == counter.get_total_flops()
    assert flop(config, [length, length]) == 2 * flop(config, [length])


def test_cost_of_minilm_is_the_other_benchmarks():
    config = parse_config({"model_type": "bert"} | MINILM)
    assert flop(config, [128]) == pytest.approx(workload_flop([128]), rel=1e-3)


def test_lengths_are_those_of_real_texts():
    lengths = mixed_lengths(2000)
    assert np.median(lengths) == 30
    assert lengths.mean() == pytest.approx(41, abs=1)
    assert np.percentile(lengths, 99) == pytest.approx(175, abs=6)
    assert 240 <= lengths.max() <= 244
    assert (mixed_lengths(2000) == lengths).all()
    assert (np.diff(lengths) > 0).any()
    assert (np.diff(lengths) < 0).any()


def test_a_workload_knows_its_tokens(checkpoint: Path, tmp_path: Path):
    reference = AutoTokenizer.from_pretrained(checkpoint)
    path = tmp_path / "texts.jsonl"
    path.write_text("\n".join(json.dumps({"text": text}) for text in ("a", "the cat", "x" * 99)))
    tokenizer = tokenizer_of(checkpoint)
    made = of_length(12, 120, tokenizer), mixed(30, tokenizer, 50, None)
    for workload in (*made, mixed(7, tokenizer, 50, path)):
        tokens = [min(len(ids), 50) for ids in reference(workload.texts)["input_ids"]]
        assert tokens == workload.lengths
    assert made[0].lengths == [12] * 10
    assert len(made[1].texts) == 30
    assert workload.lengths == [3, 4, 50, 3, 4, 50, 3]
    assert workload.mean_tokens == pytest.approx(117 / 7)


def test_every_text_is_in_one_batch_within_the_budget():
    generator = np.random.default_rng(0)
    texts = [(np.full(n, i), np.zeros(n)) for i, n in enumerate(generator.integers(1, 90, 200))]
    found = list(batches(texts, 64))
    assert Counter(int(ids[0]) for batch in found for ids, _ in batch) == Counter(range(200))
    for batch in found:
        assert len(batch) == 1 or len(batch) * max(len(ids) for ids, _ in batch) <= 64
    lengths = [len(ids) for batch in found for ids, _ in batch]
    assert lengths == sorted(lengths, reverse=True)
    assert any(len(batch) > 5 for batch in found)


def test_the_peer_gets_what_its_tokenizer_would_give(checkpoint: Path):
    tokenizer = AutoTokenizer.from_pretrained(checkpoint)
    pairs = [("the cat", "a"), ("a", "the"), ("x y z", "the cat")]
    expected = tokenizer(pairs, padding=True, return_tensors="np")
    plain = [tokenizer(*pair) for pair in pairs]
    found = padded([(np.array(one["input_ids"]), np.array(one["token_type_ids"])) for one in plain])
    assert found.keys() == expected.keys()
    for name in expected:
        np.testing.assert_array_equal(found[name], expected[name])


def test_ways_take_turns():
    calls: list[str] = []
    ways = {"a": lambda: calls.append("a"), "b": lambda: calls.append("b")}
    seconds = in_turn(ways, 2)
    assert calls == ["a", "b"] * 3
    assert {name: len(found) for name, found in seconds.items()} == {"a": 2, "b": 2}


def test_the_ratio_is_to_the_faster_peer():
    seconds = {throughput.OURS: [1.0, 2.0, 2.0], "slow": [9.0, 9.0, 9.0], "fast": [3.0, 4.0, 8.0]}
    assert throughput.fastest_peer(seconds) == ("fast", 3.0)


def test_memory_that_grows_is_seen():
    mebibytes = [10, 30, 20, 30, 35, 31]
    held = [2**20 * one for one in mebibytes]
    assert memory.growth("x", held, 2).value == 5
    assert memory.growth("x", held, 5).value == 0


class Recorder:
    """Stands for an encoding and its runtime; keeps the lengths of what it is given."""

    def __init__(self, positions: int) -> None:
        self.config = parse_config(
            {"model_type": "bert"} | TINY | {"max_position_embeddings": positions}
        )
        self.runtime = self
        self.batches: list[np.ndarray] = []
        self.maps_of: list[int] = []

    def warm_up(self, batch_tokens: int, longest: int) -> None:
        self.warm = (batch_tokens, longest)

    def pooled(self, batch: Batch) -> None:
        assert len(batch.input_ids) == len(batch.token_type_ids)
        self.batches.append(np.diff(batch.cu_seqlens))

    def hidden_states(self, batch: Batch, layers: list[int]) -> None:
        assert layers == [0, 1, 2]
        self.pooled(batch)

    def maps(self, text, layers, heads) -> None:
        self.maps_of.append(len(text[0]))


@pytest.mark.parametrize(("positions", "longest"), [(40, 40), (512, 90)])
def test_memory_sees_the_largest_batch_first_and_then_all_shapes(positions: int, longest: int):
    recorder = Recorder(positions)
    looked = iter(range(100))
    (seen,) = memory.watch(recorder, 100, 90, [lambda: next(looked)])
    assert seen == list(range(10))
    assert recorder.warm == (90, longest)
    assert len(recorder.batches) == 100
    assert recorder.batches[0].tolist() == [longest] * (90 // longest)
    assert max(lengths.sum() for lengths in recorder.batches) <= 90
    assert max(lengths.max() for lengths in recorder.batches) <= longest
    assert len({tuple(lengths) for lengths in recorder.batches}) > 60
    assert recorder.maps_of == [recorder.batches[0][0], recorder.batches[50][0]]


def test_operators_of_the_first_run_do_not_count():
    def node(name: str, at: int, spent: int) -> dict:
        arguments = {"op_name": name}
        return {"cat": "Node", "name": "n_kernel_time", "ts": at, "dur": spent, "args": arguments}

    run = {"cat": "Session", "name": "model_run"}
    events = [run | {"ts": 10}, node("MatMul", 11, 500), run | {"ts": 20}, node("MatMul", 21, 5)]
    events += [node("Add", 22, 2), node("MatMul", 23, 1), {"cat": "Session", "name": "load"}]
    assert profiling.spent(events) == {"MatMul": 6, "Add": 2}
    assert profiling.spent(events[:2]) == {}


# what is said


def test_a_figure_says_whether_its_goal_is_reached():
    least, most = Goal("≥", 0.45), Goal("≤", 0)
    assert Figure("x", 0.45, goal=least).met is True
    assert Figure("x", 0.449, goal=least).met is False
    assert Figure("x", 0.0, goal=most).met is True
    assert Figure("x", 1.0, "MiB", most).cells == ("x", "1 MiB", "≤ 0 MISSED", "")
    assert Figure("x", None, goal=least).met is None
    assert Figure("x", "right").met is None
    assert not_measured("x", "why").cells == ("x", "not measured", "", "why")


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.45678, "0.457"), (12.345, "12.3"), (1234.5, "1,234"), (0.0, "0"), (2e-5, "2.0e-05")],
)
def test_numbers_are_short(value: float, text: str):
    assert number(value) == text


def test_a_step_that_fails_keeps_what_it_had(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    path = tmp_path / "out.json"
    report = Report(path, {"device": "cpu"})
    meanwhile = []

    def figures():
        yield Figure("first", 1.0, "s", details={"worst": float("inf"), "list": (1, 2)})
        meanwhile.append(json.loads(path.read_text(encoding="utf-8")))
        raise ValueError("no luck\nat all")

    assert not report.run("unlucky", figures())
    assert report.run("lucky", iter([Figure("second", 2.0)]))
    assert meanwhile[0]["steps"]["unlucky"]["figures"][0]["details"] == {
        "worst": "inf",
        "list": [1, 2],
    }
    assert meanwhile[0]["steps"]["unlucky"]["complete"] is False
    found = json.loads(path.read_text(encoding="utf-8"))
    assert found["device"] == "cpu"
    assert found["steps"]["unlucky"]["error"] == "ValueError: no luck at all"
    assert found["steps"]["lucky"]["complete"] is True
    assert report.failed
    lines = report.table().splitlines()
    assert {line.count(" | ") for line in lines} == {3}
    assert lines[2:] == [
        "| first | 1 s |  |  |",
        "| unlucky | FAILED |  | ValueError: no luck at all |",
        "| second | 2 |  |  |",
    ]
    assert "no luck" in capsys.readouterr().err


def test_without_the_device_it_ends_at_once(dry, capsys: pytest.CaptureFixture[str]):
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    code, found = dry(device="cuda")
    assert code == 1
    assert list(found["steps"]) == ["environment"]
    assert "no CUDA device" in found["steps"]["environment"]["error"]
    assert "| environment | FAILED |" in capsys.readouterr().out


def test_goals_count_on_a_gpu_at_full_size_alone(checkpoint: Path, tmp_path: Path):
    figure, goal = Figure("x", 1.0), Goal("≥", 2)

    def aim(device: str, sizes) -> Goal | None:
        return Bench(Options(str(checkpoint), device, sizes, tmp_path)).aim(figure, goal).goal

    assert aim("cuda", FULL) == goal
    assert aim("cuda", QUICK) is None
    assert aim("cpu", FULL) is None


# over HTTP


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    seen: Counter[tuple[str, str]]
    status = 200

    def do_POST(self):
        body = self.rfile.read(int(self.headers["content-length"]))
        self.seen[self.headers["accept"], json.loads(body)["inputs"]] += 1
        self.send_response(self.status)
        self.send_header("Content-Length", "2")
        self.end_headers()
        self.wfile.write(b"ok")

    def log_message(self, *arguments):
        pass


@pytest.fixture
def server():
    Handler.seen = Counter()
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/encode"
        server.shutdown()


def jobs_for(url: str) -> list[Job]:
    return [Job(url, "x/y", [{"inputs": f"{n}"}, {"inputs": f"{n}!"}], 2, 0.3) for n in range(2)]


def test_generators_ask_at_once_and_for_so_long(server: str):
    results = generate(jobs_for(server))
    assert set(Handler.seen) == {("x/y", text) for text in ("0", "0!", "1", "1!")}
    asked = sum(len(one.latencies_ms) for one in results)
    assert 0 < asked < sum(Handler.seen.values())  # those that warm up do not count
    assert max(one.started for one in results) < min(one.ended for one in results)
    for one in results:
        assert 0.3 <= one.ended - one.started < 3
        assert one.cpu_seconds > 0


def test_a_refusal_ends_the_generator(server: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(Handler, "status", 429)
    with pytest.raises(RuntimeError, match="the load generator ended"):
        generate(jobs_for(server))


def test_generators_send_other_texts():
    texts = [f"text {i}" for i in range(1000)]
    first, second = (over_http.bodies(texts, 4, n) for n in range(2))
    sent = [text for body in (*first, *second) for text in body["inputs"]]
    assert len(set(sent)) == len(sent) == 2 * 4 * over_http.BODIES


@pytest.mark.parametrize("name", ["fastapi", "uvicorn"])
def test_without_the_web_http_is_said_not_to_be_measured(
    name: str, bench: Bench, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setitem(sys.modules, name, None)
    (figure,) = over_http.measure(bench)
    assert figure.value is None
    assert figure.note == f"not installed: {name}"


# what is called wrong


def nan_pooled(encoding: Encoding, batch):
    return [vector * np.nan for vector in REAL_POOLED(encoding, batch)]


def other_pooled(encoding: Encoding, batch):
    found = REAL_POOLED(encoding, batch)
    return [*found[:-1], found[-1][::-1]]


def other_states(*arguments):
    found = REAL_TENSORS(*arguments)
    found[-1][correctness.Key("hidden", 1)][0, 0] += 1
    return found


def other_map(*arguments):
    found = REAL_TENSORS(*arguments)
    found[0][correctness.Key("attention", 1, 1)][0, 0] += 0.5
    return found


REAL_POOLED, REAL_TENSORS = Encoding.pooled, correctness.runtime_tensors


@pytest.mark.slow
@pytest.mark.parametrize(
    ("place", "name", "wrong", "said"),
    [
        (Encoding, "pooled", nan_pooled, "pooled"),
        (Encoding, "pooled", other_pooled, "pooled"),
        (correctness, "runtime_tensors", other_states, "hidden 1"),
        (correctness, "runtime_tensors", other_map, "attention 1.1"),
    ],
)
def test_a_wrong_number_ends_the_run(
    dry, monkeypatch: pytest.MonkeyPatch, place, name: str, wrong, said: str
):
    monkeypatch.setattr(place, name, wrong)
    code, found = dry("correctness", "limits")
    assert code == 1
    assert list(found["steps"]) == ["correctness"]
    step = found["steps"]["correctness"]
    assert step["error"].startswith("WrongError: out of tolerance: tiny, fp32, tiny, fp16")
    for figure in step["figures"]:
        assert figure["value"] == "WRONG"
        assert figure["details"]["failed"] == [said]
        assert bool(figure["details"]["not_finite"]) == (wrong is nan_pooled)


@pytest.mark.slow
def test_what_is_timed_is_the_models_own(bench: Bench, checkpoint: Path):
    encoding = bench.encoding(bench.model, "fp32")
    tokenizer = AutoTokenizer.from_pretrained(checkpoint)
    module = BertModel.from_pretrained(checkpoint, attn_implementation="eager").eval()
    texts = ["the cat", "a b c d e", "z"]
    segments = encoding.tokenize(texts)
    vectors = encoding.pooled(pack(segments))
    for text, one, vector in zip(texts, segments, vectors, strict=True):
        with torch.inference_mode():
            expected = module(**tokenizer(text, return_tensors="pt"), output_attentions=True)
        mean = expected.last_hidden_state[0].mean(dim=0)
        np.testing.assert_allclose(vector, (mean / mean.norm()).numpy(), atol=1e-5)
        for layer, maps in zip((1, 0), encoding.maps(one, (1, 0), (2, 0)), strict=True):
            weights = expected.attentions[layer][0, [2, 0]].numpy()
            np.testing.assert_allclose(maps, weights, atol=1e-5)


@pytest.mark.slow
def test_other_vectors_are_not_measured(bench: Bench, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(Encoding, "pooled", other_pooled)
    encoding, peer = (
        bench.encoding(bench.model, "fp16"),
        throughput.peer(bench, bench.model, compiled=False),
    )
    with pytest.raises(throughput.OtherVectorsError, match="cosine"):
        throughput.check(encoding, peer, ["the cat", "a"])


# the whole


@pytest.mark.slow
def test_a_dry_run_measures_or_says_why_not(dry, capsys: pytest.CaptureFixture[str]):
    code, found = dry()
    assert code == 0
    assert list(found["steps"]) == list(STEPS)
    figures = {
        figure["name"]: figure for step in found["steps"].values() for figure in step["figures"]
    }
    assert all(step["complete"] and step["figures"] for step in found["steps"].values())
    missing = {name: one["note"] for name, one in figures.items() if one["value"] is None}
    assert set(missing.values()) == {
        "the CPU was asked for",
        "needs a GPU",
        f"the model has {POSITIONS} positions",
    }
    assert len(figures) > 2 * len(missing)
    for name in ("tiny, fp32", "tiny, fp16", "BERT-base shape, fp16"):
        assert figures[name]["value"] == "right"
        assert figures[name]["details"]["tensors"] >= 1 + 2 + 1
    check_throughput(figures)
    for name in ("one text a request, JSON", "4 texts a request, safetensors"):
        assert figures[name]["value"] > 0
    assert figures["tiny fp32, S = 32, 6 maps"]["details"]["bytes"] == 6 * 32 * 32 * 4
    operators = next(one for name, one in figures.items() if name.endswith("operators"))
    assert len(operators["details"]["top_microseconds"]) == profiling.TOP
    lines = capsys.readouterr().out.strip().splitlines()
    table = lines[lines.index("| figure | value | goal |  |") :]
    assert len(table) == 2 + sum(len(step["figures"]) for step in found["steps"].values()) + 1
    assert table[-1].startswith("a dry run on a CPU")


def check_throughput(figures: dict[str, dict]) -> None:
    for model in ("tiny", "BERT-base shape"):
        for workload in ("S = 8", "S = 32", "mixed"):
            details = figures[f"{model}, {workload}"]["details"]
            for of in ("tokenised", "texts"):
                rates = details[f"tokens_per_second_{of}"]
                assert rates.keys() == {throughput.OURS, throughput.SDPA}
                for name, rate in rates.items():
                    seconds = statistics.median(details[of][name])
                    assert rate == pytest.approx(details["token_count"] / seconds)
            assert details["least_cosine"] > 0.999


WITHOUT_THE_WEB = """
import runpy, sys
for name in ("fastapi", "starlette", "uvicorn", "pydantic_settings", "orjson", "prometheus_client",
             "httpx", "uvloop", "httptools"):
    sys.modules[name] = None
sys.argv[0] = "benchmarks.gpu"
runpy.run_module("benchmarks.gpu", run_name="__main__")
"""


@pytest.mark.slow
def test_all_but_http_runs_without_the_web(checkpoint: Path, kept: Path, tmp_path: Path):
    path = tmp_path / "out.json"
    command = [sys.executable, "-c", WITHOUT_THE_WEB, "--model", str(checkpoint), "--quick"]
    command += ["--keep", str(kept), "--json", str(path), "--device", "cpu"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(path.read_text(encoding="utf-8"))["steps"]
    assert list(found) == list(STEPS)
    assert all(step["complete"] for step in found.values())
    (figure,) = found["http"]["figures"]
    assert figure["value"] is None
    assert figure["note"].startswith("not installed: fastapi, uvicorn")
    assert "| over HTTP | not measured |" in done.stdout


def test_the_docs_name_every_step():
    text = (ROOT / "docs" / "benchmarks-gpu.md").read_text(encoding="utf-8")
    for step in STEPS:
        assert f"\n## `{step}`" in text
