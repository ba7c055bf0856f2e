"""Text to token ids and offsets, within limits. Stateless; safe from several threads."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from tokenizers import Encoding
from tokenizers.models import WordPiece

from model.artifact.manifest import reading
from model.artifact.sentence import SentenceConfig
from model.artifact.tokenizer import read_tokenizer
from service.engines.contract import Ids
from service.errors import InputTooLong, Unprocessable
from service.inference.excerpt import Cutter, Direction, Excerpt, Offset, closing_ids
from service.inference.inputs import Input, Text, TokenIds, characters
from service.inference.pieces import Spelling
from service.inference.subwords import Subwords


@dataclass(frozen=True)
class Limits:
    """What one input may hold."""

    max_tokens: int
    """Special tokens included."""
    max_characters: int
    """Characters of both segments; a longer input is refused before it is tokenised."""


@dataclass(frozen=True, slots=True)
class TokenizedText:
    """One text as the encoder sees it, and how it maps back to the caller's string."""

    tokens: list[str]
    input_ids: Ids
    """`[S]`."""
    segment_ids: Ids
    """`[S]`."""
    offsets: list[tuple[int, int]]
    """Code points in the token's own segment of the caller's string; (0, 0) for special tokens
    and for those of a prompt."""
    truncated: bool
    prompt_tokens: int
    """Leading tokens that a pooling without the prompt leaves out; 0 without a prompt."""
    special_tokens_mask: Sequence[int]
    """1 for the tokens that the tokenizer put around the text, and for those of a prompt."""

    def first_pooled(self, sentence: SentenceConfig) -> int:
        """The first token that pooling counts: those of a prompt may not."""
        if sentence.include_prompt:
            return 0
        return min(self.prompt_tokens, len(self.input_ids) - 1)


@dataclass(frozen=True, slots=True)
class Prompt:
    """A prefix of texts."""

    text: str
    tokens: int
    """Of the prompt alone, special tokens at its beginning included."""


NO_PROMPT = Prompt("", 0)


@dataclass(frozen=True)
class Options:
    """How texts are to be tokenised."""

    truncate: bool = False
    direction: Direction = "right"
    prompt_name: str | None = None
    """The checkpoint's default when None; where it has one, the empty name stands for no prompt."""
    max_tokens: int | None = None
    """The most tokens of an input; the service's limit when None."""
    naming: str = "inputs[{}]"
    """What an input is called in a refusal, by its number."""

    def name(self, index: int) -> str:
        """An input of that number in a refusal."""
        return self.naming.format(index)


class TextTokenizer:
    """The artifact's tokenizer, with the service's limits."""

    def __init__(self, path: Path, sentence: SentenceConfig, limits: Limits) -> None:
        """Read `tokenizer.json`."""
        self._sentence = sentence
        self.limits = limits
        with reading(path):
            self._whole = read_tokenizer(path)
        self.separator_ids = frozenset(closing_ids(self._whole))
        """Ids of the special tokens that end a text, as [SEP] and </s> do."""
        added = self._whole.get_added_tokens_decoder().values()
        self.special_tokens = frozenset(token.content for token in added if token.special)
        self.word_pieces = isinstance(self._whole.model, WordPiece)
        """Whether its tokens are WordPieces, of which those that continue a word are marked."""
        self.subwords = Subwords(self._whole)
        self._cutters: dict[tuple[Direction, int], Cutter] = {}
        self._prompts = {
            name: Prompt(prompt, self._length(prompt)) for name, prompt in sentence.prompts.items()
        }
        self._lock = threading.Lock()

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
        prompt = self._prompt(options.prompt_name)
        limit = options.max_tokens or self.limits.max_tokens
        for index, text in enumerate(inputs, first):
            self._check_characters(options.name(index), text)
        read = [
            self._read(options.name(index), text, prompt.text)
            for index, text in enumerate(inputs, first)
        ]
        texts = []
        for index, excerpt in enumerate(self._excerpts(read, options, limit), first):
            count = len(excerpt.encoding.ids)
            # also when cut: a limit below the number of special tokens cuts nothing
            if count > limit:
                raise InputTooLong(
                    f"{options.name(index)} has {count} tokens; at most {limit} fit "
                    "(`truncate` cuts it)"
                )
            if not count:
                raise Unprocessable(f"{options.name(index)} has no tokens")
            cut_left = excerpt.truncated and options.direction == "left"
            texts.append(_tokenized(excerpt, prompt, cut_left=cut_left))
        return texts

    def spell(
        self, texts: Sequence[str], prompt_name: str | None, first: int, *, special_tokens: bool
    ) -> list[Spelling]:
        """Tokens of texts after a prompt, however many.

        Args:
            texts: of one request.
            prompt_name: as in `Options`.
            first: index of the first of them in the request.
            special_tokens: whether the tokenizer puts its special tokens around each.

        Raises:
            Unprocessable: an unknown prompt.
            InputTooLong: too many characters.

        """
        prompt = self._prompt(prompt_name).text
        for index, text in enumerate(texts, first):
            self._check_characters(f"inputs[{index}]", text)
        whole = [prompt + text for text in texts]
        encodings = self._whole.encode_batch(whole, add_special_tokens=special_tokens)
        return list(map(Spelling.of, whole, encodings))

    def decode(self, name: str, given: TokenIds, *, skip_special_tokens: bool) -> str:
        """The text of some ids.

        Args:
            name: of the ids in a refusal.
            given: the ids.
            skip_special_tokens: whether special tokens are left out.

        Raises:
            Unprocessable: an id that no token has.

        """
        size = self._whole.get_vocab_size()
        for token in given.ids:
            if not 0 <= token < size:
                raise Unprocessable(f"{name} has the token id {token}: ids are 0 … {size - 1}")
        text: str = self._whole.decode(given.ids, skip_special_tokens=skip_special_tokens)
        return text

    def vocabulary(self, indices: Iterable[int]) -> list[str | None]:
        """The tokens of these ids; None where the tokenizer has none."""
        return [self._whole.id_to_token(index) for index in indices]

    def _prompt(self, name: str | None) -> Prompt:
        default = self._sentence.default_prompt_name
        if name is None:
            name = default
        if name is None or (name == "" and default is not None):
            return NO_PROMPT
        try:
            return self._prompts[name]
        except KeyError:
            known = ", ".join(sorted(self._sentence.prompts)) or "none"
            raise Unprocessable(f"unknown prompt_name; this model names: {known}") from None

    def _length(self, prompt: str) -> int:
        """Tokens of a prompt, less a special one at its end, as sentence-transformers counts."""
        special = self._whole.encode(prompt).special_tokens_mask if prompt else []
        return len(special) - bool(special and special[-1])

    def _read(self, name: str, given: Input, prompt: str) -> tuple[Text, bool]:
        """The text with its prompt, and whether special tokens are yet to be put around it.

        Ids are decoded, and encoded again as text-embeddings-inference does: with their own
        special tokens, or after a prompt with the tokenizer's.
        """
        if not isinstance(given, TokenIds):
            return _with_prompt(prompt, given), True
        text = self.decode(name, given, skip_special_tokens=bool(prompt))
        self._check_characters(name, text)
        return prompt + text, bool(prompt)

    def _excerpts(
        self, texts: Sequence[tuple[Text, bool]], options: Options, limit: int
    ) -> list[Excerpt]:
        if options.truncate:
            cut = self._cutter(options.direction, limit)
            return [cut.encode(text, special_tokens=special) for text, special in texts]
        if all(special for _, special in texts):
            whole = self._whole.encode_batch([text for text, _ in texts])
        else:
            encode = self._whole.encode
            whole = [encode(text, add_special_tokens=special) for text, special in texts]
        return [Excerpt(encoding) for encoding in whole]

    def _check_characters(self, name: str, text: Input) -> None:
        count = characters([text])
        if count > self.limits.max_characters:
            raise InputTooLong(
                f"{name} has {count} characters; at most "
                f"{self.limits.max_characters} are taken, whatever `truncate` says"
            )

    def _cutter(self, direction: Direction, max_tokens: int) -> Cutter:
        with self._lock:
            if (direction, max_tokens) not in self._cutters:
                cutter = Cutter(self._whole, max_tokens, direction)
                self._cutters[direction, max_tokens] = cutter
            return self._cutters[direction, max_tokens]


def _with_prompt(prompt: str, text: Text) -> Text:
    return prompt + text if isinstance(text, str) else (prompt + text[0], text[1])


def _tokenized(excerpt: Excerpt, prompt: Prompt, *, cut_left: bool) -> TokenizedText:
    encoding = excerpt.encoding
    offsets = excerpt.offsets
    special = encoding.special_tokens_mask
    prompt_tokens = 0
    if prompt.text:
        offsets, prompt_tokens = _without_prompt(encoding, offsets, len(prompt.text))
        if not cut_left:
            prompt_tokens = prompt.tokens
        special = [1] * prompt_tokens + special[prompt_tokens:]
    return TokenizedText(
        tokens=encoding.tokens,
        input_ids=np.array(encoding.ids, np.int64),
        segment_ids=np.array(encoding.type_ids, np.int64),
        offsets=offsets,
        truncated=excerpt.truncated,
        prompt_tokens=prompt_tokens,
        special_tokens_mask=special,
    )


def _without_prompt(
    encoding: Encoding, offsets: Sequence[Offset], prompt_length: int
) -> tuple[list[Offset], int]:
    """Offsets in the caller's string, and the number of tokens up to the prompt's last."""
    found, prompt_tokens = [], 0
    for index, (start, end) in enumerate(offsets):
        if encoding.sequence_ids[index] == 0:
            if end <= prompt_length:
                prompt_tokens = index + 1
            found.append((max(start - prompt_length, 0), max(end - prompt_length, 0)))
        else:
            found.append((start, end))
    return found, prompt_tokens
