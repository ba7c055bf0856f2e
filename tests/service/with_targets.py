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
class Case:
    """Text, maybe with a target, and the separators among the tokens of encoder and decoder."""

    text: Text
    separators: Sequence[int]
    pooling: Pooling
    """Pooling of the last hidden state."""
    heads: int
    """Number of heads of each layer of the encoder."""
    read_separators: Sequence[int] = ()

    def task(self, asked: AttentionSelection, *, whole: bool = False, **more: Any) -> TextTask:
        """Return the forward pass, with or without the ablation."""
        heads: Any = {} if whole else asked.ablated
        of_target = {"ablated": heads.get("decoder", ()), "cross_ablated": heads.get("cross", ())}
        target, of_target = self.text.target, of_target | more.pop("of_target", {})
        return TextTask(
            self.text.input_ids,
            self.text.segment_ids,
            ablated=heads.get("encoder", ()),
            target=Target(target.input_ids, **of_target) if target else None,
            **more,
        )


def maps_of(
    engine: FakeEngine,
    case: Case,
    asked: AttentionSelection,
    kind: MapKind,
    layers: Sequence[int],
    heads: Sequence[int],
) -> tuple[Any, Any]:
    """Return maps `[layers, heads, queries, keys]` of a kind, and their value products."""
    chosen = tuple(layers)
    hidden = chosen if kind == "encoder" else (case.pooling.layer,)
    of_target = {"hidden_layers": chosen, "cross_layers": chosen}
    output = engine.expected(case.task(asked, hidden_layers=hidden, of_target=of_target))
    states = keys = output.hidden
    if kind != "encoder":
        assert output.target is not None
        states = output.target.hidden if kind == "decoder" else output.target.cross
        keys = states if kind == "decoder" else [output.hidden[0]] * len(chosen)
    tasks = [
        MapsTask(queries, own, layer, tuple(heads), kind, values=True)
        for queries, own, layer in zip(states, keys, chosen, strict=True)
    ]
    answers = [engine.expected(task) for task in tasks]
    maps, products = (
        np.stack([np.asarray(getattr(one, name)) for one in answers])
        for name in ("maps", "value_products")
    )
    return maps, products


def assert_result(
    found: dict[str, Any], engine: FakeEngine, case: Case, asked: AttentionSelection
) -> None:
    """Check that a text's JSON has the requested results of it and its target, and no others."""
    facts: dict[str, Any] = {"segment_ids": case.text.segment_ids.tolist()}
    for prefix, text in (("", case.text), ("target_", case.text.target)):
        if text:
            facts |= {
                f"{prefix}tokens": text.tokens,
                f"{prefix}token_ids": text.input_ids.tolist(),
                f"{prefix}offsets": [list(pair) for pair in text.offsets],
                f"{prefix}truncated": text.truncated,
            }
    assert {name: found[name] for name in facts} == facts
    wanted = {**of_maps(engine, case, asked), **of_passes(engine, case, asked)}
    arrays: dict[str, Any] = {}
    for name, values in found.items():
        members = values.items() if isinstance(values, dict) else [("", values)]
        arrays |= {f"{name}.{member}".rstrip("."): own for member, own in members}
    assert arrays.keys() - facts.keys() == wanted.keys()
    for name, values in wanted.items():
        exact = "attention" in name or name == "target_logprobs"
        array = np.array(arrays[name], np.asarray(values).dtype if exact else None)
        bound = 0 if exact else 1e-6
        np.testing.assert_allclose(array, values, rtol=bound, atol=bound, err_msg=name)
        assert array.shape == np.shape(values)


def of_maps(engine: FakeEngine, case: Case, asked: AttentionSelection) -> dict[str, Any]:
    """Return the expected fields that are computed of maps."""
    wanted: dict[str, Any] = {}
    for kind, (layers, heads) in asked.maps.items():
        maps, products = maps_of(engine, case, asked, kind, layers, heads)
        prefix, names = PREFIXES[kind], ("indices", "values")
        if "weights" in asked.include and asked.top_k is None:
            wanted[f"{prefix}attention"] = maps
        elif "weights" in asked.include:
            largest = zip(names, plain.largest(maps, asked.top_k or 0), strict=True)
            wanted |= {f"{prefix}attention.{name}": values for name, values in largest}
        if "norms" in asked.include:
            wanted[f"{prefix}norms"] = plain.norms(maps, products)
        if "stats" in asked.include:
            statistics = plain.cross_statistics if kind == "cross" else plain.statistics
            places = case.read_separators if kind == "decoder" else case.separators
            by_name = statistics(maps, places)
            wanted |= {f"{prefix}stats.{name}": values for name, values in by_name.items()}
    every = range(case.pooling.layer), range(case.heads)
    maps, products = maps_of(engine, case, asked, "encoder", *every)
    rollouts = plain.rollout(maps), plain.norm_rollout(maps, products)
    named = zip(("rollout", "norm_rollout"), rollouts, strict=True)
    return wanted | {name: values for name, values in named if name in asked.include}


def of_passes(engine: FakeEngine, case: Case, asked: AttentionSelection) -> dict[str, Any]:
    """Return the expected fields that compare the passes with and without the ablation."""
    wanted: dict[str, Any] = {}
    options: dict[str, Any] = {"pooling": case.pooling, "of_target": {"logprobs": True}}
    ablated, whole = (engine.expected(case.task(asked, whole=own, **options)) for own in (0, 1))
    if asked.ablates:
        wanted["pooled_shift"] = plain.turned(*map(np.asarray, (ablated.pooled, whole.pooled)))
    if ablated.target and whole.target:
        logprobs = [np.asarray(own.logprobs) for own in (ablated.target, whole.target)]
        if asked.ablates:
            wanted["target_logprob_shift"] = logprobs[0].mean() - logprobs[1].mean()
        if "logprobs" in asked.include:
            wanted["target_logprobs"] = logprobs[0]
    return wanted
