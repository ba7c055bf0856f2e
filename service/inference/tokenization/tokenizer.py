"""Text to token ids and offsets, within limits. Stateless; safe from several threads."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from tokenizers.models import WordPiece

from model.artifact.sentence import SentenceConfig
from service.errors import InputTooLong, Unprocessable
from service.inference.tokenization.cutting import CuttingTokenizer
from service.inference.tokenization.excerpt import Direction, Excerpt, closing_ids
from service.inference.tokenization.given_ids import IdReader
from service.inference.tokenization.inputs import Input, Text, TokenIds, characters
from service.inference.tokenization.pieces import Spelling
from service.inference.tokenization.prompts import (
    NO_PROMPT,
    Prompt,
    Prompts,
    with_prompt,
    without_prompt,
)
from service.inference.tokenization.subwords import Subwords
from service.inference.tokenization.tokenized import (
    TokenizedText as TokenizedText,  # noqa: PLC0414 - its users read it here
)
from service.inference.tokenization.tokenized import places_of


@dataclass(frozen=True)
class Limits:
    """What one input may hold."""

    max_tokens: int
    """Special tokens included."""
    max_characters: int
    """Characters of both segments; a longer input is refused unread, unless it is to be cut."""


@dataclass(frozen=True)
class Options:
    """How texts are to be tokenised."""

    truncate: bool = False
    direction: Direction = "right"
    prompt_name: str | None = None
    """The checkpoint's default when None; the empty name is for no prompt where it names some."""
    max_tokens: int | None = None
    """The most tokens of an input; the service's limit when None."""
    naming: str = "inputs[{}]"
    """What an input is called in a refusal, by its number."""
    ids_as_given: bool = False
    """Whether token ids are computed as they are, without any prompt; otherwise ids are decoded and
    encoded again, as text-embeddings-inference does, and refused where that changes them."""

    def name(self, index: int) -> str:
        """An input of that number in a refusal."""
        return self.naming.format(index)


class TextTokenizer:
    """The artifact's tokenizers, with the service's limits."""

    def __init__(
        self,
        path: Path,
        sentence: SentenceConfig,
        limits: Limits,
        target: Path | None = None,
    ) -> None:
        """Read `tokenizer.json`.

        Args:
            path: of it.
            sentence: the checkpoint's prompts.
            limits: of one input.
            target: `target_tokenizer.json`; None where targets are tokenised as inputs are.

        """
        self.limits = limits
        self._source = CuttingTokenizer(path)
        self._target = CuttingTokenizer(target) if target else self._source
        whole = self._source.whole
        self._ids = IdReader(self._source)
        self.separator_ids = frozenset(closing_ids(whole))
        """Ids of the special tokens that end a text, as [SEP] and </s> do."""
        self.target_separator_ids = frozenset(closing_ids(self._target.whole))
        added = whole.get_added_tokens_decoder().values()
        self.special_tokens = frozenset(token.content for token in added if token.special)
        self.word_pieces = isinstance(whole.model, WordPiece)
        """Whether its tokens are WordPieces, of which those that continue a word are marked."""
        self.subwords = Subwords(whole, self._source.unknown_ids)
        self._prompts = Prompts(sentence, whole)

    def tokenize(
        self, inputs: Sequence[Input], options: Options, first: int = 0
    ) -> list[TokenizedText]:
        """Tokenise inputs of one request.

        Args:
            inputs: texts or pairs.
            options: how.
            first: index of the first of them in the request.

        Raises:
            Unprocessable: an unknown prompt, or nothing left of a text.
            InputTooLong: too many characters, or too many tokens with `truncate` off.

        """
        prompt = self._prompts.named(options.prompt_name)
        self._check_lengths(inputs, options, first)
        if options.ids_as_given and any(isinstance(given, TokenIds) for given in inputs):
            return [self._alone(*one, options, prompt) for one in enumerate(inputs, first)]
        read = [
            self._read(options.name(index), text, prompt.text)
            for index, text in enumerate(inputs, first)
        ]
        return self._fitting(self._source, read, options, first, prompt)

    def tokenize_targets(
        self, targets: Sequence[str], options: Options, first: int = 0
    ) -> list[TokenizedText]:
        """Tokenise what a decoder is to have written, without any prompt; else as `tokenize`.

        The ids are the labels that transformers makes of a `text_target`.
        """
        self._check_lengths(targets, options, first)
        read = [(target, True) for target in targets]
        return self._fitting(self._target, read, options, first, NO_PROMPT)

    def spell(
        self, texts: Sequence[str], prompt_name: str | None, *, special_tokens: bool
    ) -> list[Spelling]:
        """Return all tokens of each text, after a prompt.

        Args:
            texts: of one request.
            prompt_name: as in `Options`.
            special_tokens: whether the tokenizer puts its special tokens around each.

        Raises:
            Unprocessable: an unknown prompt.

        """
        prompt = self._prompts.named(prompt_name).text
        whole = [prompt + text for text in texts]
        encodings = self._source.whole.encode_batch(whole, add_special_tokens=special_tokens)
        ids = map(self._source.ids, encodings)
        return list(map(Spelling.of, whole, encodings, ids))

    def decode(self, name: str, given: TokenIds, *, skip_special_tokens: bool) -> str:
        """The text of some ids.

        Args:
            name: of the ids in a refusal.
            given: the ids.
            skip_special_tokens: whether special tokens are left out.

        Raises:
            Unprocessable: an id that no token has.

        """
        return self._ids.decode(name, given.ids, skip_special_tokens=skip_special_tokens)

    def lacks_prompt(self, options: Options) -> bool:
        """Return whether texts get no prompt though the checkpoint names prompts."""
        return self._prompts.lacking(options.prompt_name)

    def vocabulary(self, indices: Iterable[int]) -> list[str | None]:
        """The tokens of these ids; None where the tokenizer has none."""
        return [self._source.whole.id_to_token(index) for index in indices]

    def _read(self, name: str, given: Input, prompt: str) -> tuple[Text, bool]:
        """The text with its prompt, and whether special tokens are yet to be put around it.

        Ids are decoded, and encoded again as text-embeddings-inference does: with their own
        special tokens, or after a prompt with the tokenizer's.

        Raises:
            Unprocessable: an id that no token has, or ids that are others when encoded again.

        """
        if not isinstance(given, TokenIds):
            return with_prompt(prompt, given), True
        text = self.decode(name, given, skip_special_tokens=bool(prompt))
        self._check_characters(name, text)
        self._ids.check_encoded_again(name, given.ids, text)
        return prompt + text, bool(prompt)

    def _alone(self, index: int, given: Input, options: Options, prompt: Prompt) -> TokenizedText:
        """Tokenise one input of a request whose token ids are computed as they are."""
        name = options.name(index)
        if not isinstance(given, TokenIds):
            read = [self._read(name, given, prompt.text)]
            return self._fitting(self._source, read, options, index, prompt)[0]
        if options.prompt_name:
            raise Unprocessable(f"{name}: token ids cannot follow a prompt: send the text")
        limit = options.max_tokens or self.limits.max_tokens
        most = limit if options.truncate else None
        found = self._ids.complete(name, given.ids, most, options.direction)
        _check_length(name, len(found.input_ids), limit)
        return found

    def _fitting(
        self,
        tokenizer: CuttingTokenizer,
        texts: Sequence[tuple[Text, bool]],
        options: Options,
        first: int,
        prompt: Prompt,
    ) -> list[TokenizedText]:
        """The tokens of texts, each of them within the limit."""
        limit = options.max_tokens or self.limits.max_tokens
        if options.truncate:
            names = [options.name(index) for index in range(first, first + len(texts))]
            excerpts = tokenizer.cut_texts(texts, options.direction, limit, names)
        else:
            excerpts = tokenizer.whole_texts(texts)
        found = []
        for index, excerpt in enumerate(excerpts, first):
            ids = tokenizer.ids(excerpt.encoding)
            # also when cut: a limit below the number of special tokens cuts nothing
            _check_length(options.name(index), len(ids), limit)
            if not ids:
                raise Unprocessable(f"{options.name(index)} has no tokens")
            cut_left = excerpt.truncated and options.direction == "left"
            found.append(_tokenized(tokenizer, excerpt, ids, prompt, cut_left=cut_left))
        return found

    def _check_lengths(self, inputs: Sequence[Input], options: Options, first: int) -> None:
        """Refuse inputs of too many characters, other than texts that are to be cut."""
        for index, text in enumerate(inputs, first):
            if not options.truncate or isinstance(text, TokenIds):
                self._check_characters(options.name(index), text)

    def _check_characters(self, name: str, text: Input) -> None:
        count = characters([text])
        if count > self.limits.max_characters:
            hint = "" if isinstance(text, TokenIds) else " (`truncate` cuts it)"
            most = self.limits.max_characters
            raise InputTooLong(f"{name} has {count} characters; at most {most} are taken{hint}")


def _check_length(name: str, tokens: int, limit: int) -> None:
    if tokens > limit:
        raise InputTooLong(f"{name} has {tokens} tokens; at most {limit} fit (`truncate` cuts it)")


def _tokenized(
    tokenizer: CuttingTokenizer,
    excerpt: Excerpt,
    ids: Sequence[int],
    prompt: Prompt,
    *,
    cut_left: bool,
) -> TokenizedText:
    encoding = excerpt.encoding
    offsets = excerpt.offsets
    special = encoding.special_tokens_mask
    prompt_tokens = 0
    if prompt.text:
        offsets, prompt_tokens = without_prompt(encoding, offsets, len(prompt.text))
        if not cut_left:
            prompt_tokens = prompt.tokens
        special = [1] * prompt_tokens + special[prompt_tokens:]
    input_ids = np.array(ids, np.int64)
    unknown = tokenizer.is_unknown(input_ids)
    unknown[:prompt_tokens] = False
    return TokenizedText(
        tokens=tokenizer.names.share(encoding.tokens),
        input_ids=input_ids,
        segment_ids=np.array(encoding.type_ids, np.int64),
        places=places_of(offsets),
        truncated=excerpt.truncated,
        prompt_tokens=prompt_tokens,
        special_tokens_mask=bytes(special),
        unknown=unknown,
    )
