"""Tokenisation of texts within limits. Stateless, and safe to use from several threads."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from tokenizers.models import WordPiece

from model.artifact.sentence import PairTemplate, SentenceConfig
from service.errors import InputTooLong, Unprocessable
from service.inference.tokenization.file_tokenizer import (
    FileTokenizer,
    in_template,
    shared_tokenizer,
)
from service.inference.tokenization.inputs import TextInput, TextOrPair, TokenIds, size_of, sizes_of
from service.inference.tokenization.pieces import Spelling, Subwords
from service.inference.tokenization.prompts import NO_PROMPT, Prompt, Prompts
from service.inference.tokenization.text import Text, TextEnds
from service.inference.tokenization.truncation import Direction, Truncator, shortened

MOST_PLANS = 64
"""Maximum number of sets of options that are resolved at the same time."""
WITHIN_LOCK = 512
"""Maximum number of characters of a single text that is tokenised without giving up Python's lock:
to get the lock back may take longer than to tokenise the text."""


@dataclass(frozen=True)
class Limits:
    """Limits of a single input."""

    max_tokens: int
    """Maximum number of tokens, special tokens included."""
    max_characters: int
    """Maximum number of characters, of both texts of a pair together. A longer input is rejected
    before tokenisation, unless it is to be truncated."""


@dataclass(frozen=True)
class Options:
    """Options of tokenisation."""

    truncate: bool = False
    direction: Direction = "right"
    prompt_name: str | None = None
    """Name of the prompt; the checkpoint's default if None, no prompt if empty."""
    task: str | None = None
    """Name of the task, for a model with tasks: selects its segment, and its prompt unless
    `prompt_name` is set."""
    max_tokens: int | None = None
    """Maximum number of tokens of an input; the service's limit if None."""
    naming: str = "inputs[{}]"
    """Format of an input's name in error messages, with its index."""
    windows: bool = False
    """Whether a longer text is kept whole, to be encoded in windows."""
    ids_as_given: bool = False
    """Whether token ids are used unchanged and without a prompt. Otherwise they are decoded and
    encoded again, as text-embeddings-inference does, and rejected if that changes them."""

    places: Sequence[int] = ()
    """Index of each input in the request, if the inputs are a part of it; empty for all."""

    def name(self, index: int) -> str:
        """Return the name of an input in error messages."""
        return self.naming.format(self.places[index] if self.places else index)


class ReadingPlan:
    """Plan of reading texts: what the options decide, with a prompt, a limit and a truncation."""

    def __init__(
        self,
        tokenizer: FileTokenizer,
        limits: Limits,
        options: Options,
        prompt: Prompt = NO_PROMPT,
        *,
        windows: bool = False,
    ) -> None:
        """Resolve options.

        Args:
            tokenizer: tokenizer of the inputs or targets.
            limits: limits of a single input.
            options: options of tokenisation.
            prompt: prompt of the texts.
            windows: whether a longer text is kept whole.

        """
        self._tokenizer, self.prompt = tokenizer, prompt
        self._alone = not prompt.text and prompt.segment is None
        self.limit = options.max_tokens or limits.max_tokens
        self.template: PairTemplate | None = None
        """Text around a pair."""
        self._windows = windows
        self.truncator = None
        if options.truncate:
            self.truncator = Truncator(tokenizer.whole, self.limit, options.direction)

    def read(
        self, inputs: Sequence[TextOrPair], options: Options, first: int, *, special: bool = True
    ) -> list[Text]:
        """Tokenise texts; truncate or reject texts with more tokens than the limit.

        Args:
            inputs: texts and pairs.
            options: options that name the inputs in error messages.
            first: index of the first input in the request.
            special: whether to add special tokens.

        """
        files, truncator, limit = self._tokenizer, self.truncator, self.limit
        prefix, ids, unknown = self.prompt.text, files.ids, files.unknown_ids
        texts = inputs
        if prefix:
            texts = [
                prefix + text if isinstance(text, str) else (prefix + text[0], text[1])
                for text in inputs
            ]
        if truncator and max(sizes_of(texts), default=0) > truncator.characters:
            parts = [
                truncator.encode(text, options.name(index), special_tokens=special)
                for index, text in enumerate(texts, first)
            ]
        else:
            if len(texts) == 1 and isinstance(texts[0], str) and len(texts[0]) <= WITHIN_LOCK:
                encodings = [files.whole.encode(texts[0], add_special_tokens=special)]
            else:
                encodings = files.whole.encode_batch(texts, add_special_tokens=special)
            sizes = [*map(len, encodings)]
            if self._alone and min(sizes, default=1) > 0 and max(sizes, default=0) <= limit:
                return [Text(encoding, ids(encoding), unknown) for encoding in encodings]
            parts = [(one, truncator.cut(one) if truncator else None) for one in encodings]
        read = [Text(one, ids(one), unknown, self.prompt, cut) for one, cut in parts]
        for index, (given, found) in enumerate(zip(inputs, read, strict=True), first):
            # Also if cut: a limit below the special tokens cuts nothing
            if found.size > limit and not (self._windows and isinstance(given, str)):
                raise _too_long(options.name(index), found.size, limit)
            if not found.size:
                raise Unprocessable(f"{options.name(index)} has no tokens")
        return read


class TextTokenizer:
    """Tokenizers of an artifact, with the service's limits."""

    def __init__(
        self,
        path: Path,
        sentence: SentenceConfig,
        limits: Limits,
        target: Path | None = None,
    ) -> None:
        """Read the tokenizers' files.

        Args:
            path: path of `tokenizer.json`.
            sentence: the checkpoint's prompts.
            limits: limits of a single input.
            target: path of `target_tokenizer.json`; None if inputs and targets share a tokenizer.

        """
        self.limits = limits
        self._source = shared_tokenizer(path)
        self._target = shared_tokenizer(target) if target else self._source
        whole = self._source.whole
        self.separator_ids = frozenset(self._source.closing)
        """Ids of the special tokens that end a text, such as [SEP] and </s>."""
        self.target_separator_ids = frozenset(self._target.closing)
        added = whole.get_added_tokens_decoder().values()
        self.special_tokens = frozenset(token.content for token in added if token.special)
        self.word_pieces = isinstance(whole.model, WordPiece)
        """Whether the vocabulary is WordPiece, which marks tokens that continue a word."""
        self.subwords = Subwords(whole, self._source.unknown_ids)
        self._prompts = Prompts(sentence, whole)
        self.ends = TextEnds(sentence, whole)
        self._plans: dict[tuple[object, ...], ReadingPlan] = {}
        templates = [each.filled("", "") for each in sentence.pair_templates.values()]
        self.template_characters = max(map(len, templates), default=0)
        """Maximum number of characters that a chat template adds to a pair."""
        of_templates = [len(whole.encode(text)) for text in templates]
        self.template_tokens = max([*of_templates, self.ends.length])
        """Maximum number of tokens that a chat template, or padding, adds to an input."""

    def tokenize(self, inputs: Sequence[TextInput], options: Options, first: int = 0) -> list[Text]:
        """Tokenise inputs of a request.

        Args:
            inputs: texts, pairs or token ids.
            options: options of tokenisation.
            first: index of the first input in the request.

        Raises:
            Unprocessable: an unknown prompt or task, invalid token ids, or a text without tokens.
            InputTooLong: too many characters, or too many tokens without `truncate`.

        """
        plan = self._plan(options)
        self._check_lengths(inputs, options, first)
        kinds = {*map(type, inputs)}
        if TokenIds in kinds or (plan.template and tuple in kinds):
            numbered = enumerate(inputs, first)
            texts = [self._alone(index, given, options, plan) for index, given in numbered]
        else:
            texts = plan.read(cast(Sequence[TextOrPair], inputs), options, first)
        return [*map(self.ends.complete, texts)] if self.ends.needed else texts

    def tokenize_targets(
        self, targets: Sequence[str], options: Options, first: int = 0
    ) -> list[Text]:
        """Tokenise targets of a decoder, without a prompt; otherwise as `tokenize`.

        The ids are the labels that transformers returns for a `text_target`.
        """
        self._check_lengths(targets, options, first)
        plan = ReadingPlan(self._target, self.limits, options)
        return plan.read(targets, options, first)

    def _plan(self, options: Options) -> ReadingPlan:
        """Return the plan of options, which requests with the same options share.

        Raises:
            Unprocessable: an unknown prompt or task.

        """
        named = options.prompt_name, options.task
        key = (options.truncate, options.direction, *named, options.max_tokens, options.windows)
        plan = self._plans.get(key)
        if plan is None:
            prompt = self._prompts.chosen(*named)
            if len(self._plans) >= MOST_PLANS:
                self._plans.clear()
            windows = options.windows and not self.ends.length
            plan = ReadingPlan(self._source, self.limits, options, prompt, windows=windows)
            plan.template = self._prompts.pair_template(options.prompt_name)
            self._plans[key] = plan
        return plan

    def spell(
        self, texts: Sequence[str], prompt_name: str | None, *, special_tokens: bool
    ) -> list[Spelling]:
        """Return all tokens of each text and its prompt, without truncation.

        Args:
            texts: texts of a request.
            prompt_name: as in `Options`.
            special_tokens: whether to add special tokens.

        Raises:
            Unprocessable: an unknown prompt.

        """
        prompt = self._prompts.named(prompt_name).text
        whole = [prompt + text for text in texts]
        encodings = self._source.whole.encode_batch(whole, add_special_tokens=special_tokens)
        name = self._source.whole.id_to_token
        return [
            Spelling(text, encoding, self._source.ids(encoding), name)
            for text, encoding in zip(whole, encodings, strict=True)
        ]

    def decode(self, name: str, given: TokenIds, *, skip_special_tokens: bool) -> str:
        """Return the text of token ids.

        Args:
            name: name of the ids in error messages.
            given: token ids.
            skip_special_tokens: whether to leave out special tokens.

        Raises:
            Unprocessable: an id is not in the vocabulary.

        """
        return self._source.decode(name, given.ids, skip_special_tokens=skip_special_tokens)

    def lacks_prompt(self, options: Options) -> bool:
        """Return whether texts get no prompt although the checkpoint has prompts."""
        unnamed = options.task is None and options.prompt_name is None
        return unnamed and self._prompts.lack_default

    def vocabulary(self, indices: Iterable[int]) -> list[str | None]:
        """Return the token of each id; None for an id without a token."""
        return [self._source.whole.id_to_token(index) for index in indices]

    def _alone(self, index: int, given: TextInput, options: Options, plan: ReadingPlan) -> Text:
        """Tokenise an input of a request with token ids, or of a model with a chat template.

        Ids are decoded to be encoded again, as text-embeddings-inference does: with their own
        special tokens, or after a prompt with the tokenizer's.

        Raises:
            Unprocessable: an id is not in the vocabulary, or the ids change when encoded again.

        """
        if isinstance(given, tuple) and plan.template:
            return self._in_template(options.name(index), given, plan.template, plan)
        if not isinstance(given, TokenIds):
            return plan.read([given], options, index)[0]
        name, prompt = options.name(index), plan.prompt.text
        if not options.ids_as_given:
            text = self.decode(name, given, skip_special_tokens=bool(prompt))
            self._check_characters(name, text)
            self._source.check_encoded_again(name, given.ids, text)
            return plan.read([text], options, index, special=bool(prompt))[0]
        if options.prompt_name or options.task:
            raise Unprocessable(f"{name}: token ids cannot follow a prompt: send the text")
        most = plan.limit if options.truncate else None
        tokenized = self._source.complete(name, given.ids, most, options.direction)
        if tokenized.size > plan.limit:
            raise _too_long(name, tokenized.size, plan.limit)
        return tokenized

    def _in_template(
        self, name: str, given: tuple[str, str], template: PairTemplate, plan: ReadingPlan
    ) -> Text:
        """Tokenise a pair in a chat template."""
        limit, truncator, pair, skipped = plan.limit, plan.truncator, given, (0, 0)
        if truncator:
            pair = truncator.pair_excerpt(*given, name)
            if truncator.direction == "left":
                skipped = len(given[0]) - len(pair[0]), len(given[1]) - len(pair[1])
        text = in_template(self._source, template, pair, skipped)
        if truncator:
            return shortened(text, limit, truncator.direction)
        if text.size > limit:
            raise _too_long(name, text.size, limit)
        return text

    def _check_lengths(self, inputs: Sequence[TextInput], options: Options, first: int) -> None:
        """Raise if an input has too many characters, unless it is to be cut or windowed."""
        if max(sizes_of(inputs), default=0) <= self.limits.max_characters:
            return
        for index, given in enumerate(inputs, first):
            any_length = options.windows and isinstance(given, str)
            if isinstance(given, TokenIds) or not (any_length or options.truncate):
                self._check_characters(options.name(index), given)

    def _check_characters(self, name: str, text: TextInput) -> None:
        count, most = size_of(text), self.limits.max_characters
        if count > most:
            hint = "" if isinstance(text, TokenIds) else " (`truncate` cuts it)"
            raise InputTooLong(f"{name} has {count} characters; at most {most} are taken{hint}")


def _too_long(name: str, tokens: int, limit: int) -> InputTooLong:
    return InputTooLong(f"{name} has {tokens} tokens; at most {limit} fit (`truncate` cuts it)")
