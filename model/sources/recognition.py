"""Recognition of folders that are not supported checkpoints, before anything is loaded.

It reads the listing, `config.json`, sentence-transformers' files, and the heads of files: the text
of a Git LFS pointer (https://github.com/git-lfs/git-lfs/blob/main/docs/spec.md) and the header of a
safetensors file. Pickles are never opened here. Without torch.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path

from model.config.encoder import EncoderConfig
from model.errors import CheckpointError, ConfigError, shortened
from model.families.registry import (
    FAMILIES,
    parse_config,
    parse_decoder_config,
    read_config,
    unsupported,
)
from model.images.processing import read_processing
from model.sources.files import (
    CONFIG,
    DESCRIPTIONS,
    FORMATS,
    HYBRID_HEADS,
    PICKLE,
    TOKENIZERS,
    WEIGHTS,
    encoder_fields,
    encoder_place,
    is_pickle,
    is_static,
    listed_modules,
    listing,
    pickled_files,
    reads_pictures,
    transformer_folder,
    weight_files,
)
from model.sources.headers import FULL, check_weights
from model.sources.overlay import as_folders
from model.sources.sentence import read_sentence

VISION = "a vision model of a kind that is not served"
AUDIO = "an audio model, not a text encoder"
MULTIMODAL = "a model of text and images, not a text encoder"
VARIABLE = "a model whose pictures differ in their numbers of patches (NaFlex), which is not served"
ENCODER_DECODER = "an encoder–decoder of a kind that is not served"
DECODER = "a decoder-only language model, which is not served"
KINDS: Mapping[str, str] = {
    name: kind
    for kind, names in (
        (VARIABLE, "siglip2"),
        (
            MULTIMODAL,
            "align blip blip-2 layoutlm layoutlmv3 llava qwen2_vl qwen2_5_vl vilt visual_bert",
        ),
        (VISION, "beit convnext detr resnet segformer swin"),
        (AUDIO, "whisper clap hubert speech_to_text speecht5 wav2vec2 wav2vec2-bert wavlm"),
        (ENCODER_DECODER, "longt5 pegasus encoder-decoder"),
        (
            DECODER,
            "gpt2 gpt_neo gpt_neox gptj openai-gpt bloom falcon gemma gemma2 mamba mixtral opt phi "
            "phi3",
        ),
    )
    for name in names.split()
}
"""Kind of a model by its `model_type`."""
_IMAGES = {"vision_config", "image_size", "patch_size", "pretrained_cfg"}
_SOUNDS = {"audio_config", "num_mel_bins", "sampling_rate"}


def kind_of(config: Mapping[str, object]) -> str | None:
    """Return the kind of a model; None if it is unknown."""
    keys = config.keys()
    names = config.get("architectures")
    architecture = str(names[0]) if isinstance(names, list) and names else ""
    signs = {
        MULTIMODAL: {"vision_config", "text_config"} <= keys,
        VISION: bool(keys & _IMAGES),
        AUDIO: bool(keys & _SOUNDS),
        ENCODER_DECODER: config.get("is_encoder_decoder") is True,
        DECODER: architecture.endswith(("ForCausalLM", "LMHeadModel")),
    }
    listed = KINDS.get(str(config.get("model_type")))
    return listed or next((kind for kind, sign in signs.items() if sign), None)


_POINTER = b"version https://git-lfs"
_ADAPTER = "adapter_config.json"
_TRAINING = re.compile(r"(^|/)(training_args|optimizer|scheduler|scaler|rng_state)[^/]*$")
_PICKLES = (
    "pickled weights alone ({}), which are not read, as to open them can run code: convert them to "
    "safetensors once, by AutoModel.from_pretrained(…).save_pretrained(…)"
)
_OTHER_WEIGHTS = (
    (re.compile(r"(?<!openvino_model)\.(bin|pt|pth|ckpt|pkl)$"), _PICKLES),
    (
        re.compile(r"(\.h5|\.msgpack|\.ot|\.ckpt\.index|/saved_model\.pb)$"),
        "weights of TensorFlow, Flax or Rust alone ({}), which are not read: name a checkpoint "
        "with model.safetensors",
    ),
    (
        re.compile(r"\.gguf$"),
        "GGUF files alone ({}), which are not read: name the checkpoint that they were made from",
    ),
    (
        re.compile(r"\.onnx$"),
        "ONNX graphs alone ({}), which are not served: name the checkpoint that they were made "
        "from, with config.json, tokenizer.json, and model.safetensors or pytorch_model.bin",
    ),
    (
        re.compile(r"openvino_model\.xml$"),
        "an OpenVINO export alone ({}), which is not served: name the checkpoint that it was made "
        "from",
    ),
    (
        re.compile(r"\.safetensors$"),
        "{}, and neither model.safetensors nor model.safetensors.index.json: give the weights one "
        "of these names",
    ),
)
"""Patterns of files with weights, and the error message if there are only such files."""
_NO_CHECKPOINT = "holds no checkpoint: there is no "


def check_recognised(folder: Path, *, pickles: bool = True) -> None:
    """Raise an error that describes a folder unless it is a supported checkpoint.

    Raises:
        ConfigError: it is another kind of model, or not a model.
        CheckpointError: its files are of an unsupported kind.

    """
    names = list(listing(folder))
    _check_pulled(folder, filter(_holds_files, names))
    check_described(folder, names, str(folder), pickles=pickles)
    if not is_static(folder):
        with as_folders(folder) as parts:
            for own in parts.values() or [folder]:
                _check_files(own, pickles=pickles)


def _check_files(folder: Path, *, pickles: bool) -> None:
    """Raise an error for files of one encoder that are missing or damaged."""
    home = transformer_folder(folder)
    if reads_pictures(folder):
        read_processing(home)
    elif not any((home / name).is_file() for name in TOKENIZERS):
        raise CheckpointError(f"{home} holds no tokenizer: there is no {TOKENIZERS[0]}")
    files = weight_files(home, pickles=pickles)
    pickled = pickled_files(folder)
    _check_pulled(folder, (path.relative_to(folder).as_posix() for path in pickled))
    if not is_pickle(files[0]):
        check_weights(folder, files, read_config(home))


def _check_pulled(folder: Path, names: Iterable[str]) -> None:
    if pointers := [name for name in names if _is_pointer(folder / name)]:
        raise CheckpointError(
            f"{folder} holds Git LFS pointers in place of files ({shortened(pointers)}): "
            "run `git lfs pull` there"
        )


def check_described(
    folder: Path, names: Collection[str], source: str, *, pickles: bool = True
) -> None:
    """Raise an error for an unsupported checkpoint, by its descriptions and file names.

    `names` are all files of the checkpoint, of which the folder may lack the large ones; `source`
    names it in error messages.
    """
    with as_folders(folder) as parts:
        for own in parts.values() or [folder]:
            _check_encoder(own, names, source, pickles=pickles)


def _check_encoder(folder: Path, names: Collection[str], source: str, *, pickles: bool) -> None:
    """Raise an error for an unsupported checkpoint of one encoder; see `check_described`."""
    encoder = encoder_place(folder)
    if is_static(folder):
        for name in (TOKENIZERS[0], WEIGHTS):
            if encoder + name not in names:
                raise CheckpointError(f"{source}: StaticEmbedding has no {encoder}{name}")
        return
    if {_ADAPTER, encoder + _ADAPTER} & set(names):
        raise CheckpointError(
            f"{source} is a LoRA or other PEFT adapter ({_ADAPTER}), which changes another model: "
            "merge it into that one by merge_and_unload(), and name the folder where you save it"
        )
    if encoder + CONFIG not in names:
        raise ConfigError(f"{source} {_without_config(folder, names)}")
    encoder_config = _checked_config(encoder_fields(folder), source)
    formats = FORMATS if pickles else FORMATS[:1]
    if not {encoder + name for pair in formats for name in pair} & set(names):
        raise CheckpointError(f"{source} {_without_weights(names)}")
    if not pickles:
        _check_modules(folder, names, source)
        if heads := [name for name in HYBRID_HEADS if name in names]:
            raise CheckpointError(f"{source} has {_PICKLES.format(heads[0])}")
    size, longest = encoder_config.hidden_size, encoder_config.max_position_embeddings
    read_sentence(folder, longest, size)


def _check_modules(folder: Path, names: Collection[str], source: str) -> None:
    """Raise an error if a module has pickled weights alone."""
    for item in listed_modules(folder) or ():
        pickle = item.place + PICKLE
        if item.place and item.place + WEIGHTS not in names and pickle in names:
            raise CheckpointError(f"{source}: {item.name} has {_PICKLES.format(pickle)}")


def _checked_config(config: Mapping[str, object], source: str) -> EncoderConfig:
    if str(config.get("model_type")) not in FAMILIES:
        kind_of_model = kind_of(config)
        reason = unsupported(config)
        raise ConfigError(
            f"{source} is {kind_of_model}: {reason}" if kind_of_model else f"{source}: {reason}"
        )
    quantised = config.get("quantization_config")
    if quantised:
        method = quantised.get("quant_method") if isinstance(quantised, dict) else quantised
        raise CheckpointError(
            f"{source} holds quantised weights (quantization_config: {method}), which are not "
            f"read: {FULL}; export --precision int8 quantises it here"
        )
    try:
        parse_decoder_config(config)
        return parse_config(config)
    except ConfigError as error:
        raise ConfigError(f"{source}: {error}") from None


def _without_config(folder: Path, names: Collection[str]) -> str:
    """Return the error message for a folder without a `config.json` in the right place."""
    if "manifest.json" in names and "encoder.onnx" in names:
        return "is an exported artifact, not a checkpoint: give it to --artifact"
    if "model_index.json" in names:
        return "is a diffusion pipeline (model_index.json), not a text encoder"
    kinds = [item.name for item in listed_modules(folder) or ()]
    if kinds and not kinds[0].endswith("Transformer"):
        return f"begins with the module {kinds[0]} (modules.json), not with a Transformer"
    loose = [name for name in names if name.endswith((".gguf", ".onnx"))]
    return _without_weights(loose) if loose else f"{_NO_CHECKPOINT}{CONFIG}"


def _without_weights(names: Collection[str]) -> str:
    """Return the error message for a folder without safetensors in the right place."""
    names = [name for name in names if not _TRAINING.search(name)]
    for pattern, message in _OTHER_WEIGHTS:
        if matches := sorted(name for name in names if pattern.search(name)):
            return f"holds {message.format(shortened(matches))}"
    return f"{_NO_CHECKPOINT}{WEIGHTS}"


def _holds_files(name: str) -> bool:
    own = name.rpartition("/")[2]
    return own in DESCRIPTIONS or own.endswith(".safetensors")


def _is_pointer(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(len(_POINTER)) == _POINTER
