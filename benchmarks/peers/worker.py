"""Peer in process, run by its own environment's interpreter: `worker.py NAME FOLDER WORK BATCH`.

FOLDER is the checkpoint, WORK the folder of `convert`, BATCH a number of texts. Each line of input
is a JSON array of texts; each line of output is {"seconds": number, "vectors": [[number, …], …]}.

sentence-transformers   one batch on all cores, sorted by length
FastEmbed               one batch on all cores, sorted by length here, since it does not sort
CTranslate2             a batch a core, sorted by length; its users bring tokenizer and pooling
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

CORES = len(os.sched_getaffinity(0))
Encode = Callable[[list[str], int], np.ndarray]
"""Function from texts and the number of texts in a batch to vectors `[text, feature]`."""
Load = Callable[[Path, Path], Encode]
"""Function from the checkpoint and the folder of conversions to a loaded model."""


def sentence_transformers(
    checkpoint: Path, work: Path, backend: str = "torch", **model_kwargs: Any
) -> Encode:
    from sentence_transformers import SentenceTransformer

    folder = checkpoint if backend == "torch" else work / backend
    model = SentenceTransformer(
        str(folder), device="cpu", backend=backend, model_kwargs=model_kwargs
    )
    return lambda texts, batch: model.encode(texts, batch_size=batch, show_progress_bar=False)


def onnx(name: str) -> Load:
    return partial(sentence_transformers, backend="onnx", file_name=f"onnx/{name}")


def openvino(name: str, precision: str) -> Load:
    config = {"INFERENCE_PRECISION_HINT": precision}
    return partial(
        sentence_transformers, backend="openvino", file_name=f"openvino/{name}", ov_config=config
    )


def fastembed(checkpoint: Path, work: Path, name: str) -> Encode:
    from fastembed import TextEmbedding
    from fastembed.common.model_description import ModelSource, PoolingType

    config = json.loads((checkpoint / "config.json").read_text("utf-8"))
    TextEmbedding.add_custom_model(
        "local/checkpoint",
        pooling=PoolingType.MEAN,
        normalization=True,
        sources=ModelSource(hf="local/checkpoint"),
        dim=config["hidden_size"],
        model_file=f"onnx/{name}",
    )
    model = TextEmbedding("local/checkpoint", specific_model_path=str(work / "onnx"), threads=CORES)

    def encode(texts: list[str], batch: int) -> np.ndarray:
        order = sorted(range(len(texts)), key=lambda number: -len(texts[number]))
        found = list(model.embed([texts[number] for number in order], batch_size=batch))
        return in_order(np.array(found), order)

    return encode


def ctranslate2(checkpoint: Path, work: Path, compute_type: str) -> Encode:
    import ctranslate2 as engine
    from tokenizers import Tokenizer

    folder = work / "ctranslate2"
    if not folder.exists():
        engine.converters.TransformersConverter(str(checkpoint)).convert(str(folder))
    model = engine.Encoder(
        str(folder), compute_type=compute_type, inter_threads=CORES, intra_threads=1
    )
    tokenizer = Tokenizer.from_file(str(checkpoint / "tokenizer.json"))
    tokenizer.no_padding()
    tokenizer.enable_truncation(512)

    def mean_pooled(ids: list[list[int]]) -> np.ndarray:
        output = model.forward_batch(ids).last_hidden_state
        states = np.array(output.to(engine.DataType.float32))
        lengths = np.array([len(text) for text in ids])[:, None]
        mask = (np.arange(states.shape[1]) < lengths).astype(np.float32)
        vectors = (mask[:, None, :] @ states)[:, 0]
        return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)

    def encode(texts: list[str], batch: int) -> np.ndarray:
        ids = [text.ids for text in tokenizer.encode_batch(texts)]
        order = sorted(range(len(ids)), key=lambda number: -len(ids[number]))
        ordered = [ids[number] for number in order]
        parts = [ordered[start : start + batch] for start in range(0, len(ids), batch)]
        with ThreadPoolExecutor(CORES) as pool:
            return in_order(np.concatenate(list(pool.map(mean_pooled, parts))), order)

    return encode


def in_order(found: np.ndarray, order: list[int]) -> np.ndarray:
    """Return the rows in the texts' order, given the number of the text of each row."""
    vectors = np.empty_like(found)
    vectors[order] = found
    return vectors


def torch_bf16(checkpoint: Path, work: Path) -> Encode:
    import torch

    return sentence_transformers(checkpoint, work, torch_dtype=torch.bfloat16)


FLOAT, INT8 = "openvino_model.xml", "openvino_model_qint8_quantized.xml"
DYNAMIC_INT8 = "model_qint8_avx512_vnni.onnx"
LOADERS: dict[str, Load] = {
    "sentence-transformers fp32": sentence_transformers,
    "sentence-transformers bf16": torch_bf16,
    "sentence-transformers ONNX fp32": onnx("model.onnx"),
    "sentence-transformers ONNX int8": onnx(DYNAMIC_INT8),
    "sentence-transformers OpenVINO fp32": openvino(FLOAT, "f32"),
    "sentence-transformers OpenVINO bf16": openvino(FLOAT, "bf16"),
    "sentence-transformers OpenVINO int8": openvino(INT8, "bf16"),
    "FastEmbed fp32": partial(fastembed, name="model.onnx"),
    "FastEmbed int8": partial(fastembed, name=DYNAMIC_INT8),
    "CTranslate2 fp32": partial(ctranslate2, compute_type="float32"),
    "CTranslate2 int8": partial(ctranslate2, compute_type="int8_float32"),
}


def main(name: str, checkpoint: str, work: str, batch: str) -> None:
    replies = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # libraries print to standard output
    encode = LOADERS[name](Path(checkpoint), Path(work))
    for line in sys.stdin:
        texts = json.loads(line)
        started = time.perf_counter()
        vectors = encode(texts, int(batch))
        seconds = time.perf_counter() - started
        found = np.asarray(vectors, np.float32).tolist()
        print(json.dumps({"seconds": seconds, "vectors": found}), file=replies, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
