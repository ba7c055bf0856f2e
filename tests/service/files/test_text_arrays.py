"""Sparse vectors and statistics of each text, from a fake engine's results."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from model.artifact.manifest import Artifact
from model.artifact.vectors import TextVectors
from model.numerics.late_interaction import LateInteraction
from model.numerics.task_head import TaskConfig
from service.engines.contract import Output, TextTask
from service.errors import NoTaskHead
from service.files.options import Encoding, UsageError
from service.files.text_arrays import plan_of
from service.inference.attention.stream import LAYER_BYTES
from tests.service.harness import tokenized


def test_sparse_vectors(artifact: Artifact) -> None:
    """Sparse vectors have no zeros."""
    task = TaskConfig(kind="sparse", outputs=5, pooling="max")
    manifest = artifact.manifest.model_copy(update={"task": task})
    plan = plan_of(manifest, TextVectors.of(artifact), Encoding("sparse"), ())
    weights = np.array([0, 0.5, 0, 2, 0], np.float32)

    def run(tasks: Sequence[TextTask]) -> list[Output]:
        assert [one.scores for one in tasks] == [(5,), (5,)]
        return [Output(scores=weights), Output(scores=np.zeros(5, np.float32))]

    first, second = plan.compute([tokenized(3), tokenized(4)], run)
    assert [array.tolist() for array in first] == [[1, 3], [0.5, 2]]
    assert [array.tolist() for array in second] == [[], []]


@pytest.mark.parametrize(("tokens", "refused"), [(512, False), (8200, True)])
def test_maps_that_are_too_large(artifact: Artifact, tokens: int, refused: bool) -> None:
    """Maps of two heads are refused before anything is computed."""
    plan = plan_of(artifact.manifest, TextVectors.of(artifact), Encoding("stats"), ())
    found = plan.refusal(tokenized(tokens))
    assert (found is not None) is refused is (4 * 2 * tokens**2 > LAYER_BYTES)


def test_multivectors(artifact: Artifact) -> None:
    """Each token that is not skipped has a vector; the limit is that of the prompt's role."""
    late = LateInteraction(modules=(), skipped_ids=(102,), document_tokens=7)
    task = TaskConfig(kind="late_interaction", outputs=2, pooling="none", late=late)
    manifest = artifact.manifest.model_copy(update={"task": task})
    encoding = Encoding("multivector", prompt_name="document")
    plan = plan_of(manifest, TextVectors.of(artifact), encoding, ())
    assert plan.max_tokens == 7
    text = replace(tokenized(3), input_ids=np.array([101, 102, 103]))
    scores = np.array([[1, 2], [3, 4], [5, 6]], np.float32)
    ((vectors,),) = plan.compute([text], lambda tasks: [Output(scores=scores) for _ in tasks])
    assert vectors.tolist() == [[1, 2], [5, 6]]
    with pytest.raises(UsageError, match=r"--outputs multivector: .* set --prompt-name to query"):
        plan_of(manifest, TextVectors.of(artifact), Encoding("multivector"), ())
    with pytest.raises(NoTaskHead, match="no token vectors for MaxSim"):
        plan_of(artifact.manifest, TextVectors.of(artifact), encoding, ())
    with pytest.raises(UsageError, match="--layer 1: sparse is computed from the last hidden"):
        Encoding("sparse", layer=1).check()
