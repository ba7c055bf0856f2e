"""Conversion of a checkpoint, run in sentence-transformers' environment: `convert.py FOLDER WORK`.

Writes into WORK what sentence-transformers' own functions export, which FastEmbed and Infinity read
as well. The texts that calibrate OpenVINO's int8 are in `WORK/calibration`.
"""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

from sentence_transformers import SentenceTransformer, backend

DYNAMIC_INT8 = "model_qint8_avx512_vnni.onnx"
"""Name that sentence-transformers gives to the file of dynamic int8 for VNNI."""
ONNX_FILES = {"fp32": "model.onnx", "int8": DYNAMIC_INT8}


def convert(checkpoint: Path, work: Path) -> None:
    """Write the exports in ONNX and OpenVINO, in float32 and int8, and Infinity's folders."""
    folders = {name: work / name for name in ("onnx", "openvino")}
    for name, folder in folders.items():
        exported = SentenceTransformer(str(checkpoint), device="cpu", backend=name)
        exported.save_pretrained(str(folder))
        forget_length(folder / "tokenizer_config.json")
    model = SentenceTransformer(str(folders["onnx"]), device="cpu", backend="onnx")
    backend.export_dynamic_quantized_onnx_model(model, "avx512_vnni", str(folders["onnx"]))
    model = SentenceTransformer(str(folders["openvino"]), device="cpu", backend="openvino")
    backend.export_static_quantized_openvino_model(
        model,
        None,
        str(folders["openvino"]),
        dataset_name=str(work / "calibration"),
        dataset_config_name="default",
        dataset_split="train",
        column_name="text",
    )
    for precision, file in ONNX_FILES.items():  # Infinity takes the only ONNX file of a folder
        of_infinity = work / f"infinity-{precision}"
        shutil.copytree(folders["onnx"], of_infinity, ignore=shutil.ignore_patterns("onnx"))
        (of_infinity / file).hardlink_to(folders["onnx"] / "onnx" / file)


def forget_length(path: Path) -> None:
    """Remove the length that MiniLM's tokenizer was trained with, to which FastEmbed truncates."""
    config = json.loads(path.read_text("utf-8"))
    config.pop("max_length", None)
    path.write_text(json.dumps(config), "utf-8")


if __name__ == "__main__":
    convert(Path(sys.argv[1]), Path(sys.argv[2]))
