"""The contract of a decoder's graphs, written out; export tests check that graphs follow it."""

from __future__ import annotations

from model.artifact.decoder_signature import HeadShapes, decoder_signatures
from model.artifact.signature import OF_DECODER
from model.config.decoder import DecoderConfig
from tests.model.numerics.test_targets import LAYERS


def test_names_types_and_axes() -> None:
    decoder = DecoderConfig(layers=LAYERS, start_token_id=0)
    values = {"value_weight": (2, 4), "output_weight": (4, 2)}
    heads = HeadShapes({"query_weight": (2, 4), "key_weight": (2, 4)}, values)
    found = decoder_signatures(decoder, "float16", heads, heads)
    assert set(found) == set(OF_DECODER)
    graph = found["decoder"]
    assert [(spec.name, spec.dtype, spec.axes) for spec in graph.inputs] == [
        ("input_ids", "int64", ("target_tokens",)),
        ("position_ids", "int64", ("target_tokens",)),
        ("padded_index", "int64", ("batch", "target_sequence")),
        ("packed_index", "int64", ("target_tokens",)),
        ("source_padded_index", "int64", ("batch", "sequence")),
        ("encoded", "float32", ("tokens", 4)),
        ("head_mask", "float32", ("batch", 2, 2)),
        ("cross_head_mask", "float32", ("batch", 2, 2)),
    ]
    names = ["decoder_state.0", "decoder_state.1", "decoder_state.2"]
    names += ["cross_query.0", "cross_query.1"]
    assert [spec.name for spec in graph.outputs] == names
    assert {(spec.dtype, spec.axes) for spec in graph.outputs} == {
        ("float16", ("target_tokens", 4))
    }
    rows, labels = found["logprobs"].inputs
    assert (rows.axes, labels.dtype) == (("vectors", 4), "int64")
    assert found["logprobs"].outputs[0].dtype == "float32"
    assert found["cross_attention"].inputs[2].axes == ("heads", 2, 4)
    for kind in ("decoder_value_norms", "cross_value_norms"):
        states, _, output = found[kind].inputs
        assert (states.axes, output.axes) == (("keys", 4), ("heads", 4, 2))
        assert found[kind].outputs[0].axes == ("keys", "heads", "heads")
