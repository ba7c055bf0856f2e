"""Special and added tokens that the files of a tokenizer declare."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tokenizers import AddedToken, Tokenizer

from model.tokenization.files import Settings, TokenizerFiles, read_json

Token = str | AddedToken

NAMED = (
    "bos_token",
    "eos_token",
    "unk_token",
    "sep_token",
    "pad_token",
    "cls_token",
    "mask_token",
)


@dataclass(frozen=True)
class Declared:
    """Settings and tokens in a tokenizer's files, beside its vocabulary."""

    flags: Settings
    """Settings that are not tokens."""
    named: dict[str, Token | None]
    """Tokens under the names that every tokenizer has; None if the files set them to null."""
    others: dict[str, Token]
    """Special tokens under names of the checkpoint's own."""
    extra: list[Token] | None
    """Special tokens without a name; None if the files do not list any."""
    added: dict[int, AddedToken]
    """Tokens by the ids under which they were saved."""


def read_declared(files: TokenizerFiles) -> Declared:
    """Read `tokenizer_config.json`, and the older files too if it lists no added tokens.

    Raises:
        CheckpointError: a file is damaged.

    """
    ignored = {"tokenizer_class", "init_inputs"}
    if files.stored is not None:
        ignored |= {"add_bos_token", "add_eos_token"}
    settings = {name: value for name, value in files.settings.items() if name not in ignored}
    if "additional_special_tokens" in settings and not settings.get("extra_special_tokens"):
        settings["extra_special_tokens"] = settings.pop("additional_special_tokens")
    own = {name: value for name, value in settings.items() if _is_own(name, value)}
    settings = {name: value for name, value in settings.items() if name not in own}
    own |= _take_mapping(settings)
    own = own or settings.get("model_specific_special_tokens") or {}
    if "added_tokens_decoder" in settings:
        added = {
            int(index): token if isinstance(token, AddedToken) else AddedToken(**token)
            for index, token in settings.pop("added_tokens_decoder").items()
        }
    else:
        settings |= _special_tokens_map(files, settings)
        own |= _take_mapping(settings)
        added = _older_added_tokens(files, settings)
    return _declared(_revived(settings), _revived(own), added)


def _declared(settings: Settings, own: Settings, added: dict[int, AddedToken]) -> Declared:
    named: dict[str, Token | None] = {
        name: settings.pop(name) for name in NAMED if name in settings
    }
    if "extra_special_tokens" in settings:
        extra = settings.pop("extra_special_tokens") or []
    else:
        extra = settings.pop("additional_special_tokens", None)
    if not isinstance(extra, list | None):
        raise TypeError(f"extra_special_tokens is {extra!r}, not a list of tokens")
    late = {name: value for name, value in settings.items() if _is_own(name, value)}
    flags = {name: value for name, value in settings.items() if name not in late}
    tokens = {name: token for name, token in named.items() if token is not None}
    for name, token in (*tokens.items(), *late.items(), *own.items(), *_numbered(extra)):
        if not isinstance(token, Token):
            raise TypeError(f"{name} is {token!r}, not a token")
    return Declared(flags, named, late | own, extra, added)


def _numbered(extra: list[Any] | None) -> list[tuple[str, Any]]:
    return [(f"extra_special_tokens[{index}]", token) for index, token in enumerate(extra or [])]


def _is_own(name: str, value: object) -> bool:
    return name.endswith("_token") and name not in NAMED and isinstance(value, Token)


def _take_mapping(settings: Settings) -> Settings:
    """Remove named extra tokens from the settings and return them."""
    extra = settings.get("extra_special_tokens")
    return settings.pop("extra_special_tokens") if isinstance(extra, dict) else {}


def _special_tokens_map(files: TokenizerFiles, settings: Settings) -> Settings:
    fields_by_name = read_json(files.folder / "special_tokens_map.json")
    for name, value in fields_by_name.items():
        if name == "extra_special_tokens" and isinstance(value, list):
            tokens = list(settings.get(name) or [])
            for field in value:
                token = AddedToken(**field, special=True) if isinstance(field, dict) else field
                if token not in tokens:
                    tokens.append(token)
            fields_by_name[name] = tokens
        elif name != "extra_special_tokens" and isinstance(value, dict):
            fields_by_name[name] = AddedToken(**value | {"special": True})
    return fields_by_name


def _older_added_tokens(files: TokenizerFiles, settings: Settings) -> dict[int, AddedToken]:
    """Return the tokens of `added_tokens.json` and `tokenizer.json`, by id."""
    special = {str(settings[name]) for name in NAMED if settings.get(name)}
    special |= {str(token) for token in settings.get("extra_special_tokens") or []}
    added = {
        index: AddedToken(content, normalized=content not in special, special=content in special)
        for content, index in read_json(files.folder / "added_tokens.json").items()
    }
    for fields in files.stored["added_tokens"] if files.stored else []:
        token = {name: value for name, value in fields.items() if name != "id"}
        added[fields["id"]] = AddedToken(**token)
    return added


def _revived(value: Any) -> Any:
    """Return the value with its JSON objects of added tokens turned into `AddedToken`s."""
    if isinstance(value, dict):
        if value.get("__type") == "AddedToken":
            return AddedToken(**{name: field for name, field in value.items() if name != "__type"})
        return {name: _revived(field) for name, field in value.items()}
    return [_revived(item) for item in value] if isinstance(value, list) else value


def special_tokens(named: dict[str, Token | None], declared: Declared) -> dict[str, Token]:
    """Return special tokens by name, in the order in which new ones get their ids."""
    tokens = dict.fromkeys(NAMED) | named | declared.others
    return {name: token for name, token in tokens.items() if token is not None}


def add_tokens(
    tokenizer: Tokenizer,
    special: dict[str, Token],
    extra: list[Token],
    added: dict[int, AddedToken],
) -> None:
    """Make a tokenizer match the declared tokens as a whole.

    Missing tokens get the next ids: first the added ones in the order of their ids, then the
    special ones. Known tokens get the declared flags.
    """
    tokens: list[Token] = [token for _, token in sorted(added.items(), key=lambda item: item[0])]
    known = {token.content for token in tokenizer.get_added_tokens_decoder().values()}
    known |= {str(token) for token in tokens}
    for token in (*special.values(), *extra):
        if str(token) not in known and token not in tokens:
            tokens.append(token)
    names = {str(token) for token in special.values()}
    whole = [
        AddedToken(token, special=True) if isinstance(token, str) else token for token in tokens
    ]
    for token in whole:
        token.special = token.special or token.content in names
    tokenizer.add_tokens(whole)
