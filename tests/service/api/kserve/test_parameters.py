"""Parameters have the same meaning as the fields of /encode and /attention of the same names."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from model.artifact.manifest import Artifact
from service.api.kserve.parameters import map_selection, vector_options
from service.api.kserve.schema import InferRequest
from service.errors import Unprocessable
from service.inference.core import Inference
from service.inference.encoding import EncodeOptions
from service.models.state import state_of
from tests.service.api.kserve.wire import in_json
from tests.service.harness import serving
from tests.service.several import fake_of

pytestmark = pytest.mark.anyio


@pytest.fixture(scope="module")
async def inference(artifact: Artifact, anyio_backend: str) -> AsyncIterator[Inference]:
    async with serving(artifact, fake_of(artifact)) as client:
        yield state_of(client.app).models.default.inference


def asked(*outputs: str, **parameters: Any) -> InferRequest:
    names = [{"name": name} for name in outputs]
    return InferRequest.model_validate(in_json(["a"], [1], outputs=names, parameters=parameters))


def test_vectors(inference: Inference) -> None:
    own = {"pooling": "max", "dimensions": 3, "normalize": True}
    found = vector_options(asked("pooled", "tokens", layer=-2, **own), inference)
    assert found == EncodeOptions(1, tokens=False, pooled=True, **own)
    assert vector_options(asked("embeddings"), inference) == EncodeOptions(2, True, False)
    assert vector_options(asked("tokens"), inference) is None


def test_maps(inference: Inference) -> None:
    found = map_selection(asked("attention", layers=[-1, 0], heads="1"), inference)
    assert found is not None
    assert (found.maps, found.only_weights) == ({"encoder": ((1, 0), (1,))}, True)
    assert map_selection(asked("pooled"), inference) is None


@pytest.mark.parametrize("parameters", [{"layers": [0]}, {"heads": 0}])
def test_parameters_of_outputs_that_are_not_wanted(
    inference: Inference, parameters: dict[str, Any]
) -> None:
    with pytest.raises(Unprocessable, match="not requested"):
        map_selection(asked("pooled", **parameters), inference)
    with pytest.raises(Unprocessable, match="not requested"):
        vector_options(asked("attention", dimensions=1), inference)
