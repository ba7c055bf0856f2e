"""Export of a decoder to its files in an artifact folder, next to the encoder's graph."""

from __future__ import annotations

from pathlib import Path

from model.artifact.manifest import (
    DECODER_DATA,
    DECODER_GRAPH,
    DECODER_HEADS,
    DECODER_WEIGHTS,
    ENCODER_GRAPH,
    GRAPHS,
    LOGPROBS_GRAPH,
    WEIGHTS,
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
from model.export.shared_tensors import save_tensors
from model.export.to_onnx import save_graph


def save_decoder(decoder: Decoder, dtype: Float, folder: Path, progress: Progress) -> None:
    """Write all files of a decoder.

    Tensors that its graphs share with the encoder's, usually the word embedding, are not repeated.
    """
    progress(f"exporting {DECODER_GRAPH}")
    beside = [folder / WEIGHTS]
    save_tensors(dict(sorted(decoder.state_dict().items())), folder / DECODER_WEIGHTS, beside)
    beside.append(folder / DECODER_WEIGHTS)
    save_tensors(decoder_head_parameters(decoder), folder / DECODER_HEADS, beside)
    beside.append(folder / ENCODER_GRAPH)
    save_graph(export_decoder(decoder, dtype), folder / DECODER_GRAPH, DECODER_DATA, beside)
    beside.append(folder / DECODER_GRAPH)
    save_graph(export_logprobs(decoder, dtype), folder / LOGPROBS_GRAPH, DECODER_DATA, beside)
    progress("exporting the graphs of the decoder's heads")
    for name, graph in export_decoder_heads(decoder.config).items():
        save_graph(graph, folder / GRAPHS[name])
