"""Explanations of the client, from a reply in the service's own format."""

from __future__ import annotations

import json

import httpx
import numpy as np
import pytest

from headscope import AsyncClient, Client, HeadscopeError, InvalidReply, explanation
from headscope.reading import read_info
from tests.clients.python.fake import INFO, URL

ONE, OTHER = "the grey cats", "a cat"
TOKENS = (
    (
        ["[CLS]", "the", "grey", "cat", "##s", "[SEP]"],
        [(0, 0), (0, 3), (4, 8), (9, 12), (12, 13), (0, 0)],
    ),
    (["[CLS]", "a", "cat", "[SEP]"], [(0, 0), (0, 1), (2, 5), (0, 0)]),
)
PAIRS = np.arange(24, dtype=np.float32).reshape(6, 4) / 100


def result(**more):
    texts = [
        {
            "tokens": tokens,
            "token_ids": list(range(len(tokens))),
            "offsets": offsets,
            "truncated": False,
        }
        for tokens, offsets in TOKENS
    ]
    return {"similarity": 0.5, "texts": texts, **more}


def content(*results):
    return json.dumps({"model": "m", "backend": "onnx", "results": results, "usage": {}}).encode()


def test_the_largest_shares_of_words():
    found = result(pairs=PAIRS.tolist(), completeness_error=1e-8, agreement={"pairs": None})
    (read,) = explanation.read_explanations(content(found), [[ONE, OTHER]])
    shares = read.shares()
    assert shares.shape == (5, 4)
    assert shares[3].tolist() == pytest.approx((PAIRS[3] + PAIRS[4]).tolist())
    assert shares.sum() == pytest.approx(PAIRS.sum())
    best = [(pair.one.text, pair.other.text) for pair in read.top_pairs(2)]
    assert best == [("cats", "cat"), ("cats", "a")]
    assert read.top_pairs(1)[0].share == pytest.approx(0.14 + 0.18)
    assert len(read.top_pairs(99)) == 3 * 2
    with pytest.raises(HeadscopeError, match="no decomposition: request it"):
        read.top_pairs(method="decomposition")
    assert read.agreement == {"pairs": None}
    assert read.occlusion is None


def test_losses_and_matches_are_read():
    found = result(
        occlusion=[[0.1] * 6, [0.2] * 4],
        matches=[{"query": 1, "document": 2, "score": 0.5}],
        heads=[[0.25, -0.5, 1.0]],
    )
    (read,) = explanation.read_explanations(content(found), [[ONE, OTHER]])
    assert [len(losses) for losses in read.occlusion] == [6, 4]
    assert read.matches == (explanation.TokenMatch(1, 2, 0.5),)
    assert read.heads.tolist() == [[0.25, -0.5, 1.0]]


def test_values_that_were_not_computed_are_nan():
    one = {"start": 4, "end": 13, "tokens": [2, 3, 4]}
    spans = [[one], [{"start": 0, "end": 1, "tokens": [1]}]]
    found = result(
        occlusion=[[0.25], [None]],
        spans=spans,
        decomposition=None,
        decomposition_error=None,
        heads=[[0.25, None]],
        partial=True,
        computed={"occlusion": 1, "decomposition": 0, "heads": 1},
    )
    (read,) = explanation.read_explanations(content(found), [[ONE, OTHER]])
    assert read.partial
    assert read.computed["occlusion"] == 1
    assert read.spans[0] == (explanation.OccludedSpan(4, 13, (2, 3, 4)),)
    assert read.occlusion[0].tolist() == [0.25]
    assert np.isnan(read.occlusion[1]).all()
    assert np.isnan(read.heads[0, 1])
    with pytest.raises(HeadscopeError, match="the deadline passed before the decomposition"):
        read.top_pairs(method="decomposition")
    call = explanation.explain([(ONE, OTHER)], include=["occlusion"], spans="words", top=3)
    assert call.body == {"include": ["occlusion"], "spans": "words", "top": 3}


def test_pairs_alone_are_asked_for():
    with pytest.raises(TypeError, match=r"inputs\[0\] is not a pair of texts or pictures"):
        explanation.explain(["a text"])
    call = explanation.explain([(ONE, OTHER)], include=["occlusion"])
    assert (call.path, call.body) == ("/explain", {"include": ["occlusion"]})
    info = read_info(json.dumps(INFO | {"layers": 6, "heads": 12}).encode())
    more = explanation.explain([(ONE, OTHER)], include=["occlusion", "heads"])
    assert more.weigh(100, info) >= call.weigh(100, info) + 72 * 10


def test_a_text_and_a_picture():
    """A class token and 1 × 2 patches; the share of a word and a patch."""
    found = result(
        decomposition=[[0.0, 0.1, 0.2]] * 6,
        occlusion=[[0.5], [0.25, 0.125]],
        spans=[
            [{"start": 4, "end": 13, "tokens": [2, 3, 4]}],
            [{"rows": [0, 1], "columns": [n, n + 1], "tokens": [n + 1]} for n in (0, 1)],
        ],
    )
    found["texts"][0]["tower"] = "text"
    found["texts"][1] = {
        "tokens": ["[CLS]", "0,0", "0,1"],
        "token_ids": [1, 0, 0],
        "offsets": [(0, 0)] * 3,
        "truncated": False,
        "grid": [1, 2],
        "size": [20, 10],
        "crop": [0.0, 0.0, 20.0, 10.0],
        "tower": "vision",
    }
    call = explanation.explain([(ONE, b"a file")])
    assert call.written(range(1)) == {"inputs": [[ONE, {"image": "YSBmaWxl"}]]}
    assert (call.texts(0), [one.data for one in call.pictures(0)]) == (["", ONE], [b"a file"])
    (read,) = explanation.read_explanations(content(found), call.inputs)
    text, picture = read.texts
    assert (text.tower, picture.tower, picture.grid, picture.size) == (
        *("text", "vision"),
        *((1, 2), (20, 10)),
    )
    assert picture.texts == ("a picture of 6 bytes",)
    assert read.spans[1][1] == explanation.OccludedBlock((0, 1), (1, 2), (2,))
    (best,) = read.top_pairs(1, "decomposition")
    assert (best.one.text, best.other.text) == ("cats", "0,1")
    assert best.share == pytest.approx(0.4)
    assert "0,1" in read._repr_html_()


@pytest.mark.anyio
async def test_both_clients_have_it():
    def answer(request):
        if request.url.path == "/info":
            return httpx.Response(200, json=INFO)
        asked = json.loads(request.content)["inputs"]
        return httpx.Response(200, content=content(*[result() for _ in asked]))

    pairs = [(ONE, OTHER)] * 3
    with Client(URL, transport=httpx.MockTransport(answer)) as client:
        assert len(client.explain(pairs)) == 3
    async with AsyncClient(URL, transport=httpx.MockTransport(answer)) as client:
        assert [one.similarity for one in await client.explain(pairs)] == [0.5] * 3


def test_another_matrix_than_of_these_tokens_is_no_reply():
    def answer(request):
        if request.url.path == "/info":
            return httpx.Response(200, json=INFO)
        return httpx.Response(200, content=content(result(pairs=[[1.0]])))

    with (
        Client(URL, transport=httpx.MockTransport(answer)) as client,
        pytest.raises(InvalidReply),
    ):
        client.explain([(ONE, OTHER)])
