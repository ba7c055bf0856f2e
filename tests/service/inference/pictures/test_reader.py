"""Pictures as patches, against transformers' image processor and torch's convolution."""

from __future__ import annotations

from io import BytesIO

import numpy as np
import pytest
import torch
from PIL import Image
from transformers import ViTImageProcessorPil

from model.artifact.manifest import Artifact
from service.errors import Unprocessable
from service.inference.pictures.reader import PictureReader
from service.inference.tokenization.inputs import Picture
from tests.service.pictures import picture, pictures_of


@pytest.fixture
def reader(artifact: Artifact) -> PictureReader:
    return PictureReader(pictures_of(artifact).manifest, max_pixels=1000)


def test_patches_are_those_that_a_convolution_sees(reader: PictureReader) -> None:
    data = picture(1)
    text = reader.read(Picture(data), "inputs[0]")
    processor = ViTImageProcessorPil(
        size={"height": 8, "width": 12}, image_mean=[0.5] * 3, image_std=[0.25] * 3
    )
    values = processor(Image.open(BytesIO(data)), return_tensors="pt")["pixel_values"]
    weight = torch.randn(5, 3, 4, 4, generator=torch.Generator().manual_seed(0))
    seen = torch.nn.functional.conv2d(values, weight, stride=4)[0].flatten(1).T
    assert text.pixels is not None
    assert not text.pixels[0].any()
    computed = text.pixels[1:] @ weight.flatten(1).T.numpy()
    np.testing.assert_allclose(computed, seen.numpy(), atol=1e-5)


def test_tokens_are_named_by_row_and_column(reader: PictureReader) -> None:
    text = reader.read(Picture(picture()), "inputs[0]")
    assert text.tokens == ["[CLS]", "0,0", "0,1", "0,2", "1,0", "1,1", "1,2"]
    assert text.input_ids.tolist() == [1, 0, 0, 0, 0, 0, 0]
    assert [*text.special_tokens_mask] == [1, 0, 0, 0, 0, 0, 0]
    assert not text.mostly_unknown
    assert not any(array.any() for array in (text.segment_ids, text.places))
    assert text.picture is not None
    assert (text.picture.grid, text.picture.size) == ((2, 3), (30, 20))
    assert text.picture.crop == (0, 0, 30, 20)
    assert text.nbytes == reader.nbytes == 1024 + 7 * 40 + 4 * 7 * 48


def test_a_file_that_is_refused_is_named(reader: PictureReader) -> None:
    whole = picture()
    assert reader.size_of(Picture(whole), "") == (30, 20)
    with pytest.raises(Unprocessable, match=r"inputs\[3\]: the PNG file is truncated or damaged"):
        reader.read(Picture(whole[:900]), "inputs[3]")
    with pytest.raises(Unprocessable, match=r"inputs\[3\]: the picture has more than 1000 pixels"):
        reader.size_of(Picture(picture(width=51)), "inputs[3]")
