"""Task heads in PyTorch: rows of the last hidden state → logits, vectors, or a sparse vector.

Notation: n rows, H hidden size, E features of the transform, C labels, V words, D features of a
token's vector.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from model.encoder.layers import ACTIVATIONS
from model.numerics.late_interaction import TokenModule
from model.numerics.task_head import Floats, TaskConfig, Transform
from model.numerics.vector_modules import Dense


class TransformLayer(nn.Module):
    """Layer norm(f(W x + b)), BERT's pooler or the transform of its predictions."""

    def __init__(self, config: Transform, hidden_size: int) -> None:
        super().__init__()
        self.dense = nn.Linear(hidden_size, config.size, bias=config.bias)
        self.activation = ACTIVATIONS[config.activation]
        self.norm: nn.Module = nn.Identity()
        if config.norm_eps is not None:
            self.norm = nn.LayerNorm(config.size, eps=config.norm_eps, bias=config.norm_bias)

    def forward(self, rows: Tensor) -> Tensor:
        """Map `[n, H]` → `[n, E]`."""
        return self.norm(self.activation(self.dense(rows)))


class TaskModule(nn.Module):
    """Base of all task heads."""

    def __init__(self, config: TaskConfig) -> None:
        super().__init__()
        self.config = config


class TaskHead(TaskModule):
    """Task head with logits of each row, one per text or per token."""

    def __init__(self, config: TaskConfig, hidden_size: int) -> None:
        super().__init__(config)
        size = config.input_size(hidden_size)
        self.transform: nn.Module = nn.Identity()
        if config.transform is not None:
            self.transform = TransformLayer(config.transform, size)
            size = config.transform.size
        self.output = nn.Linear(size, config.outputs, bias=config.output_bias)

    def forward(self, rows: Tensor) -> Tensor:
        """Return logits `[n, C]` of rows `[n, H]`."""
        return self.output(self.transform(rows))


class SparseHead(TaskHead):
    """Task head with one weight per word of the vocabulary, from some or all tokens of a text.

    SPLADE (Formal et al. 2021, eq. 1 and section 3, https://arxiv.org/abs/2109.10086): the maximum,
    or the sum, over tokens of log(1 + relu(logits)). Parts of a text combine in the same way.
    """

    def forward(self, rows: Tensor) -> Tensor:
        """Return weights `[1, V]` of rows `[n, H]`."""
        logits = super().forward(rows)
        # the activation is monotonic, so it can follow the maximum
        if self.config.pooling == "max":
            return self._activated(logits.amax(dim=0, keepdim=True))
        return self._activated(logits).sum(dim=0, keepdim=True)

    def _activated(self, logits: Tensor) -> Tensor:
        weights = torch.log1p(torch.relu(logits))
        return torch.log1p(weights) if self.config.activation == "log1p_relu" else weights


class TokenDense(nn.Module):
    """Dense of sentence-transformers, for each token."""

    def __init__(self, config: Dense) -> None:
        super().__init__()
        sizes = config.in_features, config.out_features
        self.linear = nn.Linear(*sizes, bias=config.bias)
        self.activation: nn.Module = getattr(nn, config.activation)()
        self.residual: nn.Module | None = None
        if config.residual:
            same = config.in_features == config.out_features
            self.residual = nn.Identity() if same else nn.Linear(*sizes, bias=False)

    def forward(self, rows: Tensor) -> Tensor:
        """Map `[n, in_features]` → `[n, out_features]`."""
        outputs: Tensor = self.activation(self.linear(rows))
        return outputs if self.residual is None else outputs + self.residual(rows)


class UnitLength(nn.Module):
    """Scaling of rows to unit length."""

    def forward(self, rows: Tensor) -> Tensor:
        """Scale rows `[n, D]` to unit length."""
        return functional.normalize(rows, dim=-1)


class TokenVectors(TaskModule):
    """Task head with a vector per token, for MaxSim (Khattab & Zaharia 2020, section 3.2)."""

    def __init__(self, config: TaskConfig) -> None:
        """Allocate the modules."""
        super().__init__(config)
        if config.late is None:
            raise ValueError("the config of token vectors has no late interaction")
        self.steps = nn.Sequential(*map(_step, config.late.modules))

    def forward(self, rows: Tensor) -> Tensor:
        """Return vectors `[n, D]` of rows `[n, H]`."""
        vectors: Tensor = self.steps(rows)
        return vectors


class HybridHead(TokenVectors):
    """Task head with a vector and a weight per token (bge-m3: Chen et al. 2024, section 3.1).

    https://arxiv.org/abs/2402.03216: normalised W_mul h, and relu(W_lex h).
    """

    def __init__(self, config: TaskConfig, hidden_size: int) -> None:
        super().__init__(config)
        self.weight = nn.Linear(hidden_size, 1)

    def forward(self, rows: Tensor) -> Tensor:
        """Return vectors, each followed by its weight, `[n, D + 1]`, of rows `[n, H]`."""
        return torch.cat([super().forward(rows), torch.relu(self.weight(rows))], dim=-1)


def _step(module: TokenModule) -> nn.Module:
    return TokenDense(module) if isinstance(module, Dense) else UnitLength()


def task_head(config: TaskConfig, hidden_size: int) -> TaskModule:
    """Return a task head of the config's kind."""
    if config.kind == "late_interaction":
        return TokenVectors(config)
    if config.kind == "hybrid":
        return HybridHead(config, hidden_size)
    kind = SparseHead if config.kind == "sparse" else TaskHead
    return kind(config, hidden_size)


def scores_of_text(head: TaskModule, hidden: Tensor) -> Floats:
    """Return a task head's output for one text's last hidden state `[S, H]`, all tokens at once."""
    pooling, first = head.config.pooling, min(head.config.first_token, len(hidden) - 1)
    rows = hidden
    match pooling:
        case "cls":
            rows = hidden[:1]
        case "last":
            rows = hidden[-1:]
        case "mean":
            rows = hidden[first:].mean(dim=0, keepdim=True)
        case "first_two":
            rows = hidden[:2].reshape(1, -1)
        case "cls_mean":
            rows = torch.cat([hidden[0], hidden[first:].mean(dim=0)])[None]
    with torch.inference_mode():
        scores: Floats = head(rows).numpy()
    return scores if head.config.by_token else scores[0]
