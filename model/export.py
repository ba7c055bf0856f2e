"""A checkpoint folder → an artifact folder.

The same checkpoint gives the same bytes wherever it is exported: graphs carry no stack traces,
no paths and no times, and files are written in a fixed order.
"""

from __future__ import annotations

import contextlib
import logging
import tempfile
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import onnx
import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn import functional

from model.artifact import (
    ATTENTION_GRAPH,
    ENCODER_DATA,
    ENCODER_GRAPH,
    FILES,
    HEADS,
    TOKENIZER,
    WEIGHTS,
    Artifact,
    Manifest,
    VerificationRecord,
    load_artifact,
    record_file,
    write_manifest,
)
from model.attention import MultiHeadAttention, split_heads
from model.cache import exporter_version
from model.checkpoint import load_checkpoint
from model.config import EncoderConfig
from model.encoder import Encoder
from model.errors import ArtifactError
from model.normalizers import NORMALIZERS
from model.scores import SCORES
from model.sentence import SentenceConfig
from model.signature import (
    GraphSignature,
    attention_signature,
    encoder_signature,
    head_parameter_name,
)
from model.tokenizer import load_tokenizer
from model.verify import verify

OPSET = 20
Progress = Callable[[str], None]


@dataclass(frozen=True)
class Exported:
    """A fresh artifact and how its verification went."""

    artifact: Artifact
    verification: VerificationRecord


class HiddenStates(nn.Module):
    """The encoder graph: ids to the tuple of all hidden states."""

    def __init__(self, encoder: Encoder) -> None:
        super().__init__()
        self.encoder = encoder

    def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        """Ids, mask and segments, `[B, S]` each → L + 1 tensors `[B, S, H]`."""
        return self.encoder(*inputs).hidden_states


class HeadWeights(nn.Module):
    """The attention graph: a layer's input and n heads' parameters to n maps.

    It holds no weights of its own, so one graph serves every head of every layer.
    """

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        self.score = SCORES[config.attention_score].function
        self.normalize = NORMALIZERS[config.attention_normalizer]

    def forward(self, *inputs: Tensor) -> Tensor:
        """A hidden state `[B, S, H]` and parameters `[n, …]` → `[B, n, S, S]`.

        The parameters are the weight `[n, p, H]` and bias `[n, p]` of the query, those of the
        key, then the score's own.
        """
        hidden_state, query_weight, query_bias, key_weight, key_bias, *score_parameters = inputs
        n = query_weight.shape[0]
        query = functional.linear(hidden_state, query_weight.flatten(0, 1), query_bias.flatten())
        key = functional.linear(hidden_state, key_weight.flatten(0, 1), key_bias.flatten())
        scores = self.score(split_heads(query, n), split_heads(key, n), *score_parameters)
        return self.normalize(scores, None)


def export(
    checkpoint: Path, out: Path, model: str, progress: Progress = lambda _: None
) -> Exported:
    """Turn a checkpoint into an artifact, verify it, and put it at `out` in one step.

    An artifact that fails its verification is written all the same, and says so in its
    manifest; it is the service that refuses it.

    Args:
        checkpoint: a Hugging Face folder.
        out: a folder that does not exist yet, or is empty.
        model: the name that the service will answer with.
        progress: is told each step.

    Raises:
        ModelError: the checkpoint is not usable, or `out` is taken.

    """
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise ArtifactError(f"{out} exists and is not an empty folder")
    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{out.name}.", dir=out.parent) as scratch:
        folder = Path(scratch) / "artifact"
        folder.mkdir()
        exported = _build(checkpoint, folder, model, progress)
        try:
            folder.rename(out)  # over an empty folder, but never over another's export
        except OSError:
            raise ArtifactError(f"{out} was taken while this export ran") from None
    return Exported(
        Artifact(out, exported.artifact.manifest, exported.artifact.sha256), exported.verification
    )


def _build(checkpoint: Path, folder: Path, model: str, progress: Progress) -> Exported:
    progress(f"reading {model}")
    encoder = load_checkpoint(checkpoint)
    config = encoder.config
    sentence = SentenceConfig.from_checkpoint(checkpoint, config.max_position_embeddings)
    tokenizer = load_tokenizer(checkpoint, config, lowercase=sentence.lowercase)
    tokenizer.save(str(folder / TOKENIZER), pretty=False)
    save_file(dict(sorted(encoder.state_dict().items())), folder / WEIGHTS)
    save_file(head_parameters(encoder), folder / HEADS)

    progress("exporting encoder.onnx")
    signatures = {"encoder": encoder_signature(config)}
    save_graph(export_encoder(encoder), folder / ENCODER_GRAPH, external=ENCODER_DATA)
    progress("exporting attention.onnx")
    signatures["attention"] = attention_signature(config, one_head_shapes(config))
    save_graph(export_attention(config), folder / ATTENTION_GRAPH)

    unverified = VerificationRecord(passed=False, inputs=0, tolerances={}, max_abs_diff_below={})
    manifest = Manifest.model_validate(
        {
            "format": 1,
            "model": model,
            "engine": "onnx",
            "precision": "fp32",
            "exporter": exporter_version(),
            "config": config,
            "sentence": sentence,
            "signature": signatures,
            "files": {name: record_file(folder / name) for name in FILES},
            "verification": unverified,
        }
    )
    for name in FILES:
        (folder / name).chmod(0o644)
    write_manifest(folder, manifest)
    progress("verifying ONNX against PyTorch")
    record = verify(load_artifact(folder)).record()
    write_manifest(folder, manifest.model_copy(update={"verification": record}))
    progress("verified" if record.passed else "verification FAILED")
    return Exported(load_artifact(folder), record)


def head_parameters(encoder: Encoder) -> dict[str, Tensor]:
    """Every layer's query, key and score parameters; axis 0 is always heads."""
    tensors = {}
    n = encoder.config.num_attention_heads
    for index in range(encoder.config.num_hidden_layers):
        attention: MultiHeadAttention = encoder.layers[index].attention  # type: ignore[assignment]
        parameters = {
            f"{role}_{name}": tensor.reshape(n, -1, *tensor.shape[1:])
            for role, projection in (("query", attention.query), ("key", attention.key))
            for name, tensor in (("weight", projection.weight), ("bias", projection.bias))
        }
        for name, tensor in attention.score_parameters.items():
            parameters[f"score_{name}"] = tensor
        for name, tensor in parameters.items():
            tensors[head_parameter_name(name, index)] = tensor.contiguous()
    return tensors


def one_head_shapes(config: EncoderConfig) -> dict[str, tuple[int, ...]]:
    """Name → shape of one head's parameter, in the attention graph's order."""
    p, h = config.head_size, config.hidden_size
    projections = {
        "query_weight": (p, h),
        "query_bias": (p,),
        "key_weight": (p, h),
        "key_bias": (p,),
    }
    scores = SCORES[config.attention_score].parameter_shapes(1, p, p)
    return projections | {f"score_{name}": shape[1:] for name, shape in scores.items()}


def export_encoder(encoder: Encoder) -> onnx.ModelProto:
    """The encoder graph, with dynamic batch and sequence axes."""
    # three tensors, not one three times: the exporter would make a shared one a single input
    example = tuple(torch.ones(2, 5, dtype=torch.int64) for _ in range(3))
    return to_onnx(HiddenStates(encoder).eval(), example, encoder_signature(encoder.config))


def export_attention(config: EncoderConfig) -> onnx.ModelProto:
    """The attention graph, with dynamic batch, sequence and heads axes."""
    shapes = one_head_shapes(config)
    example = torch.ones(2, 5, config.hidden_size)
    parameters = [torch.ones(3, *shape) for shape in shapes.values()]
    return to_onnx(
        HeadWeights(config).eval(), (example, *parameters), attention_signature(config, shapes)
    )


def to_onnx(
    module: nn.Module, example: tuple[Tensor, ...], signature: GraphSignature
) -> onnx.ModelProto:
    """Export a module under a signature, free of anything that names this machine."""
    dims = {
        axis: torch.export.Dim(axis)
        for spec in signature.inputs
        for axis in spec.axes
        if isinstance(axis, str)
    }
    dynamic = tuple(
        {i: dims[axis] for i, axis in enumerate(spec.axes) if isinstance(axis, str)}
        for spec in signature.inputs
    )
    with _quiet_exporter():
        program = torch.onnx.export(
            module,
            example,
            dynamo=True,
            opset_version=OPSET,
            input_names=[spec.name for spec in signature.inputs],
            output_names=[spec.name for spec in signature.outputs],
            dynamic_shapes=(dynamic,),
            verbose=False,
        )
    if program is None:
        raise ArtifactError("the exporter gave no graph")
    return without_metadata(program.model_proto)


@contextlib.contextmanager
def _quiet_exporter() -> Iterator[None]:
    """The exporter warns of its own internals, of shared axis names, and of no torchvision."""
    logging.getLogger("torch.onnx._internal.exporter._registration").setLevel(logging.ERROR)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*axis name.*will not be used.*")
        warnings.filterwarnings("ignore", message=".*treespec, LeafSpec.*", category=FutureWarning)
        yield


def without_metadata(model: onnx.ModelProto) -> onnx.ModelProto:
    """Strip stack traces, doc strings and value annotations: they name the exporting machine."""
    del model.metadata_props[:]
    model.doc_string = ""
    graph = model.graph
    del graph.metadata_props[:]
    del graph.value_info[:]
    graph.doc_string = ""
    for item in (*graph.node, *graph.input, *graph.output, *graph.initializer):
        del item.metadata_props[:]
        item.doc_string = ""
    for function in model.functions:
        raise ArtifactError(f"the exported graph holds a local function, {function.name}")
    return model


def save_graph(model: onnx.ModelProto, path: Path, external: str | None = None) -> None:
    """Write a graph; with `external`, its weights go to that file beside it."""
    onnx.checker.check_model(model)
    if external is None:
        onnx.save_model(model, path)
    else:
        onnx.save_model(
            model, path, save_as_external_data=True, location=external, size_threshold=1024
        )
