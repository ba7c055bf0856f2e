"""tritonclient over HTTP: JSON and binary tensors, in and out."""

import numpy as np
from asking import KEY, LONG, MODEL, TEXTS, URL, failure, tell
from tritonclient.http import InferenceServerClient, InferInput, InferRequestedOutput

KEYED = {"Authorization": f"Bearer {KEY}"}
client = InferenceServerClient(URL.removeprefix("http://"), concurrency=4)


def given(texts: list[str], shape: list[int], *, binary: bool) -> InferInput:
    array = np.array(texts, dtype=object).reshape(shape)
    return InferInput("text", shape, "BYTES").set_data_from_numpy(array, binary_data=binary)


def infer(texts: list[str], *names: str, binary: bool, **more: object) -> dict:
    shape = [len(texts), 1] if binary else [len(texts)]
    outputs = [InferRequestedOutput(name, binary_data=binary) for name in names]
    asked = {"outputs": outputs or None, "headers": dict(KEYED), **more}
    result = client.infer(MODEL, [given(texts, shape, binary=binary)], **asked)
    return {name: result.as_numpy(name) for name in names or ["pooled"]}


names = ("attention", "attention_shapes", "cu_seqlens", "embeddings", "tokens")
layers = {"parameters": {"layers": "1", "heads": "0,1"}}
by_form = [infer(TEXTS, *names, binary=binary, **layers) for binary in (True, False)]
for form in by_form:
    form["tokens"] = [t if isinstance(t, str) else t.decode() for t in form["tokens"].tolist()]
running = [
    client.async_infer(MODEL, [given(TEXTS, [len(TEXTS)], binary=True)], headers=dict(KEYED))
    for _ in range(4)
]
metadata = client.get_model_metadata(MODEL, headers=dict(KEYED))
tell(
    ready=[
        client.is_server_live(),
        client.is_server_ready(),
        client.is_model_ready(MODEL, headers=dict(KEYED)),
        client.is_model_ready(MODEL, "1", headers=dict(KEYED)),
        not client.is_model_ready("nothing", headers=dict(KEYED)),
    ],
    extensions=client.get_server_metadata(headers=dict(KEYED))["extensions"],
    outputs=[output["name"] for output in metadata["outputs"]],
    vectors=infer(TEXTS, binary=True)["pooled"],
    others=[infer(TEXTS, "pooled", binary=False)["pooled"]]
    + [one.get_result().as_numpy("pooled") for one in running],
    binary=by_form[0],
    json=by_form[1],
    error=failure(lambda: infer([LONG], binary=True)),
    refused=failure(client.get_server_metadata),
)
