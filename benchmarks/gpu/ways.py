"""Models in known shapes, and the ways to compute unit vectors: the product's, and its rivals'.

Notation: B texts, S tokens of the longest, H hidden size.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property, partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from onnxruntime import InferenceSession, OrtValue, RunOptions, SessionOptions
from torch import Tensor
from torch.nn import functional as F  # noqa: N812
from torch.nn.utils.rnn import pad_sequence
from transformers import AutoModel, BertConfig, BertModel, BertTokenizer, ViTConfig, ViTModel

from benchmarks.gpu.lab import Lab, Make, Shape, Unavailable, Way
from model.artifact.manifest import GRAPHS, Artifact, load_artifact
from model.export.emulation import emulate
from model.export.exporter import export
from model.numerics.batch import Batch, pack
from model.numerics.pooling import TextPooling
from model.runtimes.bound import Place
from model.runtimes.contract import Resources
from model.runtimes.device_vectors import TOKENS, packed_inputs
from model.runtimes.onnx import provider_options
from model.runtimes.registry import load_runtime

BASE, TINY = Shape(12, 12, 768, 3072), Shape(2, 2, 64, 128)
SHAPES = {"MiniLM": Shape(6, 12, 384, 1536), "BERT-base": BASE, "ViT-B/16": BASE}
SPECIAL_TOKENS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
PATCH, WIDER = 16, 1.5
"""Pixels of a patch's edge; factor of the random weights, so that vectors of two texts differ."""
Texts = Sequence[NDArray[np.int64]]
"""Token ids of each text, the longest text first."""
Embed = Callable[[dict[str, Tensor]], Tensor]
BOUND, SERVED, VARIABLE = "graph of vectors", "as served", "torch, variable lengths"
CAPTURED = f"{SERVED}, CUDA graphs"
HAS_RIVAL = find_spec("sentence_transformers") is not None
RIVAL = "sentence-transformers" if HAS_RIVAL else "transformers and pooling"
"""Rival that is compared with: fp16, or float32 on a CPU, with fused attention, padded texts."""
COMPILED = f"{RIVAL}, compiled"
PREDICTED_US = {
    cell: {BOUND: packed, SERVED: packed, RIVAL: padded, COMPILED: padded, VARIABLE: variable}
    for cell, packed, padded, variable in (
        ("MiniLM, mixed", 855, 993, 886),
        ("BERT-base, 128", 2250, 2313, 2313),
        ("MiniLM, 128", 855, 886, 886),
        ("BERT-base, 512", 2419, 2482, 2482),
    )
}
"""Predicted µs of a layer on an H200 by cell and way, from bytes and operations alone."""
FULLEST = 0.75
"""Minimum length of a text relative to the longest of its group, for ways that pad."""


class Model:
    """Checkpoint in one shape, tiny in a dry run; everything is made at its first use."""

    def __init__(self, lab: Lab, name: str, folder: Path) -> None:
        self.lab, self.name = lab, name
        self.shape = TINY if lab.cpu else SHAPES[name]
        self.device: Literal["cpu", "cuda"] = "cpu" if lab.cpu else "cuda"
        self._folder = folder / name.replace("/", "-")

    @cached_property
    def checkpoint(self) -> Path:
        """Folder of the checkpoint, with random weights."""
        folder = self._folder / "checkpoint"
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
        made = export(self.checkpoint, folder, self.name, "fp16", device=self.device)
        verdict = "right" if made.manifest.verification.passed else "WRONG"
        self.lab.note(exported=self.name, verdict=verdict, seconds=time.monotonic() - start)
        return made

    @cached_property
    def runtime(self) -> Any:
        """Runtime of the export; on a CPU the graph of vectors is emulated."""
        runtime: Any = load_runtime(self.artifact, Resources(self.device))
        if self.lab.cpu:
            emulate(self.artifact, runtime)
        return runtime

    @cached_property
    def vectors_session(self) -> Any:
        """Session of the graph of vectors on the lab's stream."""
        if self.lab.stream is None:
            return self.runtime.vectors.session._session
        options, graph = SessionOptions(), str(self.artifact.path(GRAPHS["vectors"]))
        options.enable_mem_pattern = False
        how = {"user_compute_stream": str(self.lab.stream.cuda_stream)}
        providers = [("CUDAExecutionProvider", how | provider_options(Place("cuda"), None))]
        return InferenceSession(graph, options, providers=providers)

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


def batch_of(texts: Texts) -> Batch:
    """Return the product's batch of texts of one segment."""
    return pack([(ids, 0 * ids) for ids in texts])


def product_ways(model: Model, batch: Batch) -> dict[str, Make]:
    """Return the product's ways by name."""
    ways = {BOUND: lambda: bound(model, batch), SERVED: lambda: served(model, batch, model.runtime)}
    if batch.pixels is None and len(batch.input_ids) <= TOKENS[-1]:
        how = Resources(model.device, cuda_graphs=True)
        ways[CAPTURED] = needs_gpu
        if not model.lab.cpu:
            ways[CAPTURED] = lambda: served(model, batch, load_runtime(model.artifact, how))
    return ways


def bound(model: Model, batch: Batch) -> Way:
    """Return the graph of vectors on the lab's stream, with inputs and output on the device."""
    manifest, session, options = model.artifact.manifest, model.vectors_session, RunOptions()
    options.add_run_config_entry("disable_synchronize_execution_providers", "1")
    names = [spec.name for spec in manifest.signature["vectors"].inputs]
    feed = packed_inputs(batch, manifest.config, names, last=False)
    binding = session.io_binding()
    for name, array in feed.items():
        binding.bind_ortvalue_input(name, OrtValue.ortvalue_from_numpy(array, model.device, 0))
    vectors = torch.empty(len(batch.padded_index), model.shape.hidden, device=model.device)
    place = model.device, 0, np.float32, tuple(vectors.shape), vectors.data_ptr()
    binding.bind_output("unit_vectors", *place)

    def run() -> Tensor:
        session.run_with_iobinding(binding, options)
        return vectors

    return run


def served(model: Model, batch: Batch, runtime: Any) -> Way:
    """Return a call of the runtime as an engine makes it: arrays on the host in, and out."""
    mode, texts = model.artifact.manifest.sentence.pooling, range(len(batch.padded_index))
    shape = model.shape
    asked = [TextPooling(n, shape.layers, mode, unit_features=shape.hidden) for n in texts]
    return lambda: np.stack(runtime.encode(batch, [], asked)[1])


def needs_gpu() -> Way:
    """Raise the error of what a CPU cannot measure."""
    raise Unavailable("needs a GPU")


def rivals(model: Model, texts: Texts) -> dict[str, Make]:
    """Return the rivals' ways by name."""
    rival: dict[str, Make] = {RIVAL: lambda: padded(sentence_transformers(model), model, texts)}
    if model.lab.cpu:
        return rival | dict.fromkeys((COMPILED, VARIABLE), needs_gpu)
    compiled = partial(mean_of, torch.compile(model.half, dynamic=True))
    compiling = {COMPILED: lambda: padded(compiled, model, texts)}
    return rival | compiling | {VARIABLE: lambda: variable_lengths(model, texts)}


def sentence_transformers(model: Model) -> Embed:
    """Return the rival's function; if it is not installed, transformers with mean pooling."""
    if not HAS_RIVAL:
        return partial(mean_of, model.half)
    from sentence_transformers import SentenceTransformer

    how = {"dtype": model.half.dtype, "attn_implementation": "sdpa"}
    module = SentenceTransformer(str(model.checkpoint), device=model.device, model_kwargs=how)

    def embed(features: dict[str, Tensor]) -> Tensor:
        mask = torch.ones_like(features["input_ids"])
        return module({"attention_mask": mask, **features})["sentence_embedding"]

    return embed


def mean_of(module: Any, features: dict[str, Tensor]) -> Tensor:
    """Return the mean of each text's tokens."""
    last = module(**features).last_hidden_state
    if "attention_mask" not in features:
        return last.mean(1)
    weights = features["attention_mask"][..., None].to(last.dtype)
    return (last * weights).sum(1) / weights.sum(1)


def padded(embed: Embed, model: Model, texts: Texts) -> Way:
    """Return a way that pads, in groups of similar lengths; inputs are on the device before."""
    groups: list[dict[str, Tensor]] = []
    for first, end in similar([len(ids) for ids in texts]):
        rows = [torch.from_numpy(ids).to(model.device) for ids in texts[first:end]]
        groups.append({"input_ids": pad_sequence(rows, batch_first=True)})
        if len(rows[0]) > len(rows[-1]):  # without a mask Flash applies
            mask = pad_sequence([torch.ones_like(row) for row in rows], batch_first=True)
            groups[-1]["attention_mask"] = mask

    @torch.inference_mode()
    def run() -> Tensor:
        return F.normalize(torch.cat([embed(group) for group in groups]).float(), dim=1)

    return run


def similar(lengths: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Yield the ends of groups of texts, the longest first, that pad rows by at most a quarter."""
    first = 0
    for index, length in enumerate(lengths):
        if length < FULLEST * lengths[first]:
            yield first, index
            first = index
    yield first, len(lengths)


def variable_lengths(model: Model, texts: Texts) -> Way:
    """Return PyTorch's own operators on packed texts: what omitting padding gives PyTorch."""
    from torch.nn.attention.varlen import varlen_attn

    batch, module = batch_of(texts), model.half
    arrays = batch.input_ids[None], batch.position_ids[None], batch.cu_seqlens
    ids, positions, ends = (torch.from_numpy(array).to(model.device) for array in arrays)
    offsets, counts, longest = ends.int(), ends.diff(), len(texts[0])
    text = torch.repeat_interleave(torch.arange(len(texts), device=model.device), counts)
    layers = []
    for layer in module.encoder.layer:
        parts = layer.attention.self.query, layer.attention.self.key, layer.attention.self.value
        joined = (torch.cat([getattr(part, kind) for part in parts]) for kind in ("weight", "bias"))
        layers.append((layer, *joined))

    @torch.inference_mode()
    def run() -> Tensor:
        x = module.embeddings(input_ids=ids, position_ids=positions)[0]
        for layer, weight, bias in layers:
            q, k, v = F.linear(x, weight, bias).view(len(x), 3, model.shape.heads, -1).unbind(1)
            mixed = varlen_attn(q, k, v, offsets, offsets, longest, longest).flatten(1)
            x = layer.attention.output(mixed, x)
            x = layer.output(layer.intermediate(x), x)
        total = torch.zeros(len(texts), x.shape[1], device=model.device)
        return F.normalize(total.index_add_(0, text, x.float()) / counts[:, None], dim=1)

    return run
