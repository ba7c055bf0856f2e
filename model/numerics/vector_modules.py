"""sentence-transformers' modules after pooling: Dense, LayerNorm and Normalize. numpy only.

Notation: B vectors.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Literal, get_args

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field

from model.config.encoder import ActivationName

Floats = NDArray[np.float32]
DenseActivation = Literal[
    "Tanh", "Identity", "ReLU", "GELU", "SiLU", "Sigmoid", "LeakyReLU", "ELU", "Softplus", "Mish"
]
DENSE_ACTIVATIONS: tuple[DenseActivation, ...] = get_args(DenseActivation)


class _Module(BaseModel):
    """Module from vectors `[B, H]` to vectors, with tensors by name."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    @property
    def additive(self) -> bool:
        """Whether the map is linear apart from its bias.

        A norm is linear for a given vector, whose deviation or length is a constant.
        """
        return True

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Return name → shape of the module's tensors in a checkpoint."""
        return {}


class Dense(_Module):
    """Linear map and activation, as in sentence-transformers' Dense."""

    kind: Literal["Dense"] = "Dense"
    in_features: int = Field(gt=0)
    out_features: int = Field(gt=0)
    bias: bool = True
    activation: DenseActivation = "Tanh"
    residual: bool = False
    """Whether the input is added to the output, through a linear map if sizes differ."""

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Return a matrix, and another if the input is added to an output of another size."""
        matrix = (self.out_features, self.in_features)
        bias = {"linear.bias": (self.out_features,)} if self.bias else {}
        mapped = self.residual and self.in_features != self.out_features
        return {"linear.weight": matrix, **bias, **({"residual.weight": matrix} if mapped else {})}

    @property
    def additive(self) -> bool:
        """Whether the map is linear apart from its bias."""
        return self.activation == "Identity"

    def shares(self, shares: Floats, tensors: Mapping[str, Floats]) -> Floats:
        """Return the shares of the output, given shares `[n, in_features]` of the input.

        The bias is divided equally among them.
        """
        mapped_shares = shares @ tensors["linear.weight"].T
        if self.bias:
            mapped_shares += tensors["linear.bias"] / np.float32(len(shares))
        if self.residual:
            mapped = tensors.get("residual.weight")
            mapped_shares = mapped_shares + (shares if mapped is None else shares @ mapped.T)
        return mapped_shares

    def __call__(self, vectors: Floats, tensors: Mapping[str, Floats]) -> Floats:
        """Apply the module: `[B, in_features]` → `[B, out_features]`."""
        outputs = vectors @ tensors["linear.weight"].T
        if self.bias:
            outputs += tensors["linear.bias"]
        outputs = ACTIVATIONS[self.activation](outputs)
        if self.residual:
            mapped = tensors.get("residual.weight")
            outputs = outputs + (vectors if mapped is None else vectors @ mapped.T)
        return outputs


class LayerNorm(_Module):
    """Layer normalisation of a vector (Ba et al. 2016, https://arxiv.org/abs/1607.06450)."""

    kind: Literal["LayerNorm"] = "LayerNorm"
    dimension: int = Field(gt=0)
    eps: float = Field(gt=0, default=1e-5)

    def shares(self, shares: Floats, tensors: Mapping[str, Floats]) -> Floats:
        """Return the shares of the output, given shares `[n, dimension]` of the vector.

        The bias is divided equally among them.
        """
        vector = shares.sum(axis=0, keepdims=True)
        deviation = np.sqrt(np.var(vector, axis=1, keepdims=True) + np.float32(self.eps))
        scaled = (shares - shares.mean(axis=1, keepdims=True)) / deviation
        return scaled * tensors["norm.weight"] + tensors["norm.bias"] / np.float32(len(shares))

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Return weight and bias."""
        return {"norm.weight": (self.dimension,), "norm.bias": (self.dimension,)}

    def __call__(self, vectors: Floats, tensors: Mapping[str, Floats]) -> Floats:
        """Normalise vectors `[B, dimension]`."""
        return standardized(vectors, self.eps) * tensors["norm.weight"] + tensors["norm.bias"]


class Normalize(_Module):
    """L2 normalisation before another module."""

    kind: Literal["Normalize"] = "Normalize"

    def shares(self, shares: Floats, _: Mapping[str, Floats]) -> Floats:
        """Return the shares of the unit vector, given shares `[n, H]` of the vector."""
        norm = np.sqrt(np.square(shares.sum(axis=0)).sum())
        return shares / np.maximum(norm, np.float32(1e-12))

    def __call__(self, vectors: Floats, _: Mapping[str, Floats]) -> Floats:
        """Scale vectors `[B, H]` to unit length."""
        norms = np.sqrt(np.square(vectors).sum(axis=1, keepdims=True))
        return vectors / np.maximum(norms, np.float32(1e-12))


VectorModule = Annotated[Dense | LayerNorm | Normalize, Field(discriminator="kind")]


def tensor_name(place: int, name: str) -> str:
    """Return the name in the artifact of tensor `name` of the module with index `place`."""
    return f"{place}.{name}"


def size_after(modules: Sequence[VectorModule], size: int) -> int | None:
    """Return the size that vectors of `size` features get; None if the modules do not fit."""
    for module in modules:
        entering = expected = size
        if isinstance(module, Dense):
            expected, size = module.in_features, module.out_features
        elif isinstance(module, LayerNorm):
            expected = module.dimension
        if expected != entering:
            return None
    return size


def standardized(vectors: Floats, eps: float) -> Floats:
    """Return vectors `[…, H]` with mean 0 and variance 1: a layer norm without weights."""
    centred = vectors - vectors.mean(axis=-1, keepdims=True)
    variance = np.square(centred).mean(axis=-1, keepdims=True)
    return centred / np.sqrt(variance + np.float32(eps))


def _softplus(x: Floats) -> Floats:
    return np.logaddexp(x, np.float32(0))


def _sigmoid(x: Floats) -> Floats:
    return np.exp(-_softplus(-x))


def _silu(x: Floats) -> Floats:
    return x * _sigmoid(x)


def _relu(x: Floats) -> Floats:
    return np.maximum(x, 0)


def _gelu(x: Floats) -> Floats:
    erf = np.vectorize(math.erf, otypes=[np.float32])
    return x * (1 + erf(x / np.float32(math.sqrt(2)))) / 2


def _gelu_tanh(x: Floats) -> Floats:
    inner = np.float32(math.sqrt(2 / math.pi)) * (x + np.float32(0.044715) * x**3)
    return x * (1 + np.tanh(inner)) / 2


ACTIVATIONS: Mapping[DenseActivation, Callable[[Floats], Floats]] = {
    "Tanh": np.tanh,
    "Identity": lambda x: x,
    "ReLU": _relu,
    "GELU": _gelu,
    "SiLU": _silu,
    "Sigmoid": _sigmoid,
    "LeakyReLU": lambda x: np.where(x > 0, x, np.float32(0.01) * x),
    "ELU": lambda x: np.where(x > 0, x, np.expm1(np.minimum(x, 0))),
    "Softplus": _softplus,
    "Mish": lambda x: x * np.tanh(_softplus(x)),
}
"""Activations with the default arguments of torch's classes."""
ENCODER_ACTIVATIONS: Mapping[ActivationName, Callable[[Floats], Floats]] = {
    **dict.fromkeys(("gelu", "gelu_python"), _gelu),
    **dict.fromkeys(("gelu_fast", "gelu_new", "gelu_pytorch_tanh"), _gelu_tanh),
    "quick_gelu": lambda x: x * _sigmoid(np.float32(1.702) * x),
    "relu": _relu,
    **dict.fromkeys(("silu", "swish"), _silu),
    "tanh": np.tanh,
}
"""Activations by transformers' names."""
