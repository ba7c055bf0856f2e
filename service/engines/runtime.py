"""Engine on a runtime: packs tasks into a batch, and arrays into outputs.

Notation: that of `service.engines.contract`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np

from model.config.encoder import EncoderConfig
from model.errors import DeviceLostError
from model.numerics.batch import pack
from model.numerics.comparison import shift_right
from model.numerics.pooling import TextPooling
from model.numerics.task_head import rows_of, text_scores
from model.runtimes.capabilities import Decoder, Decomposition, TaskHead, capability, find
from model.runtimes.contract import Decoding, Heads, Runtime
from service.engines.contract import (
    Ablated,
    DecomposeTask,
    Engine,
    Floats,
    MapsTask,
    Output,
    TargetOutput,
    Task,
    TextTask,
)
from service.errors import EngineFailed, EngineOutOfMemory, EngineUnavailable


def head_mask(ablated: Sequence[Ablated], config: EncoderConfig) -> Floats | None:
    """Return a mask `[B, L, N]`: 0 for ablated heads, 1 for others; None without ablated heads."""
    if not any(ablated):
        return None
    shape = (len(ablated), config.num_hidden_layers, config.num_attention_heads)
    mask = np.ones(shape, np.float32)
    for row, heads in zip(mask, ablated, strict=True):
        for layer, head in heads:
            row[layer, head] = 0
    return mask


OUT_OF_MEMORY = "OutOfMemoryError"
"""Answer of the PyTorch process to a batch that does not fit into memory."""
_EXHAUSTED = re.compile(
    r"failed to allocate memory|bad[ _]alloc|out of memory|can't allocate memory"
    r"|cannot allocate memory|available memory of \d+ is smaller|_STATUS_ALLOC_FAILED",
    re.IGNORECASE,
)
"""Messages of ONNX Runtime's arenas, std::bad_alloc, CUDA's libraries, PyTorch's allocators."""


def ran_out_of_memory(error: BaseException) -> bool:
    """Return whether a runtime's error means exhausted memory."""
    return isinstance(error, MemoryError) or _EXHAUSTED.search(str(error)) is not None


def out_of_memory(provider: str) -> EngineOutOfMemory:
    """Return the error for the client, which may retry with fewer texts."""
    return EngineOutOfMemory(f"{provider} has no memory for the batch", retry_after_seconds=1)


def decode(
    decoder: Decoder, tasks: Sequence[TextTask], encoded: Sequence[Floats]
) -> list[TargetOutput]:
    """Return the outputs of each text's target, from its last hidden state `[S, H]`.

    The decoder's batch requests the targets' states, then the last state of each scored target.
    """
    config, targets = decoder.config, [task.target for task in tasks if task.target]
    inputs = [shift_right(target.labels, config.start_token_id) for target in targets]
    scored = [text for text, target in enumerate(targets) if target.logprobs]
    decoding = Decoding(
        source=pack(
            [(task.input_ids, task.segment_ids) for task in tasks],
            [task.unseen for task in tasks],
        ),
        encoded=np.concatenate(encoded),
        target=pack([(ids, np.zeros_like(ids)) for ids in inputs]),
        states=[(n, layer) for n, target in enumerate(targets) for layer in target.hidden_layers]
        + [(n, config.layers.num_hidden_layers) for n in scored],
        cross=[(n, layer) for n, target in enumerate(targets) for layer in target.cross_layers],
        head_mask=head_mask([target.ablated for target in targets], config.layers),
        cross_head_mask=head_mask([target.cross_ablated for target in targets], config.layers),
    )
    states, cross = map(iter, decoder.decode(decoding))
    outputs = [
        TargetOutput(
            [next(states) for _ in target.hidden_layers],
            [next(cross) for _ in target.cross_layers],
        )
        for target in targets
    ]
    if scored:
        labels = [targets[text].labels for text in scored]
        logprobs = decoder.logprobs(np.concatenate(list(states)), np.concatenate(labels))
        cuts = np.cumsum([len(own) for own in labels])[:-1]
        for text, own in zip(scored, np.split(logprobs, cuts), strict=True):
            outputs[text].logprobs = own
    return outputs


class RuntimeEngine(Engine):
    """Engine on one runtime, which several threads call."""

    def __init__(self, name: str, runtime: Runtime, concurrency: int) -> None:
        self.name = name
        self.provider = runtime.provider
        self.concurrency = concurrency
        self.spare_calls = runtime.spare_calls
        self.hidden_size = runtime.config.hidden_size
        self._runtime = runtime

    @property
    def alive(self) -> bool:
        """Whether the device is still there; once lost, it stays lost."""
        return self._runtime.alive

    def warm_up(self, batch_tokens: int, longest: int) -> None:
        """Run the runtime's own warm-up."""
        self._runtime.warm_up(batch_tokens, longest)

    def release_memory(self) -> None:
        """Release the runtime's memory, while the device is alive."""
        if self.alive:
            self._runtime.release_memory()

    def run(self, tasks: Sequence[Task]) -> list[Output]:
        """Compute the tasks, and convert the runtime's exceptions to the service's."""
        try:
            return self._compute(tasks)
        except DeviceLostError as error:
            raise EngineUnavailable(str(error), retry_after_seconds=5) from error
        except Exception as error:  # the runtimes' own exceptions share no base class
            if ran_out_of_memory(error):
                raise out_of_memory(self.provider) from error
            raise EngineFailed(f"{self.provider} failed: {type(error).__name__}") from error

    def compute(self, tasks: Sequence[Task]) -> list[Output]:
        """Compute the tasks for another process: states for maps are copied to the host."""
        outputs = self._compute(tasks)
        for output in outputs:
            output.map_states = [np.asarray(state) for state in output.map_states]
        return outputs

    def _compute(self, tasks: Sequence[Task]) -> list[Output]:
        """Compute all texts in one packed forward pass, and each other task in its own call."""
        texts = [task for task in tasks if isinstance(task, TextTask)]
        encoded = iter(self._encode(texts) if texts else ())
        return [
            next(encoded) if isinstance(task, TextTask) else self._alone(task) for task in tasks
        ]

    def _encode(self, tasks: Sequence[TextTask]) -> list[Output]:
        """Encode texts; copy only requested arrays, and a decoder's input, from the device."""
        runtime = self._runtime
        targeted = [text for text, task in enumerate(tasks) if task.target]
        scored = [text for text, task in enumerate(tasks) if task.scores]
        head = find(runtime, TaskHead) if scored else None
        last = runtime.config.num_hidden_layers
        unseen = [tasks[text].unseen for text in scored]
        rows = rows_of(head.config, scored, last, unseen) if head else ([], [])
        states, vectors = runtime.encode(
            pack(
                [(task.input_ids, task.segment_ids) for task in tasks],
                [task.unseen for task in tasks],
                [task.pixels for task in tasks if task.pixels is not None],
            ),
            [(text, layer) for text, task in enumerate(tasks) for layer in task.map_layers]
            + [(text, layer) for text, task in enumerate(tasks) for layer in task.hidden_layers]
            + [(text, last) for text in targeted]
            + rows[0],
            [
                TextPooling(
                    text, asked.layer, asked.mode, asked.first_token, left_out=asked.left_out
                )
                for text, task in enumerate(tasks)
                if (asked := task.pooling)
            ]
            + rows[1],
            head_mask([task.ablated for task in tasks], runtime.config),
        )
        kept, pooled = iter(states), iter(vectors)
        of_maps = [[next(kept) for _ in task.map_layers] for task in tasks]
        hidden = map(np.asarray, kept)
        outputs = [
            Output(
                [next(hidden) for _ in task.hidden_layers],
                next(pooled) if task.pooling else None,
                map_states=own,
            )
            for task, own in zip(tasks, of_maps, strict=True)
        ]
        if targeted:
            encoded = [next(hidden) for _ in targeted]
            targets = decode(capability(runtime, Decoder), [tasks[n] for n in targeted], encoded)
            for text, target in zip(targeted, targets, strict=True):
                outputs[text].target = target
        if head:
            answers = text_scores(head.config, [*hidden, *pooled], head.score, unseen)
            for text, scores in zip(scored, answers, strict=True):
                outputs[text].scores = scores
        return outputs

    def _alone(self, task: MapsTask | DecomposeTask) -> Output:
        runtime = self._runtime
        if isinstance(task, DecomposeTask):
            return Output(decomposed=capability(runtime, Decomposition).decompose(task.step))
        if task.kind == "encoder":
            of: Heads = capability(runtime, Heads)
        else:
            of = capability(runtime, Decoder).heads[task.kind]
        heads, keys = (task.layer, task.heads, task.segment), task.keys
        return Output(
            maps=of.attention(task.queries, keys, *heads),
            value_products=of.value_products(np.asarray(keys), *heads) if task.values else None,
            head_scores=of.head_scores(np.asarray(keys), *heads) if task.scores else None,
        )
