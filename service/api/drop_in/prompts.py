"""What dialects without prompts ask of a model that has one."""

from __future__ import annotations

from service.inference.core import Inference


def without_prompt(inference: Inference) -> str | None:
    """The `prompt_name` of a text without a prompt, for dialects that know none."""
    return None if inference.sentence.default_prompt_name is None else ""
