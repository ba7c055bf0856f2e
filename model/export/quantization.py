"""Static int8: the encoder's linear maps over 8-bit integers, with scales fixed at export.

A scale that depends on the batch would make a text's vector depend on the other texts. These scales
come from calibration texts and never change. Activations have one scale and zero point per tensor,
weights one scale per output feature, and 7 bits where products of 8 bits saturate
(`model.runtimes.openvino`). Behind a layer norm a few features are far larger than the others and
would use up the 255 steps; their size is moved into the weights first (SmoothQuant, Xiao et al.
2023, https://arxiv.org/abs/2211.10438, eq. 4).

A map whose 8-bit output is far from the float32 output for most calibration tokens stays in
floating point. One token may have a feature a hundred times larger than all others ("massive
activations", Sun et al. 2024, https://arxiv.org/abs/2402.17762), so that a step of the scale
exceeds all other features.

The integer arithmetic is in the graph as QuantizeLinear and DequantizeLinear, which a runtime fuses
into integer products: q = clip(round(x / s) + z, 0, 255), x ≈ (q − z) · s.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn

from model.config.precision import WeightBits
from model.encoder.encoder import Encoder
from model.encoder.layers import Layer
from model.numerics.batch import Batch
from model.packing import PackedBatch

SMOOTHING: Mapping[WeightBits, float] = {8: 0.5, 7: 0.6}
"""Exponent α by the weights' bits: how much of an activation's range moves into the weights."""
LARGEST_ERROR = 0.215
"""Largest median over tokens of ‖y₈ − y‖ / ‖y‖ for a map to be quantized. The maximum in
all-MiniLM-L6-v2 is 0.206. multilingual-e5-small has maps with 0.58, 0.22 and 0.24: with these in 8
bits an end token among random ids loses its massive activation, cosine 0.15; in float 0.71."""
_SMALLEST = 1e-5
"""Smallest value of scales and norms, so that dead features do not give zero."""


Group = tuple[Sequence[nn.Linear], bool]
"""Linear maps with a common input, which is quantized once for all, and whether it is smoothed."""
Range = tuple[Tensor, Tensor]
"""Smallest and largest value of each feature of a map's input, `[d]` each."""


def groups(layer: Layer) -> tuple[Group, ...]:
    """Return the linear maps of a layer, grouped by their input."""
    attention, feed_forward = layer.attention, layer.feed_forward
    entering = [feed_forward.expand]
    if feed_forward.gate is not None:
        entering.insert(0, feed_forward.gate)
    return (
        ((attention.query, attention.key, attention.value), True),
        ((attention.output,), False),
        (entering, True),
        ((feed_forward.contract,), False),
    )


class Int8Linear(nn.Module):
    """Linear map x Wᵀ + b with 8-bit x and W, for export: eager PyTorch cannot compute it."""

    weight: Tensor
    weight_scale: Tensor
    bias: Tensor | None
    divisor: Tensor | None
    scale: Tensor
    zero: Tensor

    def __init__(
        self,
        linear: nn.Linear,
        smoothing: Tensor | None,
        scale: float,
        zero: int,
        weight_bits: WeightBits,
    ) -> None:
        """Quantize a map.

        `smoothing` `[d]` divides the input's features and multiplies the weight's; `scale` and the
        zero point, 0 … 255, are of the input after it. Weights are −127 … 127 with 8 bits, −63 … 63
        with 7.
        """
        super().__init__()
        weight = linear.weight.detach()
        if smoothing is not None:
            weight = weight * smoothing
        weight_scale = weight.abs().amax(dim=1).clamp_min(_SMALLEST) / (2 ** (weight_bits - 1) - 1)
        quantized = (weight / weight_scale[:, None]).round().to(torch.int8)
        self.register_buffer("weight", quantized.T.contiguous())
        self.register_buffer("weight_scale", weight_scale)
        self.register_buffer("bias", None if linear.bias is None else linear.bias.detach())
        self.register_buffer("divisor", None if smoothing is None else 1 / smoothing)
        self.register_buffer("scale", torch.tensor(scale))
        self.register_buffer("zero", torch.tensor(zero, dtype=torch.uint8))

    def product(self, x: Tensor) -> Tensor:
        """Return a runtime's product `[n, p]` for `[n, d]`, without the bias, in float32."""
        if self.divisor is not None:
            x = x * self.divisor
        zero = int(self.zero)
        steps = (x / self.scale).round_().clamp_(-zero, 255 - zero)
        return (steps @ self.weight.float()).mul_(self.scale * self.weight_scale)

    def forward(self, x: Tensor) -> Tensor:
        """Map `[…, d]` → `[…, p]`."""
        if self.divisor is not None:
            x = x * self.divisor
        shape = list(x.shape)
        quantized = _node("QuantizeLinear", (x, self.scale, self.zero), torch.uint8, shape)
        x = _node("DequantizeLinear", (quantized, self.scale, self.zero), torch.float32, shape)
        weight = _node(
            "DequantizeLinear",
            (self.weight, self.weight_scale),
            torch.float32,
            list(self.weight.shape),
            axis=1,
        )
        product = x @ weight
        return product if self.bias is None else product + self.bias


@dataclass(frozen=True)
class Quantized:
    """Encoder for export, with 8-bit linear maps."""

    encoder: Encoder
    kept: tuple[str, ...]
    """Names of the maps that stay in floating point, by the encoder's keys."""


def quantize(
    encoder: Encoder, calibration: Iterable[Batch], weight_bits: WeightBits = 8
) -> Quantized:
    """Return a copy of the encoder for export, with 8-bit linear maps in its layers.

    Values beyond the ranges of the calibration are clipped later.
    """
    batches = list(calibration)
    quantized = copy.deepcopy(encoder)
    ranges = observe(encoder, batches)
    names = {module: name for name, module in encoder.named_modules()}
    new: dict[nn.Module, Int8Linear] = {}
    for layer in encoder.layers:
        for maps, smooth in groups(cast(Layer, layer)):
            settings = _settings(maps, ranges[maps[0]], weight_bits, smooth=smooth)
            new |= {linear: Int8Linear(linear, *settings, weight_bits) for linear in maps}
    errors = median_errors(encoder, batches, new)
    for linear, replacement in new.items():
        if errors[linear] <= LARGEST_ERROR:
            parent, _, name = names[linear].rpartition(".")
            setattr(quantized.get_submodule(parent), name, replacement)
    kept = [names[linear] for linear in new if errors[linear] > LARGEST_ERROR]
    return Quantized(quantized, tuple(kept))


def observe(encoder: Encoder, calibration: Iterable[Batch]) -> dict[nn.Module, Range]:
    """Return the range of each linear map's input over the batches, in float32."""
    ranges: dict[nn.Module, Range] = {}

    def note(module: nn.Linear, x: Tensor, _: Tensor) -> None:
        low, high = x.aminmax(dim=0)
        known = ranges.get(module, (low, high))
        ranges[module] = torch.minimum(known[0], low), torch.maximum(known[1], high)

    _watch(encoder, calibration, note)
    return ranges


def median_errors(
    encoder: Encoder, calibration: Iterable[Batch], new: Mapping[nn.Module, Int8Linear]
) -> dict[nn.Module, float]:
    """Return each map's median over tokens of ‖y₈ − y‖ / ‖y‖, y its output without bias.

    The median, because 8 bits represent the few tokens with huge features best.
    """
    errors: dict[nn.Module, list[Tensor]] = {}

    def compare(module: nn.Linear, x: Tensor, y: Tensor) -> None:
        if module in new:
            exact = y if module.bias is None else y - module.bias
            distance = (new[module].product(x) - exact).norm(dim=-1)
            errors.setdefault(module, []).append(distance / exact.norm(dim=-1).clamp_min(_SMALLEST))

    _watch(encoder, calibration, compare)
    return {
        module: torch.cat(token_errors).median().item() for module, token_errors in errors.items()
    }


def _watch(
    encoder: Encoder,
    calibration: Iterable[Batch],
    see: Callable[[nn.Linear, Tensor, Tensor], None],
) -> None:
    """Run batches; call `see` with each linear map, its input `[n, d]` and output `[n, p]`."""
    hooks = [
        module.register_forward_hook(
            lambda m, inputs, y: see(m, inputs[0].flatten(0, -2), y.flatten(0, -2))
        )
        for module in encoder.modules()
        if isinstance(module, nn.Linear)
    ]
    with torch.inference_mode():
        for batch in calibration:
            encoder(PackedBatch.of(batch))
    for hook in hooks:
        hook.remove()


def _settings(
    maps: Sequence[nn.Linear], observed: Range, weight_bits: WeightBits, *, smooth: bool
) -> tuple[Tensor | None, float, int]:
    """Return the smoothing of the input of maps, and its scale and zero point after that."""
    (low, high), smoothing = observed, None
    if smooth:
        largest = torch.maximum(low.abs(), high.abs()).clamp_min(_SMALLEST)
        weights = torch.cat([linear.weight.detach() for linear in maps])
        weight_largest = weights.abs().amax(dim=0).clamp_min(_SMALLEST)
        alpha = SMOOTHING[weight_bits]
        smoothing = largest**alpha / weight_largest ** (1 - alpha)
        low, high = low / smoothing, high / smoothing
    bottom, top = min(0.0, low.min().item()), max(0.0, high.max().item())
    scale = max(top - bottom, _SMALLEST) / 255
    return smoothing, scale, round(-bottom / scale)


def _node(
    op: str, inputs: Sequence[Tensor], dtype: torch.dtype, shape: list[int], axis: int | None = None
) -> Tensor:
    """Return the output of one ONNX operator of the standard domain."""
    attributes: dict[str, Any] = {} if axis is None else {"axis": axis}
    return torch.onnx.ops.symbolic(op, inputs, attributes, dtype=dtype, shape=shape)
