"""Explanations that a model cannot give."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import cast

import pytest

from model.artifact.verification import UNVERIFIED, Verdict
from model.numerics.task_head import TaskConfig
from service.errors import NoEmbeddings, NotExported, NotVerified, ServiceError, Unprocessable
from service.inference.core import Inference
from service.inference.explanation.options import ExplainOptions, check_explainable
from tests.service.harness import CONFIG

NONE = ExplainOptions(2, None, pairs=False, occlusion=True, decomposition=False, heads=False)
PAIRS, DECOMPOSITION = replace(NONE, pairs=True), replace(NONE, decomposition=True)
HEADS = replace(NONE, heads=True)
VERIFIED = UNVERIFIED.model_copy(update=dict.fromkeys(("vectors", "heads"), Verdict(passed=True)))


class Served(Inference):
    """Part of a served model that decides whether it can be explained."""

    def __init__(
        self, *, pooling: str = "mean", additive: bool = True, static: bool = False
    ) -> None:
        manifest = SimpleNamespace(
            task=None,
            model="a/model",
            static=static,
            serving_only=False,
            decoder=None,
            config=CONFIG,
            precision="int8",
            verification=VERIFIED,
        )
        self.manifest = manifest  # type: ignore[assignment]
        self.sentence = SimpleNamespace(pooling=pooling)  # type: ignore[assignment]
        self.vectors = SimpleNamespace(additive=lambda _: additive)  # type: ignore[assignment]
        self.config, self._allow_unverified = CONFIG, False


@pytest.mark.parametrize(
    ("served", "options", "error", "says"),
    [
        (Served(pooling="cls"), PAIRS, Unprocessable, "means over tokens, and this is pooling cls"),
        (Served(), replace(PAIRS, pooling="max"), Unprocessable, "this is pooling max"),
        (Served(additive=False), PAIRS, Unprocessable, "modules after pooling"),
        (Served(additive=False), DECOMPOSITION, Unprocessable, "modules after pooling"),
        (Served(static=True), DECOMPOSITION, NotExported, "shares of input tokens"),
        (Served(static=True), HEADS, NotExported, "what a head adds"),
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


@pytest.mark.parametrize(
    ("use", "refused", "allowed"),
    [
        ("vectors", (NONE, PAIRS, HEADS, DECOMPOSITION), ()),
        ("heads", (PAIRS, HEADS, replace(NONE, layer=1)), (NONE, DECOMPOSITION)),
    ],
)
def test_a_use_that_failed_its_verification(
    use: str, refused: tuple[ExplainOptions, ...], allowed: tuple[ExplainOptions, ...]
) -> None:
    served, failed = Served(), Verdict(passed=False, failed="least cosine 0.8")
    served.manifest.verification = VERIFIED.model_copy(update={use: failed})  # type: ignore[misc]
    for options in refused:
        with pytest.raises(NotVerified, match=r"int8 artifact .*least cosine 0\.8"):
            check_explainable(served, options)
    for options in allowed:
        check_explainable(served, options)


def test_a_model_that_gives_no_vectors() -> None:
    served = Served()
    served.manifest.task = cast("TaskConfig", SimpleNamespace())  # type: ignore[misc]
    with pytest.raises(NoEmbeddings, match="/explain does not explain a/model: ask /rank"):
        check_explainable(served, NONE)
