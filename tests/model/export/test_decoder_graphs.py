"""Graphs of a decoder against their signatures, and its heads' parameters."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
from safetensors.numpy import load_file

from model.artifact.manifest import DECODER_HEADS, GRAPHS, Artifact
from model.export.verify import signature_mismatches
from model.runtimes.heads import read_heads
from model.runtimes.onnx_decoder import DECODER_GRAPHS


def test_the_graphs_match_their_signatures(translator: tuple[Path, Artifact]) -> None:
    _, artifact = translator
    for name in DECODER_GRAPHS:
        graph = onnx.load(artifact.path(GRAPHS[name]), load_external_data=False).graph
        assert signature_mismatches(graph, artifact.manifest.signature[name]) == []


def test_heads_are_those_of_the_checkpoint(
    bart_artifact: Artifact, translator: tuple[Path, Artifact]
) -> None:
    """Three heads of 8 features each, over 24; both kinds of heads are separate."""
    checkpoint, artifact = translator
    if artifact.folder != bart_artifact.folder:
        return
    stored = load_file(checkpoint / "model.safetensors")
    for kind, name in (("decoder", "self_attn"), ("cross", "encoder_attn")):
        for layer, parameters in enumerate(read_heads(artifact, kind)):  # type: ignore[arg-type]
            for role, short in (("query", "q"), ("key", "k")):
                theirs = stored[f"model.decoder.layers.{layer}.{name}.{short}_proj.weight"]
                found = parameters[f"{role}_weight"]
                np.testing.assert_array_equal(found, theirs.reshape(3, 8, 24), strict=True)
    assert all(
        key.startswith(("decoder.", "cross.")) for key in load_file(artifact.path(DECODER_HEADS))
    )
