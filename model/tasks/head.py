"""A task head in PyTorch: rows of the last hidden state → logits, vectors, or one sparse vector.

Notation: n rows, H hidden size, E features of the transform, C labels, V words, D features of a
token's vector.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from model.artifact.late_interaction import TokenModule
from model.artifact.scores import Floats
from model.artifact.task import TaskConfig, Transform
from model.artifact.vector_modules import Dense
from model.encoder.feed_forward import ACTIVATIONS


class TransformLayer(nn.Module):
    """norm(f(W x + b)), what BERT calls a pooler or the transform of its predictions."""

    def __init__(self, config: Transform, hidden_size: int) -> None:
        super().__init__()
        self.dense = nn.Linear(hidden_size, config.size, bias=config.bias)
        self.activation = ACTIVATIONS[config.activation]
        self.norm: nn.Module = nn.Identity()
        if config.norm_eps is not None:
            self.norm = nn.LayerNorm(config.size, eps=config.norm_eps, bias=config.norm_bias)

    def forward(self, rows: Tensor) -> Tensor:
        """`[n, H]` → `[n, E]`."""
        return self.norm(self.activation(self.dense(rows)))


class TaskModule(nn.Module):
    """A task head of any kind."""

    def __init__(self, config: TaskConfig) -> None:
        super().__init__()
        self.config = config


class TaskHead(TaskModule):
    """Logits of each row: a text's, or a token's."""

    def __init__(self, config: TaskConfig, hidden_size: int) -> None:
        super().__init__(config)
        size = hidden_size
        self.transform: nn.Module = nn.Identity()
        if config.transform is not None:
            self.transform = TransformLayer(config.transform, hidden_size)
            size = config.transform.size
        self.output = nn.Linear(size, config.outputs, bias=config.output_bias)

    def forward(self, rows: Tensor) -> Tensor:
        """`[n, H]` → `[n, C]`."""
        return self.output(self.transform(rows))


class SparseHead(TaskHead):
    """The tokens of one text, or some of them, to one weight a word of the vocabulary.

    SPLADE (Formal et al. 2021, eq. 1 and section 3, https://arxiv.org/abs/2109.10086): the maximum,
    or the sum, over tokens of log(1 + relu(logits)). Parts of a text combine in the same way.
    """

    def forward(self, rows: Tensor) -> Tensor:
        """`[n, H]` → `[1, V]`."""
        logits = super().forward(rows)
        if self.config.pooling == "max":  # of what only rises with the logits
            return self._activated(logits.amax(dim=0, keepdim=True))
        return self._activated(logits).sum(dim=0, keepdim=True)

    def _activated(self, logits: Tensor) -> Tensor:
        weights = torch.log1p(torch.relu(logits))
        return torch.log1p(weights) if self.config.activation == "log1p_relu" else weights


class TokenDense(nn.Module):
    """sentence-transformers' Dense, of each token."""

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
        """`[n, in_features]` → `[n, out_features]`."""
        found: Tensor = self.activation(self.linear(rows))
        return found if self.residual is None else found + self.residual(rows)


class UnitLength(nn.Module):
    """Rows divided by their length."""

    def forward(self, rows: Tensor) -> Tensor:
        """`[n, D]` → the same."""
        return functional.normalize(rows, dim=-1)


class TokenVectors(TaskModule):
    """The vector of each token, for MaxSim (Khattab & Zaharia 2020, section 3.2)."""

    def __init__(self, config: TaskConfig) -> None:
        """Allocate the modules.

        Raises:
            ValueError: the config is none of a late-interaction model.

        """
        super().__init__(config)
        if config.late is None:
            raise ValueError("a late-interaction model has modules of its own")
        self.steps = nn.Sequential(*map(_step, config.late.modules))

    def forward(self, rows: Tensor) -> Tensor:
        """`[n, H]` → `[n, D]`."""
        found: Tensor = self.steps(rows)
        return found


def _step(module: TokenModule) -> nn.Module:
    return TokenDense(module) if isinstance(module, Dense) else UnitLength()


def task_head(config: TaskConfig, hidden_size: int) -> TaskModule:
    """The module of a kind of task head."""
    if config.kind == "late_interaction":
        return TokenVectors(config)
    kind = SparseHead if config.kind == "sparse" else TaskHead
    return kind(config, hidden_size)


def scores_of_text(head: TaskModule, hidden: Tensor) -> Floats:
    """What a task head answers to one text's last hidden state `[S, H]`, all of it at once."""
    pooling = head.config.pooling
    rows = hidden
    if pooling in ("cls", "mean"):
        rows = hidden[:1] if pooling == "cls" else hidden.mean(dim=0, keepdim=True)
    with torch.inference_mode():
        scores: Floats = head(rows).numpy()
    return scores if head.config.by_token else scores[0]
