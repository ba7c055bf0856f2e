"""Files and graphs of a decoder, and their verification."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from safetensors.numpy import load_file

from model.artifact.manifest import (
    DECODER_DATA,
    DECODER_FILES,
    DECODER_HEADS,
    FILES,
    GRAPHS,
    WEIGHTS,
    Artifact,
)
from model.config.precision import Precision
from model.errors import ConfigError
from model.export.exporter import export
from model.export.shared_tensors import places_of
from model.export.tensors import labels_for
from model.export.verify import report, signature_mismatches, verify
from model.numerics.batch import pack
from model.runtimes.host_graphs import DECODER_GRAPHS, HeadGraphs
from model.runtimes.pytorch import Modules, load_modules


def test_the_word_embedding_is_there_once(translator: tuple[Path, Artifact]) -> None:
    """Encoder, decoder and output map share it: the last two refer to the encoder's."""
    _, artifact = translator
    (encoder,) = (
        place
        for place in places_of([artifact.path(GRAPHS["encoder"])]).values()
        if place.length == 60 * 24 * 4
    )
    assert encoder.location == WEIGHTS
    for name in (GRAPHS["decoder"], GRAPHS["logprobs"]):
        model = onnx.load(artifact.path(name), load_external_data=False)
        tables = [each for each in model.graph.initializer if list(each.dims) == [60, 24]]
        assert len(tables) == 1
        assert encoder in places_of([artifact.path(name)]).values()
    data = artifact.path(DECODER_DATA).stat().st_size
    named = places_of([artifact.path(GRAPHS["decoder"])]).values()
    assert data == sum(place.length for place in named if place.location == DECODER_DATA)


@pytest.mark.parametrize("precision", ["bf16", "int8"])
def test_other_precisions_are_refused(
    encoder_decoders: Callable[[str], Path],
    tmp_path: Path,
    precision: Precision,
) -> None:
    reason = f"an encoder–decoder is exported in fp32 or fp16, not {precision}"
    with pytest.raises(ConfigError, match=reason):
        export(encoder_decoders("bart"), tmp_path / "out", "bart", precision)
    assert list(tmp_path.iterdir()) == []


def test_the_files_are_listed_and_the_graphs_match_their_signatures(
    translator: tuple[Path, Artifact],
) -> None:
    _, artifact = translator
    names = {*FILES, *DECODER_FILES, "manifest.json"}
    assert {path.name for path in artifact.folder.iterdir()} == names
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
        heads = HeadGraphs(artifact, kind)  # type: ignore[arg-type]
        for layer in range(2):
            parameters = heads.parameters(["query_weight", "key_weight"], layer, range(3))
            for role, short in (("query", "q"), ("key", "k")):
                theirs = stored[f"model.decoder.layers.{layer}.{name}.{short}_proj.weight"]
                found = parameters[f"{role}_weight"]
                np.testing.assert_array_equal(found, theirs.reshape(3, 8, 24), strict=True)
    assert all(
        key.startswith(("decoder.", "cross.")) for key in load_file(artifact.path(DECODER_HEADS))
    )


def test_what_was_verified_is_recorded(translator: tuple[Path, Artifact]) -> None:
    record = translator[1].manifest.verification
    assert record.passed
    kinds = {"decoder_hidden", "decoder_attention", "decoder_values"}
    kinds |= {"cross_queries", "cross_attention", "cross_values", "logprobs"}
    assert kinds <= record.tolerances.keys() == record.max_abs_diff_below.keys()
    assert record.tolerances["cross_attention"]["atol"] == 1e-5
    assert record.tolerances["logprobs"]["atol"] == record.tolerances["decoder_hidden"]["atol"]


def test_a_wrong_decoder_is_told_where_it_begins(
    bart_artifact: Artifact, monkeypatch: pytest.MonkeyPatch
) -> None:
    def bent(artifact: Artifact) -> Modules:
        modules = load_modules(artifact)
        assert modules.decoder is not None
        modules.decoder.decoder_layer(1).cross.query.weight.mul_(1.01)
        return modules

    monkeypatch.setattr("model.export.verify.load_modules", bent)
    found = verify(bart_artifact)
    assert not found.record().passed
    assert found.record().failed is not None
    assert "first cross-attention of layer 1, head 0" in found.record().failed
    assert "cross_attention   layer 1   max abs diff" in report(found)


def test_targets_are_as_long_as_the_texts_in_the_opposite_order(bart_artifact: Artifact) -> None:
    decoder = bart_artifact.manifest.decoder
    assert decoder is not None
    batch = pack([(np.zeros(n, np.int64), np.zeros(n, np.int64)) for n in (3, 9, 1, 60)])
    assert [len(labels) for labels in labels_for(batch, decoder)] == [48, 1, 9, 3]
