"""`sparse` and `multivector` of `POST /encode`: checks, JSON fields and tensors.

Notation: B texts, S tokens of one text, W words with a weight, M token vectors of all texts, D
features of a token's vector, V words of the vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from model.artifact.manifest import Manifest
from model.numerics.task_head import VectorsName
from service.api.wire.json_pieces import base64_pieces, object_pieces
from service.errors import Unprocessable
from service.inference.encoding import EncodeOptions, TextEncoding
from service.inference.head_vectors import HeadVectors, SparseVector, names_of
from service.inference.tokenization.text import Text
from service.inference.tokenization.tokenizer import Options

OutputName = Literal["tokens", "pooled", VectorsName]
WORD_BYTES = 24
"""Predicted bytes of a word's index and weight in a reply."""
WEIGHT_BYTES = 4
"""Bytes of the weight of a word of the vocabulary, before zero weights are dropped."""


def with_vectors(
    options: EncodeOptions,
    outputs: Sequence[OutputName],
    prompt_name: str | None,
    manifest: Manifest,
) -> EncodeOptions:
    """Return the options with the requested vectors of the model's task head.

    Args:
        options: options of the other outputs.
        outputs: requested outputs.
        prompt_name: the request's prompt, which names the role of a late-interaction model's texts.
        manifest: manifest of the model.

    """
    task = manifest.task
    known = names_of(task)
    for output in outputs:
        if output not in known:
            raise Unprocessable(
                f"outputs: {manifest.model} has no {output}: its outputs are {', '.join(known)}"
            )
    names = tuple(name for name in (task.vectors if task else ()) if name in outputs)
    if task is None or not names:
        return options
    if not options.layers and options.layer != manifest.config.num_hidden_layers:
        raise Unprocessable(
            f"outputs: {names[0]} is computed from the last hidden state: leave out `layer`"
        )
    wanted = HeadVectors(task, names).in_role(prompt_name)
    if wanted.expands and (options.tokens or options.pooled):
        raise Unprocessable(
            "outputs: multivector of a query has expansion tokens, which tokens and pooled lack: "
            "ask for it alone"
        )
    return replace(options, head=wanted)


def within_limits(options: Options, head: HeadVectors | None) -> Options:
    """Return tokenisation options with the limit of the texts' role in late interaction."""
    if head is not None and options.windows:
        raise Unprocessable(
            f"outputs: {head.names[0]} of long texts is not computed in windows: set `overflow` to "
            "truncate or error"
        )
    return options if head is None else replace(options, max_tokens=head.max_tokens)


def head_bytes(head: HeadVectors | None, texts: Sequence[Text], number: float) -> int:
    """Return the predicted bytes of the vectors of a task head in a reply.

    A sparse encoder's number of words is unknown before: its whole vocabulary is predicted.

    Args:
        head: requested vectors; None without.
        texts: texts of the request.
        number: predicted bytes of a float.

    """
    if head is None:
        return 0
    task, size = head.task, 0.0
    tokens = sum(len(head.input_ids(text)) for text in texts)
    if "multivector" in head.names:
        size += number * tokens * task.outputs
    if "sparse" in head.names:
        by_word = WEIGHT_BYTES * task.outputs * len(texts)
        size += by_word if task.kind == "sparse" else WORD_BYTES * tokens
    return round(size)


def vector_fields(encoding: TextEncoding, *, as_base64: bool) -> dict[str, object]:
    """Return the JSON field `sparse` of a text: int32 `indices` and float32 `values`, `[W]`."""
    if encoding.sparse is None:
        return {}
    arrays = _narrow(encoding.sparse)
    if not as_base64:
        return {"sparse": arrays}
    return {"sparse": object_pieces({name: base64_pieces(own) for name, own in arrays.items()})}


def vector_tensors(encodings: Sequence[TextEncoding]) -> dict[str, NDArray[np.generic]]:
    """Return the tensors of the vectors in a binary reply.

    `sparse_indices` int32 and `sparse_values` float32 `[W]`, `multivector` float32 `[M, D]`; text i
    owns the rows `cu[i]:cu[i + 1]` of `sparse_cu_seqlens` and `multivector_cu_seqlens`, int32
    `[B + 1]`.
    """
    tensors: dict[str, NDArray[np.generic]] = {}
    if words := [_narrow(own.sparse) for own in encodings if own.sparse is not None]:
        tensors |= {
            f"sparse_{name}": np.concatenate([of_text[name] for of_text in words])
            for name in ("indices", "values")
        }
        tensors["sparse_cu_seqlens"] = _bounds([of_text["indices"] for of_text in words])
    if vectors := [own.multivector for own in encodings if own.multivector is not None]:
        tensors["multivector"] = np.concatenate(vectors)
        tensors["multivector_cu_seqlens"] = _bounds(vectors)
    return tensors


def _narrow(vector: SparseVector) -> dict[str, NDArray[np.generic]]:
    return {"indices": vector.indices.astype(np.int32), "values": vector.values}


def _bounds(arrays: Sequence[NDArray[np.generic]]) -> NDArray[np.int32]:
    return np.cumsum([0, *map(len, arrays)]).astype(np.int32)
