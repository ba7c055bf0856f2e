"""Kinds of unsupported models, recognised by their `config.json`.

The names are transformers' `model_type`s. Kinds that another key or the architecture's name reveals
are listed only if they are common.
"""

from __future__ import annotations

from collections.abc import Mapping

VISION = "a vision model of a kind that is not served"
AUDIO = "an audio model, not a text encoder"
MULTIMODAL = "a model of text and images, not a text encoder"
VARIABLE = "a model whose pictures differ in their numbers of patches (NaFlex), which is not served"
ENCODER_DECODER = "an encoder–decoder of a kind that is not served"
DECODER = "a decoder-only language model, which is not served"
KINDS: Mapping[str, str] = {
    "siglip2": VARIABLE,
    "align": MULTIMODAL,
    "blip": MULTIMODAL,
    "blip-2": MULTIMODAL,
    "layoutlm": MULTIMODAL,
    "layoutlmv3": MULTIMODAL,
    "llava": MULTIMODAL,
    "qwen2_vl": MULTIMODAL,
    "qwen2_5_vl": MULTIMODAL,
    "vilt": MULTIMODAL,
    "visual_bert": MULTIMODAL,
    "beit": VISION,
    "convnext": VISION,
    "detr": VISION,
    "resnet": VISION,
    "segformer": VISION,
    "swin": VISION,
    "whisper": AUDIO,
    "clap": AUDIO,
    "hubert": AUDIO,
    "speech_to_text": AUDIO,
    "speecht5": AUDIO,
    "wav2vec2": AUDIO,
    "wav2vec2-bert": AUDIO,
    "wavlm": AUDIO,
    "longt5": ENCODER_DECODER,
    "pegasus": ENCODER_DECODER,
    "encoder-decoder": ENCODER_DECODER,
    "gpt2": DECODER,
    "gpt_neo": DECODER,
    "gpt_neox": DECODER,
    "gptj": DECODER,
    "openai-gpt": DECODER,
    "bloom": DECODER,
    "falcon": DECODER,
    "gemma": DECODER,
    "gemma2": DECODER,
    "mamba": DECODER,
    "mixtral": DECODER,
    "opt": DECODER,
    "phi": DECODER,
    "phi3": DECODER,
}
_IMAGES = {"vision_config", "image_size", "patch_size", "pretrained_cfg"}
_SOUNDS = {"audio_config", "num_mel_bins", "sampling_rate"}


def kind_of(config: Mapping[str, object]) -> str | None:
    """Return the kind of a model; None if it is unknown.

    Args:
        config: the content of a `config.json` whose `model_type` is not supported.

    """
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
