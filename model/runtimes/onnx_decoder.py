"""Decoder graphs on ONNX Runtime, on a host or a device.

The encoder's states come from the host, and requested outputs go back to it.

Notation as in `model.runtimes.contract`; V vocabulary.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from model.artifact.manifest import Artifact
from model.artifact.signature import (
    ATTENTION_OF,
    DECODER_KINDS,
    GraphName,
    cross_query_name,
    decoder_state_name,
)
from model.config.decoder import DecoderConfig
from model.config.encoder import EncoderConfig
from model.numerics.batch import Batch, Ids, coarser, pack, widen
from model.runtimes.capabilities import Decoder
from model.runtimes.contract import LOGITS, Array, Decoding, Floats, Session, every_head
from model.runtimes.host import Calls, cut
from model.runtimes.host_graphs import HeadGraphs

DECODER_GRAPHS: tuple[GraphName, ...] = (
    "decoder",
    "decoder_attention",
    "cross_attention",
    "logprobs",
)


class OnnxDecoder(Decoder):
    """Decoder of a runtime; value products are computed on the host."""

    def __init__(
        self,
        artifact: Artifact,
        config: DecoderConfig,
        sessions: Mapping[GraphName, Session],
        calls: Calls,
        *,
        lone: Session | None = None,
        aligned: int = 1,
    ) -> None:
        """Take a session of each of `DECODER_GRAPHS`.

        `calls` counts the runtime's calls, whose encoder shares the cores with the decoder. `lone`
        is a session of `decoder` with all cores, for single short batches. `aligned` is the
        alignment of the padded grid's row length.
        """
        self.config = config
        self._sessions, self._calls, self._aligned = sessions, calls, aligned
        self._lone = lone or sessions["decoder"]
        self.heads = {
            kind: HeadGraphs(artifact, kind, sessions[ATTENTION_OF[kind]]) for kind in DECODER_KINDS
        }
        self._rows = max(1, LOGITS // config.layers.vocab_size)

    def decode(self, asked: Decoding) -> tuple[list[Floats], list[Floats]]:
        """Return `[T, H]` per state, and per layer's query states."""
        layers = sorted({layer for _, layer in asked.states})
        queries = sorted({layer for _, layer in asked.cross})
        names = [decoder_state_name(layer) for layer in layers]
        names += [cross_query_name(layer) for layer in queries]
        if not names:
            return [], []  # an empty list of names would request every output
        feed = decoder_feed(asked, self.config.layers, self._aligned)
        with self._calls.call(asked.target) as alone:
            session = self._lone if alone else self._sessions["decoder"]
            outputs = [rows.astype(np.float32, copy=False) for rows in session.run(names, feed)]
        states = dict(zip(layers, outputs[: len(layers)], strict=True))
        cross = dict(zip(queries, outputs[len(layers) :], strict=True))
        return cut(states, asked.target, asked.states), cut(cross, asked.target, asked.cross)

    def logprobs(self, rows: Floats, labels: Ids) -> Floats:
        """Return log-probabilities `[n]`, computed in blocks of rows."""
        session, step = self._sessions["logprobs"], self._rows
        parts = [
            session.run(
                ["logprobs"],
                {"rows": rows[first : first + step], "labels": labels[first : first + step]},
            )[0]
            for first in range(0, len(rows), step)
        ]
        return np.concatenate(parts)

    def warm_up(self, batch_tokens: int, longest: int) -> None:
        """Run the largest batch of targets as long as their texts, maps and log-probabilities."""
        config = self.config.layers
        length = min(longest, config.max_position_embeddings)
        texts = range(max(1, batch_tokens // (2 * length)))
        batch = pack([(np.zeros(length, np.int64), np.zeros(length, np.int64)) for _ in texts])
        encoded = np.zeros((len(batch.input_ids), config.hidden_size), np.float32)
        last = [(text, config.num_hidden_layers) for text in texts]
        (states, *_), _ = self.decode(Decoding(batch, encoded, batch, last))
        for kind in DECODER_KINDS:
            self.attention_of(kind, states, states, 0, range(config.num_attention_heads))
        self.logprobs(states, batch.input_ids[:length])


def decoder_feed(asked: Decoding, config: EncoderConfig, aligned: int = 1) -> dict[str, Array]:
    """Return the inputs of the decoder graph, by name.

    A grid's row length is a multiple of `aligned`, and also rounded up by `coarser`.
    """
    target, source = asked.target, asked.source
    if aligned > 1:
        target, source = _coarse(target, aligned), _coarse(source, aligned)
    ones = every_head(asked.target, config)
    return {
        "input_ids": target.input_ids,
        "position_ids": target.position_ids,
        "padded_index": target.padded_index,
        "packed_index": target.packed_index,
        "source_padded_index": source.padded_index,
        "encoded": asked.encoded,
        "head_mask": ones if asked.head_mask is None else asked.head_mask,
        "cross_head_mask": ones if asked.cross_head_mask is None else asked.cross_head_mask,
    }


def _coarse(batch: Batch, aligned: int) -> Batch:
    texts, longest = batch.padded_index.shape
    return widen(batch, texts, coarser(longest, aligned))
