"""`POST /predict` with labels of the request, for pictures and a model with two towers."""

from __future__ import annotations

from fastapi import Request
from starlette.responses import Response

from service.api.drop_in.embedding import check_given
from service.api.tei.predict_fields import PREDICTION_BYTES, PredictRequest, predictions
from service.api.wire.reserved import reserve
from service.api.wire.route import caller_of, model_of
from service.errors import Unprocessable
from service.inference.tasks.task_heads import sigmoid, softmax
from service.inference.tasks.zero_shot import ZeroShot, label_texts
from service.inference.tokenization.inputs import Picture


async def by_labels(body: PredictRequest, request: Request) -> Response:
    """Score pictures by the labels of the request.

    Raises:
        Unprocessable: the model has no two towers, labels are missing, or an input is no picture.

    """
    model, labels, pictures = model_of(request), body.labels, body.inputs.texts
    dual = model.artifact.manifest.dual
    if model.vision is None or dual is None:
        raise Unprocessable("labels: this model has labels of its own, or none: leave them out")
    if labels is None:
        raise Unprocessable("labels: this model has none of its own: name those to choose from")
    if body.aggregation is not None:
        raise Unprocessable("aggregation applies to token labels, not to `labels`")
    for index, given in enumerate(pictures):
        if not isinstance(given, Picture):
            raise Unprocessable(f"inputs[{index}] is no picture: `labels` are for pictures")
    check_given(pictures, "inputs")
    texts, caller = label_texts(labels, body.template), caller_of(request)
    towers = model.vision.inference, model.inference
    named = await towers[1].prepare(
        texts, body.options(request, naming="labels[{}]"), caller, "encode"
    )
    seen = await towers[0].prepare(pictures, body.options(request), caller, "encode")
    size = len(pictures) * sum(PREDICTION_BYTES + 2 * len(label) for label in labels)
    held = size + 4 * model.inference.vectors.size() * (len(pictures) + len(labels))
    with reserve(request, size, held=held, advice=None) as reply:
        logits = await ZeroShot(dual, towers, (seen, named)).logits()
        scores = softmax if dual.kind == "clip" else sigmoid

        def content() -> object:
            results = [
                predictions(row, labels, row if body.raw_scores else scores(row))[: body.top_k]
                for row in logits
            ]
            return results if body.inputs.batch else results[0]

        return await reply.json(content, seen.timings + named.timings)
