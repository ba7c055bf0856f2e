"""Which explanations a model is asked for in vain."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import cast

import pytest

from model.artifact.task import TaskConfig
from service.errors import NoEmbeddings, NotExported, ServiceError, Unprocessable
from service.inference.core import Inference
from service.inference.explanation.options import ExplainOptions, check_explainable
from tests.service.harness import CONFIG

NONE = ExplainOptions(2, None, pairs=False, occlusion=True, decomposition=False, heads=False)
PAIRS, DECOMPOSITION = replace(NONE, pairs=True), replace(NONE, decomposition=True)
HEADS = replace(NONE, heads=True)


class Served(Inference):
    """As much of a served model as is asked whether it can be explained."""

    def __init__(
        self, *, pooling: str = "mean", additive: bool = True, foreign: bool = False
    ) -> None:
        manifest = SimpleNamespace(
            task=None, model="a/model", foreign=foreign, gives_maps=True, config=CONFIG
        )
        self.manifest = manifest  # type: ignore[assignment]
        self.sentence = SimpleNamespace(pooling=pooling)  # type: ignore[assignment]
        self.vectors = SimpleNamespace(additive=lambda _: additive)  # type: ignore[assignment]
        self.config, self._has_weights = CONFIG, True


@pytest.mark.parametrize(
    ("served", "options", "error", "says"),
    [
        (Served(pooling="cls"), PAIRS, Unprocessable, "means over tokens, and this is pooling cls"),
        (Served(), replace(PAIRS, pooling="max"), Unprocessable, "this is pooling max"),
        (Served(additive=False), PAIRS, Unprocessable, "modules after pooling"),
        (Served(additive=False), DECOMPOSITION, Unprocessable, "modules after pooling"),
        (Served(foreign=True), replace(NONE, layer=1), NotExported, "hidden state 1"),
        (Served(foreign=True), DECOMPOSITION, NotExported, "shares of input tokens"),
        (Served(foreign=True), HEADS, NotExported, "what a head adds"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_is_refused(
    served: Served, options: ExplainOptions, error: type[ServiceError], says: str
) -> None:
    with pytest.raises(error, match=says):
        check_explainable(served, options)


def test_what_is_not() -> None:
    for options in (NONE, PAIRS, DECOMPOSITION, HEADS):
        check_explainable(Served(), options)
    for options in (NONE, HEADS):
        check_explainable(Served(pooling="cls", additive=False), options)
    check_explainable(Served(pooling="cls"), replace(PAIRS, pooling="mean"))


def test_a_model_that_gives_no_vectors() -> None:
    served = Served()
    served.manifest.task = cast("TaskConfig", SimpleNamespace())  # type: ignore[misc]
    with pytest.raises(NoEmbeddings, match="a/model gives no vectors of texts"):
        check_explainable(served, NONE)
