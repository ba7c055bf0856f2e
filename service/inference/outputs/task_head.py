"""Outputs of a task head: the check and the forward pass that they share."""

from __future__ import annotations

import numpy as np

from model.artifact.manifest import Manifest
from model.artifact.vectors import TextVectors
from model.numerics.late_interaction import LateInteraction
from model.numerics.task_head import TaskConfig
from service.engines.contract import TextTask
from service.errors import Unprocessable
from service.inference.encoding import EncodeOptions
from service.inference.outputs.output import Output
from service.inference.tokenization.text import Text
from service.scheduler.outputs import requested


class TaskHeadOutput(Output):
    """Base of the outputs whose name is one of `TaskConfig.vectors`."""

    use = "vectors"
    windowed = False
    by_text = True

    def __init__(self, options: EncodeOptions, manifest: Manifest, vectors: TextVectors) -> None:
        """Check that the last hidden state is requested."""
        super().__init__(options, manifest, vectors)
        if not options.layers and self.states != (manifest.config.num_hidden_layers,):
            raise Unprocessable(
                f"outputs: {self.name} is computed from the last hidden state: leave out `layer`"
            )
        self.task: TaskConfig = requested(manifest.task)
        if late := self.task.late:
            self.max_tokens = late.query_tokens if self.is_query else late.document_tokens

    @classmethod
    def offered(cls, manifest: Manifest) -> bool:
        """Return whether the model's task head computes the output."""
        return manifest.task is not None and cls.name in manifest.task.vectors

    @property
    def is_query(self) -> bool:
        """Whether the texts are encoded as queries of late interaction."""
        return self.task.kind == "late_interaction" and self.options.role == "query"

    def extend(self, task: TextTask, text: Text) -> None:
        """Request the scores of the task head."""
        task.scores = self.task.shape(text.size)
        if self.task.late and self.is_query:
            add_expansion(task, self.task.late, self.task.outputs)


def add_expansion(task: TextTask, late: LateInteraction, outputs: int) -> None:
    """Add the expansion tokens of a query and the scores of all its tokens to its forward pass."""
    own = len(task.input_ids)
    task.input_ids = late.filled_up(task.input_ids)
    task.segment_ids = np.pad(task.segment_ids, (0, len(task.input_ids) - own))
    task.scores = len(task.input_ids), outputs
    task.unseen = (*task.unseen, *late.unseen_of(own))
