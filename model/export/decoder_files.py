"""A decoder → its files in an artifact folder that holds the encoder's graph."""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors.torch import save_file

from model.artifact.manifest import (
    DECODER_DATA,
    DECODER_GRAPH,
    DECODER_HEADS,
    DECODER_WEIGHTS,
    ENCODER_GRAPH,
    GRAPHS,
    LOGPROBS_GRAPH,
    writing,
)
from model.artifact.signature import Float
from model.decoder.decoder import Decoder
from model.export.decoder_graphs import (
    decoder_head_parameters,
    export_decoder,
    export_decoder_heads,
    export_logprobs,
)
from model.export.placement import Progress
from model.export.to_onnx import save_graph


def save_decoder(decoder: Decoder, dtype: Float, folder: Path, progress: Progress) -> None:
    """Write all files of a decoder.

    What its graphs share with the encoder's, as a rule the word embedding, is not written again.

    Args:
        decoder: in float32.
        dtype: of the graphs' weights.
        folder: of the artifact.
        progress: called with a line at each step.

    Raises:
        ArtifactError: a file cannot be written.

    """
    progress(f"exporting {DECODER_GRAPH}")
    with writing(path := folder / DECODER_WEIGHTS):
        save_file(_sorted(decoder.state_dict()), path)
    with writing(path := folder / DECODER_HEADS):
        save_file(decoder_head_parameters(decoder), path)
    beside = [folder / ENCODER_GRAPH]
    save_graph(export_decoder(decoder, dtype), folder / DECODER_GRAPH, DECODER_DATA, beside)
    beside.append(folder / DECODER_GRAPH)
    save_graph(export_logprobs(decoder, dtype), folder / LOGPROBS_GRAPH, DECODER_DATA, beside)
    progress("exporting the graphs of the decoder's heads")
    for name, graph in export_decoder_heads(decoder.config).items():
        save_graph(graph, folder / GRAPHS[name])


def _sorted(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return dict(sorted(tensors.items()))
