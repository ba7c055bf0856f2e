"""Prompts before texts."""

from __future__ import annotations

from dataclasses import dataclass, replace

from tokenizers import Tokenizer

from model.artifact.sentence import PairTemplate, SentenceConfig
from service.errors import Unprocessable


@dataclass(frozen=True, slots=True)
class Prompt:
    """Prefix of texts."""

    text: str
    tokens: int
    """Number of tokens of the prompt, special tokens at its beginning included."""
    segment: int | None = None
    """Token type of all tokens: the number of the task that the prompt is of, 0 for none; None for
    a model without tasks, whose tokenizer decides."""


NO_PROMPT = Prompt("", 0)


class Prompts:
    """Prompts of a checkpoint by name."""

    def __init__(self, sentence: SentenceConfig, tokenizer: Tokenizer) -> None:
        self._sentence = sentence
        self._tasks = {task: number for number, task in enumerate(sentence.tasks, 1)}
        self._none = Prompt("", 0, 0) if self._tasks else NO_PROMPT
        self._named = {}
        for name, text in sentence.prompts.items():
            special = tokenizer.encode(text).special_tokens_mask if text else []
            # As sentence-transformers counts them: without a special token at the end
            tokens = len(special) - bool(special and special[-1])
            segment = self._tasks.get(name, 0) if self._tasks else None
            self._named[name] = Prompt(text, tokens, segment)
        has_prompts = bool(self._tasks) or any(sentence.prompts.values())
        has_default = sentence.default_prompt_name is not None or bool(sentence.pair_templates)
        self.lack_default = has_prompts and not has_default
        """Whether a request that names neither a prompt nor a task probably lacks one: a chat
        template has a default instruction, and an empty name requests no prompt on purpose."""

    def named(self, name: str | None) -> Prompt:
        """Return the prompt of a name, or the default prompt if None; no prompt for an empty name.

        Raises:
            Unprocessable: the checkpoint does not have a prompt of this name, or any prompt.

        """
        if name is None:
            name = self._sentence.default_prompt_name
        if name is None or (name == "" and self._named):
            return self._none
        try:
            return self._named[name]
        except KeyError:
            known = ", ".join(sorted(self._named)) or "none"
            raise Unprocessable(f"unknown prompt_name; this model names: {known}") from None

    def chosen(self, name: str | None, task: str | None) -> Prompt:
        """Return the prompt of a name, with the segment of a task if there is one.

        Args:
            name: as for `named`; None with a task for the task's own prompt.
            task: name of a task; None for the task of the prompt.

        Raises:
            Unprocessable: as for `named`; or the model has no such task, or no tasks.

        """
        if task is None:
            return self.named(name)
        if not self._tasks:
            raise Unprocessable(
                "task: this model has no tasks: leave out `task`; `prompt_name` names a prompt"
            )
        if task not in self._tasks:
            raise Unprocessable(f"task: unknown; this model has {', '.join(self._tasks)}")
        return replace(self.named(task if name is None else name), segment=self._tasks[task])

    def pair_template(self, name: str | None) -> PairTemplate | None:
        """Return the text around a pair with the prompt of a name, as for `named`, if any.

        Args:
            name: a name that `named` accepts.

        """
        templates = self._sentence.pair_templates
        if not templates:
            return None
        return templates[self._sentence.default_prompt_name or "" if name is None else name]
