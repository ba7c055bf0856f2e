"""`multivector`: a vector of each token, of a late-interaction model.

Notation: S tokens of one text, D features of a token's vector, n tokens with a vector.
"""

from __future__ import annotations

from collections.abc import Sequence

from model.artifact.manifest import Manifest
from model.artifact.vectors import TextVectors
from model.numerics.late_interaction import LateInteraction, Role
from model.numerics.task_head import TaskConfig
from service.engines.contract import Floats, Ids
from service.engines.contract import Output as Computed
from service.errors import Unprocessable
from service.inference.encoding import EncodeOptions
from service.inference.outputs.field import Field, TextArrays
from service.inference.outputs.task_head import TaskHeadOutput
from service.inference.tokenization.text import Text
from service.scheduler.outputs import requested


class MultivectorOutput(TaskHeadOutput):
    """Vectors `[n, D]` of the tokens that have one, among them a query's expansion tokens."""

    name = "multivector"
    remedy = "token vectors for MaxSim: take a late-interaction model"
    fields = (
        Field(
            "multivector",
            "float32",
            ("n", "D"),
            "`[n][D]`, vectors of late interaction.",
            ragged=True,
        ),
        Field("multivector_cu_seqlens", "int32", bounds_of="multivector"),
    )

    def __init__(self, options: EncodeOptions, manifest: Manifest, vectors: TextVectors) -> None:
        """Check the role of the texts."""
        super().__init__(options, manifest, vectors)
        if self.task.kind == "late_interaction" and options.role is None:
            raise Unprocessable(
                "outputs: multivector: the model encodes queries and documents differently: set "
                "`prompt_name` to query or document"
            )
        self._late: LateInteraction = requested(self.task.late)
        self._role: Role = "query" if self.is_query else "document"
        self.sizes = {"D": token_features(self.task)}
        if self.is_query and self._late.expansion and {"tokens", "pooled"} & {*options.outputs}:
            raise Unprocessable(
                "outputs: multivector of a query has expansion tokens, which tokens and pooled "
                "lack: ask for it alone"
            )

    def _read(self, text: Text) -> Ids:
        """Return the token ids that the encoder reads."""
        return self._late.filled_up(text.input_ids) if self.is_query else text.input_ids

    def reduce(self, text: Text, computed: Computed) -> TextArrays:
        """Return the vectors."""
        scores = requested(computed.scores)
        return {"multivector": token_vectors(self.task, scores, self._read(text), self._role)}

    def entries(self, texts: Sequence[Text]) -> int:
        """Return the number of tokens, with expansion tokens."""
        return sum(len(self._read(text)) for text in texts)


def token_vectors(task: TaskConfig, scores: Floats, input_ids: Ids, role: Role) -> Floats:
    """Return the vectors `[n, D]` of the tokens of a text that have one.

    Args:
        task: task head, which computes token vectors.
        scores: outputs `[S, D]`, or of a `hybrid` head `[S, D + 1]`.
        input_ids: `[S]`, including expansion tokens.
        role: role of the text.

    Raises:
        ValueError: the task head computes no token vectors.

    """
    if task.late is None:
        raise ValueError(f"a task head of {task.kind} computes no token vectors")
    return task.late.kept(scores[:, : token_features(task)], input_ids, role)


def token_features(task: TaskConfig) -> int:
    """Return the number of features of a token's vector, D."""
    return task.outputs - (task.kind == "hybrid")
