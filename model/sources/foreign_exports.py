"""Search for foreign ONNX exports and the files that describe them. Without onnx.

Layouts: optimum's `model.onnx` beside `config.json` and the tokenizer; sentence-transformers'
`onnx/model.onnx`, in a checkpoint or with its own descriptions beside it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from model.artifact.modules import transformer_folder
from model.artifact.weight_files import FORMATS, INDEX, WEIGHTS
from model.errors import CheckpointError, ConfigError
from model.families.registry import FAMILIES
from model.sources.checkpoint_files import (
    CONFIG,
    MODULES,
    TOKENIZERS,
    encoder_place,
    read_json,
)

SUFFIX = ".onnx"
_USUAL = ("model.onnx", "onnx/model.onnx")
"""Names that optimum and sentence-transformers give to the unmodified graph."""
_OTHER_KINDS = ("adapter_config.json", "manifest.json", "model_index.json")
"""Files that mark a folder as something other than an ONNX export, even if it holds graphs."""


@dataclass(frozen=True, slots=True)
class ForeignGraph:
    """Graph, and the locations of its descriptions."""

    path: Path
    """Path of the ONNX file."""
    checkpoint: Path
    """Folder of sentence-transformers' files."""
    config: Path
    """Path of the model's `config.json`."""
    tokenizer: Path
    """Folder of the tokenizer's files."""


def find_graph(place: Path, *, pickles: bool = True) -> ForeignGraph | None:
    """Return the graph of an ONNX file, or of a folder without a checkpoint.

    Args:
        place: a folder, or a file whose name ends in `.onnx`.
        pickles: whether pickled weights of a supported family make a folder a checkpoint.

    Returns:
        The graph; None for a folder without one, and for folders of other formats.

    Raises:
        CheckpointError: the folder holds several graphs, but none with a usual name; or the
            tokenizer is missing.
        ConfigError: the config is missing, or `modules.json` cannot be read.

    """
    if place.is_file():
        return _described(place)
    home = place / encoder_place(place)
    others = [home / WEIGHTS, home / INDEX, *(place / name for name in _OTHER_KINDS)]
    if any(path.is_file() for path in others) or (pickles and _is_pickled_checkpoint(home)):
        return None
    graphs = {path.relative_to(place).as_posix(): path for path in sorted(_graphs(place))}
    usual = [name for name in graphs if name in _USUAL]
    if len(graphs) > 1 and len(usual) != 1:
        raise CheckpointError(
            f"{place} holds several ONNX files ({', '.join(graphs)}): name one of them by its path"
        )
    named = usual or list(graphs)
    return _described(graphs[named[0]]) if named else None


def _is_pickled_checkpoint(home: Path) -> bool:
    if not any((home / name).is_file() for name in FORMATS[1]):
        return False
    config = read_json(home / CONFIG)
    return isinstance(config, dict) and config.get("model_type") in FAMILIES


def is_graph(place: Path) -> bool:
    """Return whether a path is an ONNX file."""
    return place.suffix.lower() == SUFFIX and place.is_file()


def _graphs(folder: Path) -> Iterator[Path]:
    for pattern in (f"*{SUFFIX}", f"*/*{SUFFIX}"):
        yield from (path for path in folder.glob(pattern) if path.is_file())


def _described(graph: Path) -> ForeignGraph:
    """Return the graph with its descriptions, found beside it or in the parent folder."""
    graph = graph.absolute()
    around = (graph.parent, graph.parent.parent)
    checkpoint = next((folder for folder in around if (folder / MODULES).is_file()), None)
    places = [*([transformer_folder(checkpoint)] if checkpoint else []), *around]
    config = next((folder / CONFIG for folder in places if (folder / CONFIG).is_file()), None)
    if config is None:
        raise ConfigError(f"{graph}: there is no {CONFIG}, neither beside it nor in {around[1]}")
    tokenizer = next(
        (folder for folder in places if any((folder / name).is_file() for name in TOKENIZERS)), None
    )
    if tokenizer is None:
        raise CheckpointError(f"{graph}: there is no tokenizer, neither beside it nor around it")
    return ForeignGraph(graph, checkpoint or config.parent, config, tokenizer)
