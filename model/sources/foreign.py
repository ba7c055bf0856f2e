"""Where somebody else's ONNX export lies, and the files that describe it. Without onnx.

Layouts: optimum's `model.onnx` beside `config.json` and the tokenizer; sentence-transformers'
`onnx/model.onnx`, in a checkpoint or with descriptions of its own beside it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from model.artifact.modules import transformer_folder
from model.errors import CheckpointError, ConfigError
from model.sources.checkpoint_files import (
    CONFIG,
    INDEX,
    MODULES,
    TOKENIZERS,
    WEIGHTS,
    encoder_place,
)

SUFFIX = ".onnx"
_USUAL = ("model.onnx", "onnx/model.onnx")
"""What optimum and sentence-transformers call the graph that has not been changed."""
_OTHER_KINDS = ("adapter_config.json", "manifest.json", "model_index.json")
"""Files of folders that are something else, whatever graphs they hold."""


@dataclass(frozen=True, slots=True)
class ForeignGraph:
    """A graph, and where its descriptions are."""

    path: Path
    """The ONNX file."""
    checkpoint: Path
    """The folder of sentence-transformers' files."""
    config: Path
    """The model's `config.json`."""
    tokenizer: Path
    """The folder of the tokenizer's files."""


def find_graph(place: Path) -> ForeignGraph | None:
    """The graph of a folder that holds no checkpoint in safetensors, or of an ONNX file.

    Args:
        place: a folder, or a file whose name ends in `.onnx`.

    Returns:
        None for a folder without such a graph, and for one that is something else.

    Raises:
        CheckpointError: the folder holds several, none of the usual name; or a description of it
            is missing.
        ConfigError: so is the config, or `modules.json` cannot be read.

    """
    if place.is_file():
        return _described(place)
    home = place / encoder_place(place)
    others = [home / WEIGHTS, home / INDEX, *(place / name for name in _OTHER_KINDS)]
    if any(path.is_file() for path in others):
        return None
    graphs = {path.relative_to(place).as_posix(): path for path in sorted(_graphs(place))}
    usual = [name for name in graphs if name in _USUAL]
    if len(graphs) > 1 and len(usual) != 1:
        raise CheckpointError(
            f"{place} holds several ONNX files ({', '.join(graphs)}): name one of them by its path"
        )
    named = usual or list(graphs)
    return _described(graphs[named[0]]) if named else None


def is_graph(place: Path) -> bool:
    """Whether a path is that of an ONNX file."""
    return place.suffix.lower() == SUFFIX and place.is_file()


def _graphs(folder: Path) -> Iterator[Path]:
    for pattern in (f"*{SUFFIX}", f"*/*{SUFFIX}"):
        yield from (path for path in folder.glob(pattern) if path.is_file())


def _described(graph: Path) -> ForeignGraph:
    """The graph with its descriptions, from beside it or from the folder around that."""
    graph = graph.absolute()
    around = (graph.parent, graph.parent.parent)
    checkpoint = next((one for one in around if (one / MODULES).is_file()), None)
    places = [*([transformer_folder(checkpoint)] if checkpoint else []), *around]
    config = next((one / CONFIG for one in places if (one / CONFIG).is_file()), None)
    if config is None:
        raise ConfigError(f"{graph}: there is no {CONFIG}, neither beside it nor in {around[1]}")
    tokenizer = next(
        (one for one in places if any((one / name).is_file() for name in TOKENIZERS)), None
    )
    if tokenizer is None:
        raise CheckpointError(f"{graph}: there is no tokenizer, neither beside it nor around it")
    return ForeignGraph(graph, checkpoint or config.parent, config, tokenizer)
