"""Graphs that run on the host in float32, whatever runtime computes the encoder."""

from __future__ import annotations

from pathlib import Path

from model.config.encoder import EncoderConfig
from model.export.decomposition import save_decomposition
from model.export.head_scores import save_head_scores
from model.export.values import save_values


def save_host_graphs(config: EncoderConfig, folder: Path) -> None:
    """Write the graphs of value products, head scores and decompositions.

    Raises:
        ArtifactError: a file cannot be written.

    """
    save_values(config, folder)
    save_head_scores(config, folder)
    save_decomposition(config, folder)
