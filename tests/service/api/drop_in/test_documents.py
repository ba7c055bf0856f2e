"""Documents as texts or objects, and their first tokens."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import TypeAdapter, ValidationError
from transformers import AutoTokenizer

from model.artifact.manifest import Artifact
from service.api.drop_in.documents import Documents, shortened
from service.engines.onnx import OnnxEngine
from service.scheduler.submission import Caller
from tests.service.harness import serving, state_of

DOCUMENTS: TypeAdapter[list[str]] = TypeAdapter(Documents)
TEXTS = ["Antidisestablishmentarianism, naïvely put.", "a b", "", "one two three four 😀 six"]


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ([], "at least one document"),
        ("a", "a list with"),
        (["a", {"title": "b"}], r"documents\[1\] is neither"),
        ([{"text": 1}], r"documents\[0\] is neither"),
    ],
)
def test_what_has_no_text_is_refused(given: Any, says: str) -> None:
    with pytest.raises(ValidationError, match=says):
        DOCUMENTS.validate_python(given)


def test_objects_stand_for_their_texts() -> None:
    assert DOCUMENTS.validate_python(["a", {"text": "b", "title": "c"}]) == ["a", "b"]


@pytest.mark.anyio
async def test_documents_end_with_the_last_token_that_fits(
    artifact: Artifact, onnx_engine: OnnxEngine, small_checkpoint: Any
) -> None:
    """The cut documents have the first ids that transformers finds in the whole ones."""
    reference = AutoTokenizer.from_pretrained(small_checkpoint)
    async with serving(artifact, onnx_engine) as client:
        inference = state_of(client.app).models.default.inference
        caller = Caller("", float("inf"))
        for count in (1, 3, 5):
            found = await shortened(inference, TEXTS, count, caller)
            for text, cut in zip(TEXTS, found, strict=True):
                ids = reference(text, add_special_tokens=False)["input_ids"]
                assert reference(cut, add_special_tokens=False)["input_ids"] == ids[:count]
                assert cut == text if len(ids) <= count else text.startswith(cut)
        for most in (4 * max(map(len, TEXTS)), 4096):  # nothing is tokenised for these
            assert await shortened(inference, TEXTS, most, caller) is TEXTS
