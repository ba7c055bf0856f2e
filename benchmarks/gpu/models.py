"""Models in known shapes with random weights, and what is loaded of them: exports and modules."""

from __future__ import annotations

import json
import time
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import torch
from transformers import AutoModel, BertConfig, BertModel, BertTokenizer, ViTConfig, ViTModel

from benchmarks.gpu.lab import Lab, Shape
from model.artifact.manifest import Artifact, load_artifact
from model.export.exporter import export
from model.runtimes.contract import Runtime
from model.runtimes.registry import load_runtime

BASE, TINY = Shape(12, 12, 768, 3072), Shape(2, 2, 64, 128)
SHAPES = {"MiniLM": Shape(6, 12, 384, 1536), "BERT-base": BASE, "ViT-B/16": BASE}
SPECIAL_TOKENS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
PATCH = 16
"""Edge of a patch in pixels."""
WIDER = 1.5
"""Factor of the random weights, so that vectors of different texts differ."""


class Model:
    """Checkpoint in one shape, tiny in a dry run; everything is made at its first use."""

    def __init__(self, lab: Lab, name: str, folder: Path, given: Path | None = None) -> None:
        self.lab, self.name = lab, name
        self.shape = TINY if lab.cpu else SHAPES[name]
        self.device: Literal["cpu", "cuda"] = "cpu" if lab.cpu else "cuda"
        self._folder, self._given = folder / name.replace("/", "-"), given

    @cached_property
    def checkpoint(self) -> Path:
        """Folder of the checkpoint, the given one or a random one."""
        folder = self._given or self._folder / "checkpoint"
        if not folder.exists():
            write_checkpoint(folder, self.shape, pictures=self.name.startswith("ViT"))
        return folder

    @cached_property
    def artifact(self) -> Artifact:
        """Export, verified on the device."""
        folder = self._folder / "artifact"
        if folder.exists():
            return load_artifact(folder)
        start = time.monotonic()
        made = export(self.checkpoint, folder, self.name, "fp16", device=self.device).artifact
        verdict = "right" if made.manifest.verification.passed else "WRONG"
        self.lab.note(exported=self.name, seconds=time.monotonic() - start, verdict=verdict)
        return made

    @cached_property
    def runtime(self) -> Runtime:
        """Runtime of the export."""
        return load_runtime(self.artifact, self.device)

    @cached_property
    def exact(self) -> Any:
        """Module of transformers in float32."""
        return self.module(torch.float32)

    @cached_property
    def half(self) -> Any:
        """Module of transformers in fp16 with fused attention; in float32 on a CPU."""
        return self.module(torch.float32 if self.lab.cpu else torch.float16)

    def module(self, dtype: torch.dtype) -> Any:
        """Load the module of transformers onto the device."""
        how = {"dtype": dtype, "attn_implementation": "sdpa", "add_pooling_layer": False}
        return AutoModel.from_pretrained(self.checkpoint, **how).eval().to(self.device)


def write_checkpoint(folder: Path, shape: Shape, *, pictures: bool) -> None:
    """Write a random ViT and its image processor, or a random BERT with words w5, w6 and so on."""
    tiny = shape == TINY
    sizes = {"num_hidden_layers": shape.layers, "num_attention_heads": shape.heads}
    sizes |= {"hidden_size": shape.hidden, "intermediate_size": shape.inner}
    torch.manual_seed(0)
    module: Any
    if pictures:
        edge = 64 if tiny else 224
        config = ViTConfig(image_size=edge, patch_size=PATCH, **sizes)
        module = ViTModel(config, add_pooling_layer=False)
    else:
        words = [*SPECIAL_TOKENS, *(f"w{n}" for n in range(5, 500 if tiny else 30_522))]
        module = BertModel(BertConfig(vocab_size=len(words), **sizes), add_pooling_layer=False)
        BertTokenizer(vocab={word: n for n, word in enumerate(words)}).save_pretrained(folder)
    for parameter in module.parameters():
        noise = 0.1 * torch.randn_like(parameter)
        parameter.data = WIDER * parameter.data if parameter.ndim > 1 else parameter.data + noise
    module.save_pretrained(folder)
    if pictures:
        size = {"height": edge, "width": edge}
        processor = {"image_processor_type": "ViTImageProcessor", "size": size}
        (folder / "preprocessor_config.json").write_text(json.dumps(processor), encoding="utf-8")
