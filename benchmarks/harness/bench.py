"""Resources that the steps share: models, artifacts, runtimes, and the machine's limits."""

from __future__ import annotations

import dataclasses
import functools
import os
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch
from transformers import BertConfig, BertModel

from benchmarks.harness import device_limits
from benchmarks.harness.encoding import Encoding
from benchmarks.harness.figures import Figure, Goal
from benchmarks.harness.sizes import FULL, Sizes
from model.artifact.cache import cache_key
from model.artifact.manifest import Artifact, load_artifact
from model.config.encoder import EncoderConfig
from model.config.precision import Precision
from model.export.exporter import export
from model.families.registry import read_config
from model.runtimes.registry import load_runtime
from model.sources.locate import display_name, locate
from service.system.hub import default_endpoint, open_hub

PRECISIONS: tuple[Precision, ...] = ("fp32", "fp16")
TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "vocab.txt")


@dataclass(frozen=True)
class Model:
    """A checkpoint and its name in the report."""

    name: str
    checkpoint: Path

    @functools.cached_property
    def config(self) -> EncoderConfig:
        return read_config(self.checkpoint)


@dataclass(frozen=True)
class Options:
    """Options of a run."""

    model: str
    device: Literal["cuda", "cpu"]
    sizes: Sizes
    folder: Path
    """Folder that keeps exports."""
    workload: Path | None = None


class Bench:
    """Resources of a run, each made on first use and kept."""

    def __init__(self, options: Options) -> None:
        self.options = options
        self.sizes = options.sizes
        self.cuda = options.device == "cuda"
        self.cores = len(os.sched_getaffinity(0))
        self._encodings: dict[tuple[str, Precision], Encoding] = {}

    @functools.cached_property
    def model(self) -> Model:
        """Checkpoint that the options name."""
        checkpoint = locate(self.options.model, open_hub(default_endpoint()), print)
        return Model(display_name(self.options.model).rpartition("/")[2], checkpoint)

    @functools.cached_property
    def base(self) -> Model:
        """Random checkpoint in the shape of BERT-base, with the tokenizer of `model`."""
        layers, _, hidden, _ = self.sizes.shape
        folder = self.options.folder / f"bert-{layers}x{hidden}"
        if not folder.exists():
            with tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
                checkpoint = Path(scratch) / "checkpoint"
                write_random(checkpoint, self.sizes.shape, self.model)
                checkpoint.rename(folder)
        return Model("BERT-base shape", folder)

    def artifact(self, model: Model, precision: Precision) -> Artifact:
        """Return a model's export; export it if it is missing."""
        folder = self.options.folder / cache_key(model.checkpoint, model.name, precision)
        if folder.exists():
            return load_artifact(folder)
        print(f"  exporting {model.name} in {precision}", flush=True)
        device = self.options.device
        return export(model.checkpoint, folder, model.name, precision, device=device).artifact

    def encoding(self, model: Model, precision: Precision) -> Encoding:
        """Return a model on the device, loaded on first use."""
        key = (model.name, precision)
        if key not in self._encodings:
            self._encodings[key] = self.fresh(model, precision)
        return self._encodings[key]

    def fresh(self, model: Model, precision: Precision) -> Encoding:
        """Load a model on the device once more, with memory of its own."""
        artifact = self.artifact(model, precision)
        runtime = load_runtime(artifact, self.options.device, max(self.sizes.threads))
        return Encoding(artifact, runtime)

    def aim(self, figure: Figure, goal: Goal) -> Figure:
        """Return a figure with its goal, which counts only on a GPU at full size."""
        counts = self.cuda and self.sizes is FULL
        return dataclasses.replace(figure, goal=goal) if counts else figure

    @functools.cached_property
    def products(self) -> dict[str, float]:
        """FLOP/s of matrix products by type."""
        return device_limits.products(self.sizes.matrices, cuda=self.cuda)

    @functools.cached_property
    def copies(self) -> dict[str, float]:
        """Bytes/s of copies by direction; empty without a GPU."""
        return device_limits.copies(self.sizes.copy_bytes) if self.cuda else {}


def write_random(folder: Path, shape: tuple[int, int, int, int], like: Model) -> None:
    """Write a checkpoint of seeded random weights, with the tokenizer and positions of `like`."""
    layers, heads, hidden, intermediate = shape
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=like.config.vocab_size,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        hidden_size=hidden,
        intermediate_size=intermediate,
        max_position_embeddings=like.config.max_position_embeddings,
    )
    BertModel(config).save_pretrained(folder)
    for name in TOKENIZER_FILES:
        if (like.checkpoint / name).exists():
            shutil.copyfile(like.checkpoint / name, folder / name)
