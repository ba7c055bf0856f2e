"""Configuration of encoders, independent of the checkpoint's family."""

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


class Part(BaseModel):
    """Part of a config: its fields do not change, and unknown ones are errors."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class PatchLayout(Part):
    """Layout of a picture's tokens: special tokens, then the patches of a grid row by row.

    Dosovitskiy et al. 2021, https://arxiv.org/abs/2010.11929. Token id 0 is a patch, id i the i-th
    special token.
    """

    size: int = Field(gt=0)
    """Edge P of a patch in pixels."""
    channels: int = Field(gt=0, default=3)
    """Number C of a pixel's values."""
    rows: int = Field(gt=0)
    """Patches from the top of the grid to its bottom."""
    columns: int = Field(gt=0)
    """Patches from the left of the grid to its right."""
    special_tokens: tuple[str, ...] = ()
    """Names of the tokens before the patches, such as `[CLS]`."""
    trained_grid: tuple[int, int] = (0, 0)
    """Rows and columns of the checkpoint's position table, interpolated for another grid."""

    @property
    def features(self) -> int:
        """Number C · P² of values of one patch."""
        return self.channels * self.size**2

    @property
    def tokens(self) -> int:
        """Number of a picture's tokens."""
        return len(self.special_tokens) + self.rows * self.columns

    @property
    def token_ids(self) -> list[int]:
        """Token ids `[S]` of each picture."""
        special = len(self.special_tokens)
        return [*range(1, special + 1), *[0] * (self.tokens - special)]


class EmbeddingLayout(Part):
    """Layout of the embeddings that make up the first hidden state."""

    size: int | None = Field(gt=0, default=None)
    """Features of a word's embedding; the encoder's hidden size when None."""
    positions: Literal["table", "table_after_padding", "none"] = "table"
    """Kind of position embeddings. With `table_after_padding` a text's positions start after the
    padding token's id, and a padding token within a text has that id as its position."""
    projection: Literal["none", "before_norm", "after_norm"] = "none"
    """Position of the linear map from the embedding's size to the encoder's, if there is one."""
    projection_bias: bool = True
    norm: bool = True
    scale: float = 1.0
    """Factor of a word's embedding."""
    patches: PatchLayout | None = None
    """Layout of pictures; None for an encoder of texts. The word table then has the bias of the
    patches' linear map in row 0, and a special token's vector in each further row."""


class LogBuckets(Part):
    """Buckets of distances between query and key, which widen with the distance."""

    kind: Literal["t5", "t5_causal", "deberta", "exact"]
    """Kind of buckets. `t5_causal`: the buckets of T5's decoder, where no key is after the query.
    `exact`: DeBERTa without buckets, where each distance up to the largest has its own."""
    count: int = Field(gt=0)
    """Number of buckets: of both directions with `t5`, else of one direction."""
    max_distance: int = Field(gt=0)
    """Distance from which on all distances share a bucket."""


class RotaryScaling(Part):
    """Scaling of rotary positions to longer texts than the first training had.

    Features that turn at least `high_rotations` times over the original length keep their
    frequency; those that turn at most `low_rotations` times have it divided by the factor; the
    others are blended.
    """

    kind: Literal["linear", "yarn", "llama3"]
    """`linear`: all frequencies are divided by the factor. `yarn`: blended linearly by the index
    of the feature (Peng et al. 2023, https://arxiv.org/abs/2309.00071). `llama3`: blended
    linearly by the number of rotations, as in Llama 3.1."""
    factor: float = Field(gt=0)
    original_length: float = Field(gt=0, default=1)
    """Tokens of the longest text of the first training."""
    low_rotations: float = 1
    high_rotations: float = 32
    whole_features: bool = True
    """Whether `yarn` rounds the bounds between the three groups to whole features."""
    attention_factor: float = 1
    """Factor of rotated queries, and of rotated keys."""


class AttentionLayout(Part):
    """Layout of a layer's attention, beside its score and normalizer."""

    head_size: int | None = Field(gt=0, default=None)
    """Features of a head's queries, keys and values; hidden size / heads when None."""
    num_key_value_heads: int | None = Field(gt=0, default=None)
    """Number of key and value heads, shared by equal groups of query heads (Ainslie et al. 2023,
    https://arxiv.org/abs/2305.13245); the number of query heads when None."""
    bias: bool = True
    """Whether the query, key and value projections have a bias."""
    output_bias: bool = True
    query_scale: float = 1.0
    """Factor of queries, beside the score's own 1/√p."""
    query_key_norm: bool = False
    """Whether queries and keys of each head are normalised (RMS) before the score."""
    causal: bool = False
    """Whether tokens only attend to themselves and to earlier tokens."""
    windows: tuple[NonNegativeInt | None, ...] = ()
    """Largest distance of an allowed key in each layer; None for no limit. Empty: no limit in any
    layer."""
    rotary_bases: tuple[float, ...] = ()
    """Base of the rotary positions of each layer (Su et al. 2021,
    https://arxiv.org/abs/2104.09864); empty without rotary positions."""
    rotary_scalings: tuple[RotaryScaling | None, ...] = ()
    """Scaling of the rotary positions of each layer; empty without scaling."""
    bias_buckets: LogBuckets | None = None
    """Buckets of a learned bias of each head (Raffel et al. 2020, section 2.1,
    https://arxiv.org/abs/1910.10683); None without such a bias."""
    bias_by_layer: bool = False
    """Whether each layer has a bias of its own, in place of one that all layers share."""
    alibi: bool = False
    """Whether each head has a bias of minus its slope times the distance, in both directions (Press
    et al. 2022, https://arxiv.org/abs/2108.12409)."""
    disentangled: tuple[Literal["c2p", "p2c"], ...] = ()
    """Terms of the score that combine content with relative positions (He et al. 2021, eq. 4,
    https://arxiv.org/abs/2006.03654)."""
    position_buckets: LogBuckets | None = None
    """Buckets of the relative positions for `disentangled`."""
    position_norm: bool = False
    """Whether the embeddings of relative positions are normalised."""
    share_position_projections: bool = True
    """Whether the content's query and key projections also project relative positions."""


class LayerLayout(Part):
    """Layout of a layer's norms and feed-forward part, and sharing of its parameters."""

    order: Literal["post_norm", "pre_norm", "sandwich_norm"] = "post_norm"
    """Position of norms: after each residual sum; before each part and after the last layer; or
    before and after each part and after the last layer."""
    norm: NormName = "layer_norm"
    norm_bias: bool = True
    first_attention_norm: bool = True
    """Whether the first layer has a norm before its attention, with `pre_norm`."""
    gated: bool = False
    """Whether the feed-forward is gated (Shazeer 2020, https://arxiv.org/abs/2002.05202)."""
    feed_forward_bias: bool = True
    """Whether the feed-forward's maps have a bias, all or all but the last."""
    feed_forward_output_bias: bool | None = None
    """Whether the feed-forward's last map has a bias; as `feed_forward_bias` when None."""
    final_norm: bool = True
    """Whether a norm follows the last layer, with any order but `post_norm`."""
    groups: int | None = Field(gt=0, default=None)
    """Number of layers with parameters of their own, each used repeatedly (Lan et al. 2020,
    https://arxiv.org/abs/1909.11942); all layers when None."""


class AdapterLayout(Part):
    """Low-rank adapters of all linear maps and of the word embedding; see `model.low_rank`."""

    count: int = Field(gt=0)
    """Number K of adapters. The token type of a text's tokens is the number of its adapter, 1 … K,
    or 0 for none."""
    rank: int = Field(gt=0)

    @property
    def features(self) -> int:
        """Number of low-rank features of all adapters, K · rank."""
        return self.count * self.rank


class EncoderConfig(BaseModel):
    """Config of an encoder.

    `model.families` reads it from a checkpoint's `config.json`. `attention_score` and
    `attention_normalizer` are Headscope's own keys, which select the attention function.
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
    """Maximum tokens of one text."""
    type_vocab_size: int = Field(ge=0)
    """Number of segments; 0 if the encoder has no segment embeddings."""
    reads_segments: bool = True
    """Whether the encoder uses token segments. If not, all tokens belong to the first segment, as
    in transformers if the tokenizer's `model_input_names` lack `token_type_ids`."""
    layer_norm_eps: float = Field(gt=0)
    pad_token_id: int = Field(ge=0)
    attention_score: ScoreName = "scaled_dot_product"
    attention_normalizer: NormalizerName = "softmax"
    embeddings: EmbeddingLayout = EmbeddingLayout()
    attention: AttentionLayout = AttentionLayout()
    layer: LayerLayout = LayerLayout()
    adapters: AdapterLayout | None = None

    @property
    def text_segments(self) -> int:
        """Number of segments that all tokens of a text may have: 1, and 1 for each adapter."""
        return 1 + (self.adapters.count if self.adapters else 0)

    @model_validator(mode="after")
    def _sizes_fit(self) -> Self:
        heads, groups = self.num_attention_heads, self.layer_groups
        if self.adapters and self.type_vocab_size != self.text_segments:
            raise ValueError(f"{self.adapters.count} adapters need one token type more")
        if not heads:  # only a static embedding has no heads
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
        layout = self.attention
        for of_layers in (layout.windows, layout.rotary_bases, layout.rotary_scalings):
            if of_layers and len(of_layers) != self.num_hidden_layers:
                raise ValueError(
                    f"layer_types has {len(of_layers)} entries for {self.num_hidden_layers} layers"
                )
        factors = {scaling.attention_factor if scaling else 1 for scaling in layout.rotary_scalings}
        if len(factors) > 1:
            raise ValueError("attention_factor of rotary positions differs between layers")
        return self

    @model_validator(mode="after")
    def _picture_fits(self) -> Self:
        patches = self.embeddings.patches
        if patches is None:
            return self
        sizes = {
            "vocab_size": (self.vocab_size, 1 + len(patches.special_tokens)),
            "max_position_embeddings": (self.max_position_embeddings, patches.tokens),
        }
        for name, (size, expected) in sizes.items():
            if size != expected:
                raise ValueError(f"{name} is {size}, where pictures have {expected}")
        return self

    @property
    def query_scale(self) -> float:
        """Factor of queries beside the score's own, with the factor of rotated queries and keys."""
        scaling = next(iter(self.attention.rotary_scalings), None)
        return self.attention.query_scale * (scaling.attention_factor**2 if scaling else 1)

    @property
    def head_size(self) -> int:
        """Features of one head."""
        return self.attention.head_size or self.hidden_size // self.num_attention_heads

    @property
    def num_key_value_heads(self) -> int:
        """Number of key and value heads."""
        return self.attention.num_key_value_heads or self.num_attention_heads

    @property
    def has_final_norm(self) -> bool:
        """Whether the last hidden state is the output of a norm after the last layer."""
        return self.layer.order != "post_norm" and self.layer.final_norm

    @property
    def pixel_features(self) -> int:
        """Number of pixel values of each token; 0 for an encoder of texts."""
        return self.embeddings.patches.features if self.embeddings.patches else 0

    @property
    def layer_groups(self) -> int:
        """Number of layers with parameters of their own."""
        return self.layer.groups or self.num_hidden_layers

    def layer_group(self, layer: int) -> int:
        """Return the index of the group whose parameters layer 0 … L−1 uses."""
        return int(layer / (self.num_hidden_layers / self.layer_groups))  # as ALBERT rounds

    @property
    def segments(self) -> int:
        """Number of segments of tokens; 0 if segments make no difference."""
        return self.type_vocab_size if self.reads_segments else 0

    def knows_segment(self, segment: int) -> bool:
        """Return whether tokens may have the segment; any may if segments make no difference."""
        return not self.segments or segment < self.segments


def patches_of(config: EncoderConfig) -> PatchLayout:
    """Return the layout of pictures of an encoder that reads them.

    Raises:
        ValueError: it reads texts.

    """
    if config.embeddings.patches is None:
        raise ValueError(f"{config.model_type} reads texts")
    return config.embeddings.patches


class StaticConfig(EncoderConfig):
    """Config of a static embedding: a table of one vector a token, which is hidden state 0."""

    model_type: Literal["static_embedding"] = "static_embedding"
    num_hidden_layers: int = 0
    num_attention_heads: int = 0
    intermediate_size: int = 0
    hidden_act: Any = None
    layer_norm_eps: Any = None
    max_position_embeddings: int = 8192
    type_vocab_size: int = 0
    pad_token_id: int = 0
