"""Texts with targets: expected results of a fake engine, and an artifact with a decoder.

Notation: S tokens of a text, T of its target.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from model.artifact.manifest import Artifact
from model.artifact.signature import MapKind
from model.config.decoder import DecoderConfig
from model.config.encoder import EncoderConfig
from service.engines.contract import MapsTask, Pooling, Target, TextTask
from service.engines.fake import FakeEngine
from service.inference.attention.maps import AttentionSelection
from service.inference.tokenization.text import Text
from tests.service import plain

PREFIXES: dict[MapKind, str] = {"encoder": "", "decoder": "decoder_", "cross": "cross_"}


def decoder_like(config: EncoderConfig, layers: int, heads: int, start: int) -> DecoderConfig:
    """Return a decoder with another depth and other heads than its encoder."""
    shape = {
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "max_position_embeddings": 300,
    }
    stack = EncoderConfig.model_validate(config.model_dump() | shape)
    return DecoderConfig(layers=stack, start_token_id=start)


def with_decoder(artifact: Artifact, layers: int = 3, heads: int = 4) -> Artifact:
    """Return an artifact with a decoder, for the fake engine; [SEP] starts targets."""
    manifest = artifact.manifest
    decoder = decoder_like(manifest.config, layers, heads, start=102)
    return dataclasses.replace(artifact, manifest=manifest.model_copy(update={"decoder": decoder}))


@dataclasses.dataclass
class TextWithTarget:
    """Text with its target, and the separators among the tokens of encoder and decoder."""

    text: Text
    target: Text
    separators: Sequence[int]
    read_separators: Sequence[int]
    pooling: Pooling


def maps_of(
    engine: FakeEngine,
    case: TextWithTarget,
    asked: AttentionSelection,
    kind: MapKind,
    layers: Sequence[int],
    heads: Sequence[int],
) -> tuple[Any, Any]:
    """Return maps `[layers, heads, queries, keys]` of a kind, from the engine, and their norms."""
    chosen, last = tuple(layers), case.pooling.layer
    output = engine.expected(
        TextTask(
            case.text.input_ids,
            case.text.segment_ids,
            chosen if kind == "encoder" else (last,),
            ablated=asked.ablated.get("encoder", ()),
            target=Target(
                case.target.input_ids,
                chosen,
                chosen,
                ablated=asked.ablated.get("decoder", ()),
                cross_ablated=asked.ablated.get("cross", ()),
            ),
        )
    )
    found = output.target
    assert found is not None
    states = {"encoder": output.hidden, "decoder": found.hidden, "cross": found.cross}[kind]
    keys = [output.hidden[0]] * len(chosen) if kind == "cross" else states
    tasks = [
        MapsTask(queries, own, layer, tuple(heads), kind, values=True)
        for queries, own, layer in zip(states, keys, chosen, strict=True)
    ]
    answers = [engine.expected(task) for task in tasks]
    maps, products = (
        np.stack([np.asarray(getattr(one, name)) for one in answers])
        for name in ("maps", "value_products")
    )
    return maps, plain.norms(maps, products)


def logprobs_of(
    engine: FakeEngine, case: TextWithTarget, asked: AttentionSelection, ablated: bool
) -> Any:
    """Return the log-probabilities `[T]`, with or without the ablation."""
    heads = asked.ablated if ablated else {}
    task = TextTask(
        case.text.input_ids,
        case.text.segment_ids,
        ablated=heads.get("encoder", ()),
        target=Target(
            case.target.input_ids,
            logprobs=True,
            ablated=heads.get("decoder", ()),
            cross_ablated=heads.get("cross", ()),
        ),
    )
    found = engine.expected(task).target
    assert found is not None
    return found.logprobs


def assert_target_result(
    found: dict[str, Any], engine: FakeEngine, case: TextWithTarget, asked: AttentionSelection
) -> None:
    """Check that a text's JSON has the requested results of it and its target, and no others."""
    fields = {"tokens", "token_ids", "offsets", "segment_ids", "truncated"}
    fields |= {f"target_{name}" for name in ("tokens", "token_ids", "offsets", "truncated")}
    assert found["target_tokens"] == case.target.tokens
    assert found["target_token_ids"] == case.target.input_ids.tolist()
    assert found["target_offsets"] == [list(pair) for pair in case.target.offsets]
    assert found["target_truncated"] is case.target.truncated
    for kind, (layers, heads) in asked.maps.items():
        maps, norms = maps_of(engine, case, asked, kind, layers, heads)
        if "weights" in asked.include:
            fields.add(f"{PREFIXES[kind]}attention")
            assert_weights(found[f"{PREFIXES[kind]}attention"], maps, asked.top_k)
        if "norms" in asked.include:
            fields.add(f"{PREFIXES[kind]}norms")
            own = np.array(found[f"{PREFIXES[kind]}norms"])
            np.testing.assert_allclose(own, norms, rtol=1e-6, strict=True)
        if "stats" in asked.include:
            fields.add(f"{PREFIXES[kind]}stats")
            names = plain.cross_statistics if kind == "cross" else plain.statistics
            places = case.read_separators if kind == "decoder" else case.separators
            stats = names(maps, places)
            assert found[f"{PREFIXES[kind]}stats"].keys() == stats.keys()
            for name, values in stats.items():
                array = np.array(found[f"{PREFIXES[kind]}stats"][name])
                np.testing.assert_allclose(array, values, atol=1e-6, strict=True, err_msg=name)
    if "rollout" in asked.include:
        fields.add("rollout")
    if any(asked.ablated.values()):
        fields |= {"pooled_shift", "target_logprob_shift"}
        means = [logprobs_of(engine, case, asked, with_).mean() for with_ in (True, False)]
        np.testing.assert_allclose(found["target_logprob_shift"], means[0] - means[1], atol=1e-6)
    if "logprobs" in asked.include:
        fields.add("target_logprobs")
        logprobs = logprobs_of(engine, case, asked, ablated=True)
        np.testing.assert_array_equal(np.array(found["target_logprobs"], "f4"), logprobs)
    assert found.keys() == fields


def assert_weights(found: Any, maps: Any, top_k: int | None) -> None:
    """Check whole maps, or the largest weights of each query."""
    if top_k is None:
        np.testing.assert_array_equal(np.array(found, "f4"), maps, strict=True)
        return
    indices, values = plain.largest(maps, top_k)
    np.testing.assert_array_equal(np.array(found["indices"]), indices, strict=True)
    np.testing.assert_array_equal(np.array(found["values"], "f4"), values, strict=True)
