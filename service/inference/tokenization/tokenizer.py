"""Tokenisation of texts within limits. Stateless, and safe to use from several threads."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import repeat
from operator import attrgetter
from pathlib import Path
from typing import Any
from weakref import WeakValueDictionary

import numpy as np
from tokenizers import Encoding, Tokenizer
from tokenizers.models import WordPiece

from model.artifact.integrity import reading, sha256_of
from model.artifact.sentence import SentenceConfig
from model.tokenization.vocabulary import BEYOND, model_ids, read_tokenizer, unknown_ids
from service.engines.contract import Ids
from service.errors import InputTooLong, Unprocessable
from service.inference.tokenization.inputs import TextInput, TextOrPair, TokenIds, size_of, sizes_of
from service.inference.tokenization.text import (
    NO_PROMPT,
    ArrayText,
    Cut,
    Prompt,
    Text,
    TextTokens,
    places_of,
)
from service.inference.tokenization.truncation import (
    CHARACTERS_PER_TOKEN,
    Direction,
    Truncator,
    cut,
    encode,
    kept_tokens,
)

WITHIN_LOCK = 512
"""Maximum number of characters of a single text that is tokenised without giving up Python's lock:
to get the lock back may take longer than to tokenise the text."""


@dataclass(frozen=True)
class Limits:
    """Limits of an input, and of all inputs of a request."""

    max_tokens: int
    """Maximum number of tokens of an input, special tokens included."""
    max_characters: int
    """Maximum number of characters, of both texts of a pair together, or bytes of a picture's file.
    A longer text is rejected before tokenisation, unless it is to be truncated."""
    max_inputs: int = sys.maxsize
    """Maximum number of inputs of a request."""
    max_request_characters: int = sys.maxsize
    """Maximum number of characters of all inputs of a request together."""
    max_target_tokens: int = sys.maxsize
    """Maximum number of tokens of a decoder's target."""

    def too_many(self, count: int) -> Unprocessable:
        """Return the error of a request with too many inputs."""
        return Unprocessable(f"{count} inputs in one request; at most {self.max_inputs} are taken")


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
    targets: bool = False
    """Whether the inputs are a decoder's targets. Their ids are the labels that transformers
    returns for a `text_target`, and they have no prompt."""
    windows: bool = False
    """Whether a longer text is kept whole, to be encoded in windows."""
    ids_as_given: bool = False
    """Whether token ids are used unchanged and without a prompt. Otherwise they are decoded and
    encoded again, as text-embeddings-inference does, and rejected if that changes them."""

    places: Sequence[int] = ()
    """Index of each input in the request, if the inputs are a part of it; empty for all."""

    @property
    def unprompted(self) -> bool:
        """Whether neither a prompt nor a task is named; an empty name requests no prompt."""
        return self.prompt_name is None and self.task is None

    def name(self, index: int) -> str:
        """Return the name of an input in error messages."""
        return self.naming.format(self.places[index] if self.places else index)


class FileTokenizer:
    """Tokenizer of one file of an artifact, for inputs or for targets, with the model's ids."""

    def __init__(self, path: Path) -> None:
        """Read `tokenizer.json` or `target_tokenizer.json`."""
        with reading(path):
            self.whole: Tokenizer = read_tokenizer(path)
        beyond = self.whole.token_to_id(BEYOND)
        self.size: int = self.whole.get_vocab_size() if beyond is None else beyond
        """Number of ids that the model knows, which are 0 … size − 1."""
        self.unknown_ids = unknown_ids(self.whole)
        self.ids: Callable[[Encoding], list[int]] = (
            attrgetter("ids") if beyond is None else partial(model_ids, self.whole)
        )
        """Function that returns the model's input ids of a text."""
        added = self.whole.get_added_tokens_decoder().items()
        self.special_ids = frozenset(index for index, token in added if token.special)
        encoding = self.whole.encode("a")
        own = [index for index, mask in enumerate(encoding.special_tokens_mask) if not mask]
        first, last = (own[0], own[-1] + 1) if own else (1, 1)
        ids, segments = encoding.ids, encoding.type_ids
        self.opening, self.closing = ids[:first], ids[last:]
        """Ids of the special tokens before and after a text."""
        self.segments = segments[:first], segments[first] if own else 0, segments[last:]
        """Segments of these tokens, and between them the segment of the text itself."""


_tokenizers: WeakValueDictionary[str, FileTokenizer] = WeakValueDictionary()
"""Tokenizers in use, by the SHA-256 of their file."""


def shared_tokenizer(path: Path) -> FileTokenizer:
    """Return the tokenizer of a file, which all files of the same content share while it is used.

    Reading a file holds Python's lock and so stops the event loop; versions of a model usually have
    the same tokenizer.
    """
    with reading(path):
        content = sha256_of(path)
    if shared := _tokenizers.get(content):
        return shared
    tokenizer = FileTokenizer(path)
    with reading(path):
        if sha256_of(path) == content:  # not changed while it was read
            _tokenizers[content] = tokenizer
    return tokenizer


class TextTokenizer:
    """Tokenizers of an artifact, with the checkpoint's prompts and the service's limits."""

    def __init__(
        self,
        path: Path,
        sentence: SentenceConfig,
        limits: Limits,
        target: Path | None = None,
        segments: int = 0,
    ) -> None:
        """Read `tokenizer.json`, and `target_tokenizer.json` unless targets share the former.

        `segments` is the number of segments that the model distinguishes; 0 if it ignores them.
        """
        self.limits, self._sentence, self._segments = limits, sentence, segments
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
        self._tasks = {task: number for number, task in enumerate(sentence.tasks, 1)}
        self._completes = {sentence.end_token_id, sentence.pad_token_id} != {None}
        names = [None, "", *sentence.prompts] if sentence.prompts else [None]
        self._prompts = {name: self._read_prompt(name) for name in names}
        templates = [each.filled("", "") for each in sentence.pair_templates.values()]
        self.template_characters = max(map(len, templates), default=0)
        """Maximum number of characters that a chat template adds to a pair."""
        of_templates = [len(whole.encode(text)) for text in templates]
        padded = 0 if sentence.pad_token_id is None else sentence.max_length
        self.template_tokens = max([*of_templates, padded])
        """Maximum number of tokens that a chat template, or padding, adds to an input."""
        has_prompts = bool(self._tasks) or any(sentence.prompts.values())
        has_default = sentence.default_prompt_name is not None or bool(templates)
        self.expects_prompt = has_prompts and not has_default
        """Whether a request without a prompt probably lacks one, as the checkpoint has some. A chat
        template has a default instruction."""

    def tokenize(self, inputs: Sequence[TextInput], options: Options, first: int = 0) -> list[Text]:
        """Tokenise inputs of a request, from the input of the index `first` on.

        Raises:
            Unprocessable: an unknown prompt or task, invalid token ids, a text without tokens, or a
                pair for a model that does not distinguish its texts.
            InputTooLong: too many characters, or too many tokens without `truncate`.

        """
        if options.targets:
            most = min(self.limit(options), self.limits.max_target_tokens)
            options, prompt = replace(options, max_tokens=most), NO_PROMPT
        else:
            prompt = self._prompt(options.prompt_name, options.task)
        kinds = {*map(type, inputs)}
        given: Any = inputs
        sizes = map(len if kinds == {str} else size_of, given)
        if (longest := max(sizes, default=0)) > self.limits.max_characters:
            self._check_sizes(inputs, options, first)
        if TokenIds in kinds or (self._sentence.pair_templates and tuple in kinds):
            numbered = enumerate(inputs, first)
            texts = [self._alone(index, given, options, prompt) for index, given in numbered]
        else:
            texts = self._read(given, longest, options, first, prompt)
        if self._segments and tuple in kinds:
            for index, text in enumerate(texts, first):
                if text.segment_ids.max() >= self._segments:
                    name = options.name(index)
                    raise Unprocessable(f"{name} is a pair; this model has one segment only")
        if self._completes and not options.targets:
            return [*map(self._complete, texts)]
        return texts

    def all_tokens(
        self, texts: Sequence[str], prompt_name: str | None, *, special_tokens: bool
    ) -> list[TextTokens]:
        """Return all tokens of each text and its prompt, without truncation."""
        prompt = self._prompt(prompt_name).text
        whole = [prompt + text for text in texts]
        encodings = self._source.whole.encode_batch(whole, add_special_tokens=special_tokens)
        name = self._source.whole.id_to_token
        return [
            TextTokens(text, encoding, self._source.ids(encoding), name)
            for text, encoding in zip(whole, encodings, strict=True)
        ]

    def decode(self, name: str, given: TokenIds, *, skip_special_tokens: bool) -> str:
        """Return the text of token ids, whose name is for error messages.

        Raises:
            Unprocessable: an id is not in the vocabulary.

        """
        size = self._source.size
        for token in given.ids:
            if not 0 <= token < size:
                raise Unprocessable(f"{name} has the token id {token}: ids are 0 … {size - 1}")
        whole = self._source.whole
        text: str = whole.decode(given.ids, skip_special_tokens=skip_special_tokens)
        return text

    def vocabulary(self, indices: Iterable[int]) -> list[str | None]:
        """Return the token of each id; None for an id without a token."""
        return [self._source.whole.id_to_token(index) for index in indices]

    def continuing(self, text: str, tokenized: Text) -> list[bool]:
        """Return for each token whether it continues the previous token's word.

        If the vocabulary marks such tokens, as WordPiece does with ##, a token continues a word if
        its name is longer or shorter than its characters in the text. Otherwise it does if there is
        no space between it and the previous character. The unknown token always begins a word.
        """
        ids, offsets = tokenized.input_ids.tolist(), tokenized.offsets
        if getattr(self._source.whole.model, "continuing_subword_prefix", None):
            lengths = [len(name or "") for name in self.vocabulary(ids)]
            found = [n != end - start for n, (start, end) in zip(lengths, offsets, strict=True)]
        else:
            found = [start > 0 and " " not in text[start - 1 : start + 1] for start, _ in offsets]
        unknown = self._source.unknown_ids
        return [one and token not in unknown for one, token in zip(found, ids, strict=True)]

    def limit(self, options: Options) -> int:
        """Return the maximum number of tokens of an input, or of each of its windows."""
        return options.max_tokens or self.limits.max_tokens

    def _read_prompt(self, name: str | None) -> Prompt:
        text = self._sentence.prompts[name] if name else ""
        special = self._source.whole.encode(text).special_tokens_mask if text else []
        # As sentence-transformers counts them: without a special token at the end
        tokens = len(special) - bool(special and special[-1])
        return Prompt(text, tokens, self._tasks.get(name or "", 0) if self._tasks else None)

    def _prompt(self, name: str | None, task: str | None = None) -> Prompt:
        """Return the prompt of a name, with the segment of a task if there is one.

        An empty name requests no prompt; None requests the task's, or without a task the default.
        """
        if task is not None and task not in self._tasks:
            why = "this model has no tasks: leave out `task`; `prompt_name` names a prompt"
            if self._tasks:
                why = f"unknown; this model has {', '.join(self._tasks)}"
            raise Unprocessable(f"task: {why}")
        if name is None:
            name = self._sentence.default_prompt_name if task is None else task
        if name not in self._prompts:
            known = ", ".join(sorted(self._sentence.prompts)) or "none"
            raise Unprocessable(f"unknown prompt_name; this model names: {known}")
        prompt = self._prompts[name]
        return prompt if task is None else replace(prompt, segment=self._tasks[task])

    def _read(
        self,
        inputs: Sequence[TextOrPair],
        longest: int,
        options: Options,
        first: int,
        prompt: Prompt,
        *,
        special: bool = True,
    ) -> list[Text]:
        """Tokenise texts after a prompt; truncate or reject texts with more tokens than the limit.

        The longest text has `longest` characters. `special` is whether to add special tokens.
        """
        limit = options.max_tokens or self.limits.max_tokens
        truncate, direction = options.truncate, options.direction
        file = self._target if options.targets else self._source
        texts = inputs
        if prefix := prompt.text:
            texts = [
                prefix + text if isinstance(text, str) else (prefix + text[0], text[1])
                for text in inputs
            ]
        if truncate and len(prefix) + longest > CHARACTERS_PER_TOKEN * limit:
            truncator = Truncator(file.whole, limit, direction)
            parts: Iterable[tuple[Encoding, Cut | None]] = [
                truncator.encode(text, options.name(index), special_tokens=special)
                for index, text in enumerate(texts, first)
            ]
        else:
            if len(texts) == 1 and isinstance(texts[0], str) and longest <= WITHIN_LOCK:
                encodings = [file.whole.encode(texts[0], add_special_tokens=special)]
            else:
                encodings = file.whole.encode_batch(texts, add_special_tokens=special)
            parts = zip(encodings, repeat(None))
            if truncate and max(map(len, encodings), default=0) > limit:
                parts = [(encoding, cut(encoding, limit, direction)) for encoding in encodings]
        whole = options.windows and self._sentence.pad_token_id is None
        read = []
        for index, (encoding, kept) in enumerate(parts):
            text = Text(encoding, file.ids(encoding), file.unknown_ids, prompt, kept)
            oversize = text.size > limit and not (whole and isinstance(inputs[index], str))
            # Also if cut: a limit below the special tokens cuts nothing
            if oversize or (
                options.max_tokens and text.truncated and all(text.special_tokens_mask)
            ):
                raise _misfit(text, limit, options, options.name(first + index))
            if not text.size:
                raise Unprocessable(f"{options.name(first + index)} has no tokens")
            read.append(text)
        return read

    def _alone(self, index: int, given: TextInput, options: Options, prompt: Prompt) -> Text:
        """Tokenise an input of a request with token ids, or of a model with a chat template.

        Ids that are decoded and encoded again have their own special tokens, or after a prompt the
        tokenizer's.
        """
        source, special, name = self._source, True, options.name(index)
        if isinstance(given, tuple) and self._sentence.pair_templates:
            return self._in_template(name, given, options)
        if isinstance(given, TokenIds):
            if options.ids_as_given:
                return self._as_given(name, given, options)
            special = bool(prompt.text)
            text = self.decode(name, given, skip_special_tokens=special)
            self._check_sizes([text], replace(options, truncate=False, windows=False), index)
            again, ids = source.ids(encode(source.whole, text, special_tokens=False)), [*given.ids]
            if again not in (ids, [token for token in ids if token not in source.special_ids]):
                raise Unprocessable(
                    f"{name}: the token ids, decoded and encoded again, are others: send the text"
                )
            given = text
        size = size_of(given)
        return self._read([given], size, options, index, prompt, special=special)[0]

    def _as_given(self, name: str, given: TokenIds, options: Options) -> Text:
        """Return a client's ids as a text with all special tokens.

        Ids with all special tokens at their beginning and end are left unchanged. Ids without any
        of these tokens get them added. Ids with some of them are rejected.
        """
        if options.prompt_name or options.task:
            raise Unprocessable(f"{name}: token ids cannot follow a prompt: send the text")
        self.decode(name, given, skip_special_tokens=False)
        source, own = self._source, [*given.ids]
        opening, closing = source.opening, source.closing
        end = len(own) - len(closing)
        if end >= len(opening) and own[: len(opening)] == opening and own[end:] == closing:
            own = own[len(opening) : end]
        elif not {*opening, *closing}.isdisjoint(own):
            raise Unprocessable(
                f"{name}: the token ids have some special tokens of the model and not all: begin "
                f"them with {opening} and end them with {closing}, or leave both out and they are "
                "added"
            )
        room = self.limit(options) - len(opening) - len(closing)
        if truncated := options.truncate and 0 < room < len(own):  # before the rest is named
            own = own[:room] if options.direction == "right" else own[-room:]
        ids = np.array([*opening, *own, *closing], np.int64)
        before, segment, after = source.segments
        text = ArrayText(
            tokens=[token or "" for token in self.vocabulary(ids.tolist())],
            input_ids=ids,
            segment_ids=np.array([*before, *[segment] * len(own), *after], np.int64),
            places=np.zeros((len(ids), 2), np.int32),
            special_tokens_mask=[*[1] * len(opening), *[0] * len(own), *[1] * len(closing)],
            unknown_ids=source.unknown_ids,
            truncated=truncated,
        )
        return self._cut(text, [len(opening) + np.arange(len(own))], options, name)

    def _in_template(self, name: str, given: tuple[str, str], options: Options) -> Text:
        """Return a query and a document in the chat template of a prompt.

        The template adds all special tokens, and its tokens count as special tokens. A token that
        begins in the query or the document and ends in the template belongs to the former. Tokens
        up to the query's last have segment 0.
        """
        source, prompt_name = self._source, options.prompt_name
        if prompt_name is None:
            prompt_name = self._sentence.default_prompt_name or ""
        template, pair = self._sentence.pair_templates[prompt_name], given
        if options.truncate:
            truncator = Truncator(source.whole, self.limit(options), options.direction)
            pair = truncator.pair_excerpt(*given, name)
        encoding = encode(source.whole, template.filled(*pair), special_tokens=False)
        offsets = places_of(encoding.offsets)
        places, special = np.zeros_like(offsets), np.ones(len(offsets), bool)
        parts, begin = list[Ids](), len(template.before)
        for whole, part in zip(given, pair, strict=True):
            spans = np.clip(offsets - begin, 0, len(part))
            own = np.flatnonzero(spans[:, 0] < spans[:, 1])
            skipped = len(whole) - len(part) if options.direction == "left" else 0
            places[own], special[own] = spans[own] + skipped, False
            parts.append(own)
            begin += len(part) + len(template.between)
        text = ArrayText(
            tokens=encoding.tokens,
            input_ids=np.array(source.ids(encoding), np.int64),
            segment_ids=(offsets[:, 0] >= len(template.before) + len(pair[0])).astype(np.int64),
            places=places,
            special_tokens_mask=special.tobytes(),
            unknown_ids=source.unknown_ids,
        )
        return self._cut(text, parts, options, name)

    def _cut(self, text: ArrayText, parts: Sequence[Ids], options: Options, name: str) -> Text:
        """Return a text within the limit; `parts` are as for `kept_tokens`."""
        limit = self.limit(options)
        kept = kept_tokens(parts, text.size, limit, options.direction)
        if kept and options.truncate:
            return text.of(kept)
        if text.size > limit:
            raise _misfit(text, limit, options, name)
        return text

    def _complete(self, text: Text) -> Text:
        """Return a text without tokens after its first end token, and padded to the full length.

        Padding tokens are special tokens that other tokens attend to. A text that is cut counts as
        truncated: its vector is the same, as later tokens cannot change the state of the end token.
        """
        end, pad = self._sentence.end_token_id, self._sentence.pad_token_id
        (ends,) = np.nonzero(text.input_ids[:-1] == end)
        if len(ends):
            text = text.in_arrays().of(slice(int(ends[0]) + 1))
        if pad is None:
            return text
        count = max(0, self._sentence.max_length - text.size)
        name = self._source.whole.id_to_token(pad) or ""
        return text.in_arrays().extended(np.full(count, pad, np.int64), [name] * count)

    def _check_sizes(self, inputs: Sequence[TextInput], options: Options, first: int) -> None:
        """Raise if an input has too many characters."""
        most = self.limits.max_characters
        for index, (given, count) in enumerate(zip(inputs, sizes_of(inputs), strict=True), first):
            any_length = options.truncate or (options.windows and isinstance(given, str))
            if count > most and (isinstance(given, TokenIds) or not any_length):
                name = options.name(index)
                hint = "" if isinstance(given, TokenIds) else " (`truncate` cuts it)"
                raise InputTooLong(f"{name} has {count} characters; at most {most} are taken{hint}")


def _misfit(text: Text, limit: int, options: Options, name: str) -> InputTooLong:
    """Return the error of a text that has, or of which special tokens take, too many tokens."""
    if options.truncate:
        return InputTooLong(f"{name}: {limit} tokens leave no room beside the special ones")
    return InputTooLong(f"{name} has {text.size} tokens; at most {limit} fit (`truncate` cuts it)")
