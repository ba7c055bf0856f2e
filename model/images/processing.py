"""Steps from a picture to pixel values, read from the files of transformers' image processors.

`preprocessor_config.json` describes the image processor. `processor_config.json`, which
transformers 5 writes for CLIP and SigLIP, holds the same fields under `image_processor`, and takes
precedence.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, PositiveInt, model_validator

from model.config.encoder import Part
from model.config.files import naming, read_object
from model.errors import ConfigError

PROCESSOR = "processor_config.json"
PREPROCESSOR = "preprocessor_config.json"

Size = tuple[PositiveInt, PositiveInt]
"""Height and width in pixels."""
Deviation = Annotated[float, Field(gt=0)]


class ImageProcessing(Part):
    """Resize, centre crop, rescale and normalise, in this order; a step that is None is skipped."""

    resize: Size | None = None
    """Height and width after resizing, whatever the picture's proportions."""
    shortest_edge: PositiveInt | None = None
    """Pixels of the shorter side after resizing, which keeps the proportions."""
    resample: Literal[0, 1, 2, 3, 4, 5] = 2
    """Pillow's number of the filter: nearest, Lanczos, bilinear, bicubic, box, Hamming."""
    crop: Size | None = None
    """Height and width of the centre crop; a smaller picture is padded with black."""
    rescale_factor: float | None = None
    """Factor of the pixel values 0 … 255."""
    mean: tuple[float, float, float] | None = None
    """Means of red, green and blue, for the normalisation (value − mean) / std."""
    std: tuple[Deviation, Deviation, Deviation] | None = None
    """Standard deviations of red, green and blue."""

    @model_validator(mode="after")
    def _check(self) -> ImageProcessing:
        if self.resize and self.shortest_edge:
            raise ValueError("size is height and width, or shortest_edge, but not both")
        if self.resize is None and self.crop is None:
            raise ValueError("the size of the pixel values depends on the picture: set crop_size")
        if (self.mean is None) != (self.std is None):
            raise ValueError("image_mean and image_std are needed together")
        return self

    @property
    def size(self) -> tuple[int, int]:
        """Height and width of the pixel values."""
        size = self.crop or self.resize
        assert size is not None  # noqa: S101  # checked above
        return size


def read_processing(folder: Path) -> ImageProcessing:
    """Read the steps of a checkpoint's image processor."""
    path, written = written_fields(folder)
    defaults = _DEFAULTS[_kind(folder, path, written)]
    fields = _COMMON | defaults | written
    if fields.get("do_pad"):
        raise ConfigError(f"{path}: do_pad is not supported")
    try:
        with naming(path):
            return ImageProcessing.model_validate(_steps(fields))
    except ValueError as error:
        raise ConfigError(f"{path}: {error}") from None


_COMMON: dict[str, Any] = {
    "do_resize": True,
    "do_rescale": True,
    "do_normalize": True,
    "rescale_factor": 1 / 255,
    "default_to_square": True,
}
"""Fields that every image processor below has when its file does not."""
_HALF = {"image_mean": [0.5] * 3, "image_std": [0.5] * 3}
_SQUARE = {"height": 224, "width": 224}
_CLIP: dict[str, Any] = {
    "size": {"shortest_edge": 224},
    "crop_size": _SQUARE,
    "do_center_crop": True,
    "resample": 3,
    "default_to_square": False,
    "image_mean": [0.48145466, 0.4578275, 0.40821073],
    "image_std": [0.26862954, 0.26130258, 0.27577711],
}
_DEFAULTS: dict[str, dict[str, Any]] = {
    "ViT": _HALF | {"size": _SQUARE, "resample": 2},
    "DeiT": _HALF
    | {
        "size": {"height": 256, "width": 256},
        "crop_size": _SQUARE,
        "do_center_crop": True,
        "resample": 3,
    },
    "Bit": _CLIP,
    "CLIP": _CLIP,
    "Siglip": _HALF | {"size": _SQUARE, "resample": 3, "default_to_square": False},
}
"""Fields of each image processor when its file does not have them (transformers 5.23)."""
PROCESSOR_OF = {
    "vit": "ViT",
    "deit": "DeiT",
    "dinov2": "Bit",
    "dinov2_with_registers": "Bit",
    "clip": "CLIP",
    "clip_vision_model": "CLIP",
    "siglip": "Siglip",
    "siglip_vision_model": "Siglip",
}
"""`model_type` → name of its image processor, as in `_DEFAULTS`."""


def written_fields(folder: Path) -> tuple[Path, dict[str, Any]]:
    """Return the file that describes the image processor, and its fields."""
    nested = read_object(folder / PROCESSOR).get("image_processor")
    if isinstance(nested, dict):
        return folder / PROCESSOR, nested
    path = folder / PREPROCESSOR
    if not path.is_file():
        raise ConfigError(f"{path} does not exist: a picture model needs it")
    return path, read_object(path)


def _kind(folder: Path, path: Path, written: dict[str, Any]) -> str:
    """Return the name of an image processor without its ending, as in `_DEFAULTS`."""
    name = written.get("image_processor_type") or written.get("feature_extractor_type")
    if name is None:
        kind = PROCESSOR_OF.get(str(read_object(folder / "config.json").get("model_type")))
    else:
        kind = str(name).removesuffix("Fast").removesuffix("Pil")
        kind = kind.removesuffix("ImageProcessor").removesuffix("FeatureExtractor")
    if kind not in _DEFAULTS:
        known = ", ".join(f"{kind}ImageProcessor" for kind in _DEFAULTS)
        raise ConfigError(f"{path}: image processor {name} is not supported; supported: {known}")
    return kind


def _steps(fields: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of `ImageProcessing` for a file's fields, complete with defaults."""
    steps: dict[str, Any] = {}
    if fields["do_resize"]:
        size = _size(fields["size"], "size", square=fields["default_to_square"])
        steps |= size | {"resample": fields["resample"]}
    if fields.get("do_center_crop"):
        crop = _size(fields.get("crop_size"), "crop_size", square=True)
        if "resize" not in crop:
            raise ValueError("crop_size needs height and width")
        steps["crop"] = crop["resize"]
    if fields["do_rescale"]:
        steps["rescale_factor"] = fields["rescale_factor"]
    if fields["do_normalize"]:
        steps |= {"mean": _channels(fields["image_mean"]), "std": _channels(fields["image_std"])}
    for name in (name for name, value in steps.items() if value is None):
        raise ValueError(f"{name} is needed and null")
    return steps


def _size(value: Any, name: str, *, square: bool) -> dict[str, Any]:
    """Return `resize` or `shortest_edge` of a size in any form that transformers reads."""
    if isinstance(value, int):
        return {"resize": (value, value)} if square else {"shortest_edge": value}
    if isinstance(value, list):
        return {"resize": value}
    keys = set(value) if isinstance(value, dict) else None
    if keys == {"height", "width"}:
        return {"resize": (value["height"], value["width"])}
    if keys == {"shortest_edge"}:
        return {"shortest_edge": value["shortest_edge"]}
    raise ValueError(f"{name} {value} is not supported: use height and width, or shortest_edge")


def _channels(value: Any) -> Any:
    return (value,) * 3 if isinstance(value, int | float) else value


def patch_rows(values: NDArray[np.float32], size: int) -> NDArray[np.float32]:
    """Cut pixel values into square patches, row by row; C channels, P pixels of an edge.

    Pixels at the right and bottom that do not fill a patch are dropped, as by a convolution of
    stride P. `[C, height, width]` → `[rows · columns, C · P · P]`, each row in the order of a
    Conv2d's flattened weight.
    """
    channels, rows, columns = values.shape[0], values.shape[1] // size, values.shape[2] // size
    whole = values[:, : rows * size, : columns * size]
    grid = whole.reshape(channels, rows, size, columns, size)
    return grid.transpose(1, 3, 0, 2, 4).reshape(rows * columns, channels * size * size)
