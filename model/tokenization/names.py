"""Names of tokenizers and models in transformers 5."""

from __future__ import annotations

from collections.abc import Mapping

AS_STORED = "TokenizersBackend"
"""Class of a tokenizer that consists of its tokenizer.json."""
BACKENDS = {"BloomTokenizer", "PreTrainedTokenizer", "PythonBackend", AS_STORED}
"""Names of that class, without a final "Fast"."""

NOT_BUILT = {
    "AutoTokenizer", "BarthezTokenizer", "BartphoTokenizer", "BasicTokenizer",
    "BertGenerationTokenizer", "BertJapaneseTokenizer", "BertweetTokenizer",
    "BigBirdTokenizer", "BioGptTokenizer", "BlenderbotSmallTokenizer", "BlenderbotTokenizer",
    "ByT5Tokenizer", "CLIPTokenizer", "CTRLTokenizer", "CanineTokenizer", "CharacterTokenizer",
    "ClvpTokenizer", "CodeGenTokenizer", "CodeLlamaTokenizer", "CohereTokenizer",
    "ConvBertTokenizer", "CpmAntTokenizer", "CpmTokenizer", "DPRContextEncoderTokenizer",
    "DPRQuestionEncoderTokenizer", "DPRReaderTokenizer", "DebertaTokenizer", "DiaTokenizer",
    "EsmTokenizer", "EsmcTokenizer", "FNetTokenizer", "FSMTTokenizer",
    "FastSpeech2ConformerTokenizer", "FlaubertTokenizer", "FunnelTokenizer", "GPT2Tokenizer",
    "GPTNeoXJapaneseTokenizer", "GPTNeoXTokenizer", "GPTSw3Tokenizer", "HerbertTokenizer",
    "LasrTokenizer", "LayoutLMv2Tokenizer", "LayoutLMv3Tokenizer", "LayoutXLMTokenizer",
    "LlamaTokenizer", "LukeTokenizer",
    "MLukeTokenizer", "MarkupLMTokenizer", "MecabTokenizer",
    "MgpstrTokenizer", "MyT5Tokenizer", "NllbTokenizer", "NougatTokenizer",
    "OpenAIGPTTokenizer", "PLBartTokenizer", "ParakeetTokenizer", "PegasusTokenizer",
    "PerceiverTokenizer", "PhobertTokenizer", "Pop2PianoTokenizer", "ProphetNetTokenizer",
    "Qwen3_5Tokenizer", "RagTokenizer", "ReformerTokenizer", "RemBertTokenizer",
    "RoCBertTokenizer", "RoFormerTokenizer", "SeamlessM4TTokenizer", "Siglip2Tokenizer",
    "SiglipTokenizer", "Speech2TextTokenizer", "SpeechT5Tokenizer", "SplinterTokenizer",
    "TapasTokenizer", "Tipsv2Tokenizer", "UdopTokenizer", "VideoPrismTokenizer",
    "VitsTokenizer", "Wav2Vec2CTCTokenizer", "Wav2Vec2PhonemeCTCTokenizer", "WhisperTokenizer",
    "WordpieceTokenizer", "XGLMTokenizer", "XLMTokenizer", "XLNetTokenizer"
}  # fmt: skip
"""Names, without a final "Fast", of classes that build their tokenizers in other ways."""

MODEL_TYPES: Mapping[str, str] = {
    model_type: name
    for name, model_types in {
        AS_STORED: ["modernbert", "modernbert-decoder", "nystromformer", "xlm-roberta-xl"],
        "AlbertTokenizer": ["albert", "yoso"],
        "BertTokenizer": [
            "bert",
            "convbert",
            "distilbert",
            "electra",
            "ernie",
            "layoutlm",
            "megatron-bert",
            "nezha",
            "nomic_bert",
            "realm",
            "retribert",
            "squeezebert",
        ],
        "CamembertTokenizer": ["camembert"],
        "DebertaTokenizer": ["deberta"],
        "DebertaV2Tokenizer": ["deberta-v2"],
        "GemmaTokenizer": [
            "gemma",
            "gemma2",
            "gemma3",
            "gemma3_text",
            "gemma3n",
            "gemma3n_text",
            "t5gemma",
        ],
        "LEDTokenizer": ["led"],
        "M2M100Tokenizer": ["m2m_100"],
        "MBart50Tokenizer": ["mbart50"],
        "MBartTokenizer": ["mbart"],
        "MarianTokenizer": ["marian"],
        "LxmertTokenizer": ["lxmert"],
        "MPNetTokenizer": ["mpnet"],
        "MobileBertTokenizer": ["mobilebert"],
        "MvpTokenizer": ["mvp"],
        "Qwen2Tokenizer": ["qwen2", "qwen2_moe", "qwen3", "qwen3_moe"],
        "RobertaTokenizer": [
            "bart",
            "data2vec-text",
            "ibert",
            "lilt",
            "longformer",
            "mra",
            "roberta",
            "roberta-prelayernorm",
        ],
        "T5Tokenizer": ["mt5", "t5"],
        "XLMRobertaTokenizer": ["gte", "jina_embeddings_v3", "xlm-roberta", "xmod"],
    }.items()
    for model_type in model_types
}
"""Tokenizer class by `model_type`; other types use the class that the files name."""

OVERRULING = {"camembertv2-base", "modernbert", "modernbert-decoder", "qwen2"}
"""Model types, and one model's name, whose class overrides the class in the files."""
