"""A task head in PyTorch: rows of the last hidden state → logits, or one sparse vector.

Notation: n rows, H hidden size, E features of the transform, C labels, V words.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from model.artifact.scores import Floats
from model.artifact.task import TaskConfig, Transform
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


class TaskHead(nn.Module):
    """Logits of each row: a text's, or a token's."""

    def __init__(self, config: TaskConfig, hidden_size: int) -> None:
        super().__init__()
        self.config = config
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


def task_head(config: TaskConfig, hidden_size: int) -> TaskHead:
    """The module of a kind of task head."""
    kind = SparseHead if config.kind == "sparse" else TaskHead
    return kind(config, hidden_size)


def scores_of_text(head: TaskHead, hidden: Tensor) -> Floats:
    """What a task head answers to one text's last hidden state `[S, H]`, all of it at once."""
    pooling = head.config.pooling
    rows = hidden
    if pooling in ("cls", "mean"):
        rows = hidden[:1] if pooling == "cls" else hidden.mean(dim=0, keepdim=True)
    with torch.inference_mode():
        scores: Floats = head(rows).numpy()
    return scores if head.config.kind == "token_classification" else scores[0]
