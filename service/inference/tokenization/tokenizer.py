"""Tokenisation of texts within limits. Stateless, and safe to use from several threads."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tokenizers.models import WordPiece

from model.artifact.sentence import SentenceConfig
from model.numerics.pair_template import PairTemplate
from service.errors import InputTooLong, Unprocessable
from service.inference.tokenization.file_tokenizer import (
    FileTokenizer,
    IdReader,
    closing_ids,
    in_template,
    shared_tokenizer,
)
from service.inference.tokenization.inputs import Text, TextInput, TokenIds, size_of
from service.inference.tokenization.pieces import Spelling, Subwords
from service.inference.tokenization.prompts import NO_PROMPT, Prompt, Prompts, with_prompt
from service.inference.tokenization.tokenized import TextEnds, TokenizedText
from service.inference.tokenization.truncation import (
    Direction,
    Excerpt,
    NotCut,
    Truncator,
    encode,
    shortened,
)


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
        self._ids = IdReader(self._source)
        self.separator_ids = frozenset(closing_ids(whole))
        """Ids of the special tokens that end a text, such as [SEP] and </s>."""
        self.target_separator_ids = frozenset(closing_ids(self._target.whole))
        added = whole.get_added_tokens_decoder().values()
        self.special_tokens = frozenset(token.content for token in added if token.special)
        self.word_pieces = isinstance(whole.model, WordPiece)
        """Whether the vocabulary is WordPiece, which marks tokens that continue a word."""
        self.subwords = Subwords(whole, self._source.unknown_ids)
        self._prompts = Prompts(sentence, whole)
        self.ends = TextEnds(sentence, whole)
        templates = [each.filled("", "") for each in sentence.pair_templates.values()]
        self.template_characters = max(map(len, templates), default=0)
        """Maximum number of characters that a chat template adds to a pair."""
        of_templates = [len(whole.encode(text)) for text in templates]
        self.template_tokens = max([*of_templates, self.ends.length])
        """Maximum number of tokens that a chat template, or padding, adds to an input."""

    def tokenize(
        self, inputs: Sequence[TextInput], options: Options, first: int = 0
    ) -> list[TokenizedText]:
        """Tokenise inputs of a request.

        Args:
            inputs: texts, pairs or token ids.
            options: options of tokenisation.
            first: index of the first input in the request.

        Raises:
            Unprocessable: an unknown prompt or task, invalid token ids, or a text without tokens.
            InputTooLong: too many characters, or too many tokens without `truncate`.

        """
        return [*map(self.ends.complete, self._tokenize(inputs, options, first))]

    def _tokenize(
        self, inputs: Sequence[TextInput], options: Options, first: int
    ) -> list[TokenizedText]:
        prompt = self._prompts.chosen(options.prompt_name, options.task)
        self._check_lengths(inputs, options, first)
        numbered = enumerate(inputs, first)
        template = self._prompts.pair_template(options.prompt_name)
        if template is not None:
            return [self._in_template(*item, options, template, prompt) for item in numbered]
        if options.ids_as_given and any(isinstance(given, TokenIds) for given in inputs):
            return [self._tokenize_alone(*item, options, prompt) for item in numbered]
        texts = [self._text(options.name(index), given, prompt.text) for index, given in numbered]
        return self._within_limit(self._source, texts, options, first, prompt)

    def tokenize_targets(
        self, targets: Sequence[str], options: Options, first: int = 0
    ) -> list[TokenizedText]:
        """Tokenise targets of a decoder, without a prompt; otherwise as `tokenize`.

        The ids are the labels that transformers returns for a `text_target`.
        """
        self._check_lengths(targets, options, first)
        texts = [(target, True) for target in targets]
        return self._within_limit(self._target, texts, options, first, NO_PROMPT)

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
            Spelling.of(text, encoding, self._source.ids(encoding), name)
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
        return self._ids.decode(name, given.ids, skip_special_tokens=skip_special_tokens)

    def lacks_prompt(self, options: Options) -> bool:
        """Return whether texts get no prompt although the checkpoint has prompts."""
        return options.task is None and self._prompts.lacking(options.prompt_name)

    def vocabulary(self, indices: Iterable[int]) -> list[str | None]:
        """Return the token of each id; None for an id without a token."""
        return [self._source.whole.id_to_token(index) for index in indices]

    def _text(self, name: str, given: TextInput, prompt: str) -> tuple[Text, bool]:
        """Return the text of an input with its prompt, and whether to add special tokens.

        Ids are decoded to be encoded again, as text-embeddings-inference does: with their own
        special tokens, or after a prompt with the tokenizer's.

        Raises:
            Unprocessable: an id is not in the vocabulary, or the ids change when encoded again.

        """
        if not isinstance(given, TokenIds):
            return with_prompt(prompt, given), True
        text = self.decode(name, given, skip_special_tokens=bool(prompt))
        self._check_characters(name, text)
        self._ids.check_encoded_again(name, given.ids, text)
        return prompt + text, bool(prompt)

    def _in_template(
        self, index: int, given: TextInput, options: Options, template: PairTemplate, prompt: Prompt
    ) -> TokenizedText:
        """Tokenise an input of a model with a chat template for pairs."""
        if isinstance(given, str | TokenIds):
            return self._tokenize_alone(index, given, options, prompt)
        limit = options.max_tokens or self.limits.max_tokens
        skipped = 0, 0
        pair = given
        if options.truncate:
            truncator = Truncator(self._source.whole, limit, options.direction)
            with _naming(options.name(index)):
                pair = truncator.pair_excerpt(*given)
            if options.direction == "left":
                skipped = len(given[0]) - len(pair[0]), len(given[1]) - len(pair[1])
        text = in_template(self._source, template, pair, skipped)
        if len(text.input_ids) <= limit:
            return text
        if not options.truncate:
            raise _too_long(options.name(index), len(text.input_ids), limit)
        return shortened(text, limit, options.direction)

    def _tokenize_alone(
        self, index: int, given: TextInput, options: Options, prompt: Prompt
    ) -> TokenizedText:
        """Tokenise one input of a request."""
        name = options.name(index)
        if not isinstance(given, TokenIds) or not options.ids_as_given:
            texts = [self._text(name, given, prompt.text)]
            return self._within_limit(self._source, texts, options, index, prompt)[0]
        if options.prompt_name or options.task:
            raise Unprocessable(f"{name}: token ids cannot follow a prompt: send the text")
        limit = options.max_tokens or self.limits.max_tokens
        most = limit if options.truncate else None
        tokenized = self._ids.complete(name, given.ids, most, options.direction)
        if len(tokenized.input_ids) > limit:
            raise _too_long(name, len(tokenized.input_ids), limit)
        return tokenized

    def _within_limit(
        self,
        tokenizer: FileTokenizer,
        texts: Sequence[tuple[Text, bool]],
        options: Options,
        first: int,
        prompt: Prompt,
    ) -> list[TokenizedText]:
        """Tokenise texts; truncate or reject texts with more tokens than the limit.

        Args:
            tokenizer: tokenizer of the inputs or targets.
            texts: texts with their prompt, each with whether to add special tokens.
            options: options of tokenisation.
            first: index of the first text in the request.
            prompt: prompt of the texts.

        """
        limit = options.max_tokens or self.limits.max_tokens
        if options.truncate:
            truncator = Truncator(tokenizer.whole, limit, options.direction)
            excerpts = [_cut(truncator, *text, options, n) for n, text in enumerate(texts, first)]
        else:
            excerpts = _whole(tokenizer, texts)
        tokenized = []
        for index, excerpt in enumerate(excerpts, first):
            ids = excerpt.of(tokenizer.ids(excerpt.encoding))
            single = isinstance(texts[index - first][0], str)
            whole = options.windows and single and not self.ends.length
            # Also if cut: a limit below the special tokens cuts nothing
            if len(ids) > limit and not whole:
                raise _too_long(options.name(index), len(ids), limit)
            if not ids:
                raise Unprocessable(f"{options.name(index)} has no tokens")
            cut_left = excerpt.truncated and options.direction == "left"
            tokenized.append(tokenizer.tokenized(excerpt, ids, prompt, cut_left=cut_left))
        return tokenized

    def _check_lengths(self, inputs: Sequence[TextInput], options: Options, first: int) -> None:
        """Raise if an input has too many characters, unless it is to be cut or windowed."""
        for index, text in enumerate(inputs, first):
            too_long = size_of(text) > self.limits.max_characters
            any_length = isinstance(text, str) and options.windows
            if too_long and not any_length and (not options.truncate or isinstance(text, TokenIds)):
                self._check_characters(options.name(index), text)

    def _check_characters(self, name: str, text: TextInput) -> None:
        count = size_of(text)
        if count > self.limits.max_characters:
            hint = "" if isinstance(text, TokenIds) else " (`truncate` cuts it)"
            most = self.limits.max_characters
            raise InputTooLong(f"{name} has {count} characters; at most {most} are taken{hint}")


def _too_long(name: str, tokens: int, limit: int) -> InputTooLong:
    return InputTooLong(f"{name} has {tokens} tokens; at most {limit} fit (`truncate` cuts it)")


def _whole(tokenizer: FileTokenizer, texts: Sequence[tuple[Text, bool]]) -> list[Excerpt]:
    """Tokenise texts without truncation."""
    if all(special for _, special in texts):
        return list(map(Excerpt, tokenizer.whole.encode_batch([text for text, _ in texts])))
    return [Excerpt(encode(tokenizer.whole, text, special_tokens=own)) for text, own in texts]


def _cut(
    truncator: Truncator, text: Text, special_tokens: bool, options: Options, index: int
) -> Excerpt:
    """Tokenise and truncate a text, whose index is for error messages."""
    with _naming(options.name(index)):
        return truncator.encode(text, special_tokens=special_tokens)


@contextlib.contextmanager
def _naming(name: str) -> Iterator[None]:
    """Turn `NotCut` into an error that names the input."""
    try:
        yield
    except NotCut as error:
        raise InputTooLong(f"{name} {error}") from None
