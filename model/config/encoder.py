"""The encoder's configuration, independent of the checkpoint's family."""

from __future__ import annotations

from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, NonNegativeInt, model_validator

ScoreName = Literal["scaled_dot_product", "additive", "bilinear", "cosine"]
NormalizerName = Literal["softmax", "sparsemax"]
NormName = Literal["layer_norm", "rms_norm"]
ActivationName = Literal[
    "gelu",
    "gelu_fast",
    "gelu_new",
    "gelu_python",
    "gelu_pytorch_tanh",
    "quick_gelu",
    "relu",
    "silu",
    "swish",
    "tanh",
]


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class EmbeddingLayout(_Part):
    """How token ids become the first hidden state."""

    size: int | None = Field(gt=0, default=None)
    """Features of a word's embedding; those of the encoder when None."""
    positions: Literal["table", "table_after_padding", "none"] = "table"
    """`table_after_padding`: a text's positions start after the padding token's id, and a padding
    token within a text has that id as its position."""
    projection: Literal["none", "before_norm", "after_norm"] = "none"
    """The linear map from an embedding's size to the encoder's, and its place."""
    projection_bias: bool = True
    norm: bool = True
    scale: float = 1.0
    """What a word's embedding is multiplied by."""


class LogBuckets(_Part):
    """Distances of a query from a key, put into buckets that widen with the distance."""

    kind: Literal["t5", "t5_causal", "deberta", "exact"]
    """`t5_causal`: those of T5's decoder, where no key is after the query. `exact`: a DeBERTa's
    without buckets, each distance up to the largest has one of its own."""
    count: int = Field(gt=0)
    """Buckets of both directions with `t5`, of one with the others."""
    max_distance: int = Field(gt=0)
    """The distance from which on all share a bucket."""


class AttentionLayout(_Part):
    """What a layer's attention has beside its projections, score and normalizer."""

    head_size: int | None = Field(gt=0, default=None)
    """Features of a head's queries, keys and values; hidden size / heads when None."""
    num_key_value_heads: int | None = Field(gt=0, default=None)
    """Heads that keys and values are projected to, each shared by as many query heads (Ainslie et
    al. 2023, https://arxiv.org/abs/2305.13245); as many as query heads when None."""
    bias: bool = True
    """Of the query, key and value projections."""
    output_bias: bool = True
    query_scale: float = 1.0
    """What queries are multiplied by, beside the score's own 1/√p."""
    query_key_norm: bool = False
    """Whether each head's queries and keys are normalised (RMS) before the score."""
    causal: bool = False
    """Whether a token looks at none after it."""
    windows: tuple[NonNegativeInt | None, ...] = ()
    """The largest distance at which a token looks, a layer; None for any. Empty: any in all."""
    rotary_bases: tuple[float, ...] = ()
    """The base of the rotary positions of each layer (Su et al. 2021,
    https://arxiv.org/abs/2104.09864); empty without."""
    bias_buckets: LogBuckets | None = None
    """Of a learned bias of each head, shared by all layers (Raffel et al. 2020, section 2.1,
    https://arxiv.org/abs/1910.10683)."""
    disentangled: tuple[Literal["c2p", "p2c"], ...] = ()
    """Scores of content with relative position (He et al. 2021, eq. 4,
    https://arxiv.org/abs/2006.03654)."""
    position_buckets: LogBuckets | None = None
    """Of the relative positions that `disentangled` scores."""
    position_norm: bool = False
    """Whether the embeddings of relative positions are normalised."""
    share_position_projections: bool = True
    """Whether relative positions go through the content's query and key projections."""


class LayerLayout(_Part):
    """How the parts of a layer stand to each other."""

    order: Literal["post_norm", "pre_norm", "sandwich_norm"] = "post_norm"
    """A norm after each residual sum; before each part, and after the last layer; or both before
    and after each part, and after the last layer."""
    norm: NormName = "layer_norm"
    norm_bias: bool = True
    first_attention_norm: bool = True
    """Whether the first layer's attention has a norm before it, with `pre_norm`."""
    gated: bool = False
    """Whether the feed-forward is gated (Shazeer 2020, https://arxiv.org/abs/2002.05202)."""
    feed_forward_bias: bool = True
    groups: int | None = Field(gt=0, default=None)
    """Layers with parameters of their own, each repeated; all layers when None (Lan et al. 2020,
    https://arxiv.org/abs/1909.11942)."""


class EncoderConfig(BaseModel):
    """Shapes and functions of an encoder.

    `model.families` reads it from a checkpoint's `config.json`. `attention_score` and
    `attention_normalizer` are Headscope's own keys, and choose how attention is computed.
    """

    model_config = ConfigDict(frozen=True, extra="ignore")

    model_type: str
    """Name of the checkpoint's family."""
    vocab_size: int = Field(gt=0)
    hidden_size: int = Field(gt=0)
    num_hidden_layers: int = Field(gt=0)
    num_attention_heads: int = Field(gt=0)
    intermediate_size: int = Field(gt=0)
    hidden_act: ActivationName
    max_position_embeddings: int = Field(gt=0)
    """The most tokens of one text."""
    type_vocab_size: int = Field(ge=0)
    """Segments; 0 where the encoder does not tell them apart."""
    reads_segments: bool = True
    """Whether a token's segment counts; else all are of the first, as transformers has it where the
    tokenizer's `model_input_names` lack `token_type_ids`."""
    layer_norm_eps: float = Field(gt=0)
    pad_token_id: int = Field(ge=0)
    attention_score: ScoreName = "scaled_dot_product"
    attention_normalizer: NormalizerName = "softmax"
    embeddings: EmbeddingLayout = EmbeddingLayout()
    attention: AttentionLayout = AttentionLayout()
    layer: LayerLayout = LayerLayout()

    @model_validator(mode="after")
    def _sizes_fit(self) -> Self:
        heads, groups = self.num_attention_heads, self.layer_groups
        if not heads:  # of an `UnknownEncoder` alone
            return self
        if self.attention.head_size is None and self.hidden_size % heads:
            raise ValueError(
                f"hidden_size {self.hidden_size} is not a multiple of num_attention_heads {heads}"
            )
        if heads % self.num_key_value_heads:
            raise ValueError(
                f"num_attention_heads {heads} is not a multiple of "
                f"num_key_value_heads {self.num_key_value_heads}"
            )
        if self.attention.rotary_bases and self.head_size % 2:
            raise ValueError(f"rotary positions need an even head size, not {self.head_size}")
        if groups > self.num_hidden_layers:
            raise ValueError(f"{groups} groups are more than {self.num_hidden_layers} layers")
        for of_layers in (self.attention.windows, self.attention.rotary_bases):
            if of_layers and len(of_layers) != self.num_hidden_layers:
                raise ValueError(
                    f"layer_types has {len(of_layers)} entries for {self.num_hidden_layers} layers"
                )
        return self

    @property
    def head_size(self) -> int:
        """Features of one head."""
        return self.attention.head_size or self.hidden_size // self.num_attention_heads

    @property
    def num_key_value_heads(self) -> int:
        """Heads that keys and values are projected to."""
        return self.attention.num_key_value_heads or self.num_attention_heads

    @property
    def layer_groups(self) -> int:
        """Layers with parameters of their own."""
        return self.layer.groups or self.num_hidden_layers

    def layer_group(self, layer: int) -> int:
        """Number of the group that layer 0 … L−1 has its parameters of."""
        return int(layer / (self.num_hidden_layers / self.layer_groups))  # as ALBERT rounds

    @property
    def segments(self) -> int:
        """Segments that tokens may have; 0 where a segment makes no difference."""
        return self.type_vocab_size if self.reads_segments else 0

    def knows_segment(self, segment: int) -> bool:
        """Whether a token may have that segment; any where segments make no difference."""
        return not self.segments or segment < self.segments


class UnknownEncoder(EncoderConfig):
    """Config of a foreign graph whose family is not known; 0 and None stand for what nothing says.

    Its one hidden state, the last, has number 0; that of a graph with attention weights has the
    number of layers that these are of.
    """

    num_hidden_layers: int = 0
    num_attention_heads: int = 0
    intermediate_size: int = 0
    hidden_act: Any = None
    layer_norm_eps: Any = None
