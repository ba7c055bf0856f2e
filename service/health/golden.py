"""Golden texts: comparison of a loaded engine with PyTorch's tensors from the artifact."""

from __future__ import annotations

from model.artifact.golden import read_golden
from model.artifact.manifest import GOLDEN, Artifact, passed_uses, recorded_tolerances
from model.artifact.vectors import TextVectors
from model.errors import VerificationError
from model.numerics.comparison import Comparison, Key, keyed, task_key, tolerances_of
from service.engines.contract import Engine, Floats, MapsTask, Output, Pooling, Task, TextTask
from service.engines.whole_texts import whole_maps, whole_task, whole_tensors
from service.scheduler.outputs import check_outputs


class GoldenCheck:
    """Check of an engine on an artifact's golden texts."""

    def __init__(self, artifact: Artifact) -> None:
        self._texts = read_golden(artifact) if GOLDEN in artifact.manifest.files else []
        self._manifest = artifact.manifest
        self._vectors = TextVectors.of(artifact)

    def __call__(self, engine: Engine) -> None:
        """Compare hidden states, maps, pooled vectors and a task head's outputs with PyTorch's.

        The engine computes all texts in one batch, while PyTorch computed them one by one. An
        engine without a model only has to answer. Static embeddings and artifacts that failed
        their verification are not checked, and tensors of a use that failed are not compared.
        """
        if not (self._texts and self._manifest.verification.passed):
            return
        comparison = Comparison()
        exact = engine.name == "torch" and self._manifest.precision != "fp32"
        of_float32 = tolerances_of("fp32", *self._manifest.depths)
        tolerances = of_float32 if exact else recorded_tolerances(self._manifest)
        head, unit = self._manifest.task, self._vectors.unit
        outputs, pooled = self._encode(engine), self._pool(engine)
        for number, (text, output) in enumerate(zip(self._texts, outputs, strict=True)):
            expected = keyed(list(text.hidden), text.maps, unit)
            if head and text.scores is not None:
                expected[task_key(head)] = text.scores
            if text.target:
                expected |= text.target.keyed()
            maps = _run(engine, whole_maps(output, self._manifest, int(text.segment_ids[0])))
            tensors = whole_tensors(output, maps, self._manifest, unit)
            computed = {key: tensors[key] for key in expected}
            if pooled:
                computed[Key("pooled")] = pooled[number]
            comparison.add(expected, computed, tolerances)
        if not exact:
            comparison = comparison.of(passed_uses(self._manifest))
        if not comparison.passed and engine.name != "fake":
            raise VerificationError(
                f"the {engine.name} engine disagrees with PyTorch about the artifact's golden "
                f"texts: {comparison.summary()}"
            )

    def _encode(self, engine: Engine) -> list[Output]:
        tasks = [
            whole_task(self._manifest, text.input_ids, text.segment_ids, text.pixels, text.labels)
            for text in self._texts
        ]
        return _run(engine, tasks)

    def _pool(self, engine: Engine) -> list[Floats]:
        """Return each text's unit vector from the graph of vectors; empty without a graph."""
        if "vectors" not in self._manifest.signature or self._manifest.task:
            return []
        mode = self._manifest.sentence.pooling
        pooling = Pooling(self._manifest.config.num_hidden_layers, mode)
        tasks = [
            TextTask(text.input_ids, text.segment_ids, pooling=pooling, pixels=text.pixels)
            for text in self._texts
        ]
        vectors = [output.pooled for output in _run(engine, tasks)]
        return self._vectors.units([vector for vector in vectors if vector is not None])


def _run(engine: Engine, tasks: list[Task] | list[TextTask] | list[MapsTask]) -> list[Output]:
    outputs = engine.run(tasks)
    check_outputs(tasks, outputs, engine.hidden_size)
    return outputs
