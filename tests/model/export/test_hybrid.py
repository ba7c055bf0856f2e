"""bge-m3's linear maps: recognised, and refused if they do not fit."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from model.artifact.sentence import SentenceConfig
from model.artifact.task import task_kind
from model.artifact.weight_files import pickled_files
from model.errors import CheckpointError
from model.export.loading import load_hybrid
from model.families.registry import read_config
from model.sources.recognition import check_recognised
from model.tokenization.tokenizer import load_tokenizer
from tests.model.hybrid_checkpoints import SIZE, write_hybrid


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    return write_hybrid(tmp_path / "model")


def load(checkpoint: Path) -> None:
    config = read_config(checkpoint)
    head = load_hybrid(checkpoint, load_tokenizer(checkpoint, config, lowercase=False), config)
    assert head.config.outputs == SIZE + 1
    assert head.config.unused_ids == (0, 1, 2, 3)


def test_both_maps_are_read(checkpoint: Path) -> None:
    assert task_kind(checkpoint) == "hybrid"
    names = [path.name for path in pickled_files(checkpoint)]
    assert names == ["colbert_linear.pt", "sparse_linear.pt"]
    load(checkpoint)
    check_recognised(checkpoint)
    with pytest.raises(CheckpointError, match=r"pickled weights alone \(colbert_linear.pt\)"):
        check_recognised(checkpoint, pickles=False)


def test_without_modules_the_dense_vector_is_the_first_tokens(checkpoint: Path) -> None:
    (checkpoint / "modules.json").unlink()
    sentence = SentenceConfig.from_checkpoint(checkpoint, 64, 12)
    assert (sentence.pooling, sentence.normalize) == ("cls", True)


def test_maps_that_do_not_fit_are_refused(checkpoint: Path) -> None:
    path = checkpoint / "sparse_linear.pt"
    torch.save({"weight": torch.ones(2, 12), "bias": torch.ones(2)}, path)
    with pytest.raises(CheckpointError, match=r"weight is \(2, 12\) instead of \(1, 12\)"):
        load(checkpoint)
    torch.save({"weight": torch.ones(1, 12)}, path)
    with pytest.raises(CheckpointError, match="does not hold weight and bias of one linear map"):
        load(checkpoint)
    path.unlink()
    with pytest.raises(CheckpointError, match=r"sparse_linear.pt is missing, beside colbert_linea"):
        load(checkpoint)
