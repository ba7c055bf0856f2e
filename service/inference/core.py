"""Texts in, arrays and timings out: the service as every dialect calls it.

Notation: S tokens of one text, H hidden size, L layers.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Sequence

from model.artifact.compare import Comparison
from model.artifact.foreign import not_in_graph
from model.artifact.manifest import Artifact
from model.artifact.serving_only import left_out
from model.artifact.vectors import TextVectors
from model.artifact.verification import Use
from service.errors import NotExported
from service.inference.attention.graph_attention import GraphAttentionStream
from service.inference.attention.maps import Convert
from service.inference.attention.selection import AttentionSelection
from service.inference.attention.stream import AttentionStream
from service.inference.attention.text import attention_texts
from service.inference.encoding import EncodeOptions, PreparedTexts, TextEncoding
from service.inference.engine_pool import EnginePool
from service.inference.layer_runs import LayerRuns
from service.inference.layer_vectors import finished, poolings_of, reductions_of, tasks_of
from service.inference.notices import Notices
from service.inference.timings import Timings
from service.inference.tokenization.inputs import Input, characters
from service.inference.tokenization.tokenizer import Options, TextTokenizer
from service.inference.tokenization.tokenizing import RequestLimits, Tokenizing
from service.inference.uses import check_use
from service.inference.verification import check_time, compare_engines, reserve
from service.scheduler.lanes import LaneName
from service.scheduler.submission import Caller


class Inference:
    """One artifact's tokenizer and engines."""

    def __init__(
        self,
        artifact: Artifact,
        vectors: TextVectors,
        tokenizer: TextTokenizer,
        engines: EnginePool,
        limits: RequestLimits,
        *,
        allow_unverified: bool = False,
    ) -> None:
        """Serve an artifact.

        Args:
            artifact: what is served.
            vectors: of the artifact.
            tokenizer: of the artifact, with the service's limits.
            engines: compute.
            limits: of one request.
            allow_unverified: whether a use that failed its verification is served too.

        """
        self.manifest = manifest = artifact.manifest
        self.config = manifest.config
        self.decoder = manifest.decoder
        self.sentence = manifest.sentence
        self.vectors = vectors
        self.tokenizer = tokenizer
        self.engines = engines
        self.part_costs: dict[str, float] = {}
        """Cost of a decomposition by engine, once it is measured: see `explanation.part_cost`."""
        self._allow_unverified = allow_unverified
        self.tokenizing = Tokenizing(tokenizer, limits, self.config.segments, self.decoder)
        self.tokenizing.measure()

    async def prepare(
        self,
        inputs: Sequence[Input],
        options: Options,
        caller: Caller,
        lane: LaneName,
        engine: str | None = None,
        beside: int = 0,
    ) -> PreparedTexts:
        """Tokenise a request's inputs, and find who computes them.

        Args:
            inputs: texts, or pairs of them.
            options: how they are tokenised.
            caller: who asks.
            lane: where they will be computed; a request that it would refuse costs nothing.
            engine: name of the engine; the service's own when None.
            beside: characters that the request has beside these inputs.

        Raises:
            Unprocessable: too many inputs, or one that does not fit the model.
            EngineNotInstalled: the service has no such engine.
            EngineUnavailable: the engine has failed, or cannot be started.
            NotExported: the lane of attention, of a foreign graph without attention weights.
            Overloaded: the queue has no room, or the deadline cannot be met.

        """
        if lane == "attention":
            self._require_own_maps()
        began, scheduler = time.monotonic(), await self.engines.get(engine)
        demand = self.tokenizing.demand(inputs, options, caller, beside)
        caller = scheduler.hold_place(lane, demand)
        texts = await self.tokenizing.tokenize(inputs, options, caller, beside)
        lengths = [len(text.input_ids) for text in texts]
        caller.correct_place(sum(lengths))
        lacking = len(texts) if self.tokenizer.lacks_prompt(options) else 0
        notices = Notices.of(texts, lacking)
        self.engines.observer.tokenized(lengths, notices.counts())
        seconds = time.monotonic() - began
        timings = Timings(sum(lengths), began, seconds, notices=notices)
        size, check = characters(inputs), self.require_use
        return PreparedTexts(texts, caller, scheduler, timings, (), size, check)

    async def with_targets(
        self, prepared: PreparedTexts, targets: Sequence[str], options: Options
    ) -> PreparedTexts:
        """Tokenise what a decoder is to have written of each of a request's texts.

        Raises:
            Unprocessable: too many characters, or a target that the decoder has no positions for.

        """
        began, caller = time.monotonic(), prepared.caller
        found = await self.tokenizing.tokenize_targets(
            targets, options, caller, prepared.characters
        )
        tokens = sum(len(target.input_ids) for target in found)
        seconds, notices = time.monotonic() - began, Notices.of(found)
        more = Timings(tokens, began, seconds, notices=notices)
        return dataclasses.replace(prepared, targets=found, timings=prepared.timings + more)

    async def encode(self, prepared: PreparedTexts, options: EncodeOptions) -> list[TextEncoding]:
        """Contextual embeddings of each text.

        Args:
            prepared: the texts.
            options: the arrays wanted.

        Raises:
            NotExported, NotVerified: as for `require_options`.
            Overloaded: the queue has no room, or the deadline cannot be met.
            ServiceError: the engine failed.

        """
        self.require_options(options)
        poolings = poolings_of(prepared, options, self.sentence)
        modules = bool(self.sentence.modules)
        if options.recomputes:
            found = await LayerRuns(prepared, self.config, options, poolings).encode()
            return await finished(found, options, self.vectors, modules=modules)
        tasks, reduce = tasks_of(prepared, options, poolings), reductions_of(options, poolings)
        results = await prepared.scheduler.submit("encode", tasks, prepared.caller, reduce)
        prepared.timings.add(results)
        outputs = [result.output for result in results]
        return await finished(outputs, options, self.vectors, modules=modules)

    def require_use(self, use: Use) -> None:
        """Refuse a use that failed the artifact's verification, before anything is computed.

        Raises:
            NotVerified: with the figure that is beyond its bound.

        """
        if not self._allow_unverified:
            check_use(self.manifest, use)

    def require_options(self, options: EncodeOptions) -> None:
        """Refuse arrays that the artifact does not give, before anything is done.

        Raises:
            NotExported: another layer than the last, a head's output or a part of a layer, of a
                foreign graph; or a layer is to be computed again by weights that are not there.
            NotVerified: a use that failed the artifact's verification.

        """
        for layer in options.states:
            self.require_layer(layer)
        if options.ablated or options.recomputes:
            self.require_head_outputs()
        if options.recomputes:
            self._require_weights("`patch` or `include`")
        for use in options.uses(self.manifest):
            self.require_use(use)

    def require_layer(self, layer: int) -> None:
        """Refuse a hidden state that the graph does not give, before anything is done.

        Raises:
            NotExported: another layer than the last, of a foreign graph.

        """
        if self.manifest.foreign and layer != self.config.num_hidden_layers:
            maps = self.manifest.gives_maps
            raise NotExported(not_in_graph(f"hidden state {layer}", maps=maps))

    def require_maps(self) -> None:
        """Refuse a model without attention weights, before anything is done.

        Raises:
            NotExported: what is served is a foreign graph that gives none.
            NotVerified: heads failed the artifact's verification.

        """
        self._require_own_maps()
        self.require_use("heads")

    def require_head_outputs(self) -> None:
        """Refuse a model whose heads cannot be switched off or weighed, before anything is done.

        Raises:
            NotExported: what is served is a foreign graph.
            NotVerified: heads failed the artifact's verification.

        """
        if self.manifest.foreign:
            maps = self.manifest.gives_maps
            raise NotExported(not_in_graph("what a head adds", maps=maps))
        self.require_use("heads")

    def require_decomposition(self) -> None:
        """Refuse a model whose vectors cannot be decomposed, before anything is done.

        Raises:
            NotExported: what is served is a foreign graph, or a serving-only artifact.

        """
        if self.manifest.foreign:
            maps = self.manifest.gives_maps
            raise NotExported(not_in_graph("shares of input tokens", maps=maps))
        self._require_weights("a decomposition")

    def _require_weights(self, needing: str) -> None:
        if self.manifest.serving_only:
            raise NotExported(left_out(needing))

    def attention(
        self,
        prepared: PreparedTexts,
        selection: AttentionSelection,
        convert: Convert,
        convert_norms: Convert | None = None,
    ) -> AttentionStream:
        """Attention of each text, a layer at a time.

        Args:
            prepared: the texts.
            selection: what is wanted of their maps.
            convert: applied to each array of weights in the thread that computed it.
            convert_norms: applied to each array of norms; as `convert` when None.

        Raises:
            NotExported: an ablated head or norms, of a foreign graph; or heads failed the
                artifact's verification.
            ReplyTooLarge: the maps that are in memory together are too large.

        """
        self.require_use("heads")
        if selection.ablated or selection.of_values:
            self.require_head_outputs()
        texts = attention_texts(self.manifest, self.tokenizer, prepared.texts, prepared.targets)
        scheduler, timings = prepared.scheduler, prepared.timings
        kind = GraphAttentionStream if self.manifest.foreign else AttentionStream
        stream = kind(scheduler, self.config, selection, texts, timings)
        stream.caller, stream.convert = prepared.caller, convert
        stream.convert_norms = convert_norms
        stream.finish = self.vectors.project if self.sentence.modules else None
        return stream

    async def verify(self, inputs: Sequence[Input], options: Options, caller: Caller) -> Comparison:
        """Compare every hidden state, map and pooled vector of PyTorch with those of ONNX.

        Raises:
            Overloaded: there is not enough memory or time.
            ServiceError: an engine is not available, or failed, or the deadline passed.

        """
        demand = self.tokenizing.demand(inputs, options, caller)
        await check_time(self.engines, self.manifest, demand)
        reserve(caller.reservation, self.manifest, self.tokenizing.most_tokens(inputs, options))
        texts = await self.tokenizing.tokenize(inputs, options, caller)
        return await compare_engines(self.engines, texts, self.manifest, self.vectors, caller)

    def close(self) -> bool:
        """Let running work finish; returns whether it has."""
        self.tokenizing.close()
        return self.engines.close()

    def _require_own_maps(self) -> None:
        if not self.manifest.gives_maps:
            raise NotExported(not_in_graph("attention weights"))
