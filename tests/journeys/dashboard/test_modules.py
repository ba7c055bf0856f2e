"""Modules of the page, called in the browser and compared with independent oracles."""

from __future__ import annotations

import base64

import numpy as np
import pytest
import safetensors.numpy
import scipy.stats
import torch

from headscope.words import places_of, words_of

pytestmark = pytest.mark.e2e


def test_safetensors(call):
    random = np.random.default_rng(0)
    tensors = {
        "attention.0": random.random((2, 3, 5, 5), np.float32),
        "half": random.random((3, 7)).astype(np.float16),
        "ids": np.arange(-3, 4, dtype=np.int32),
        "flags": np.array([1, 0, 1], np.uint8),
        "nothing": np.zeros((0, 4), np.float32),
    }
    content = safetensors.numpy.save(tensors, {"model": "ä🙂", "layers": "[0, 5]"})
    found = call("core/safetensors", "parse", {"bytes": base64.b64encode(content).decode()})
    assert found["metadata"] == {"model": "ä🙂", "layers": "[0, 5]"}
    assert found["tensors"].keys() == tensors.keys()
    for name, tensor in tensors.items():
        assert found["tensors"][name]["shape"] == list(tensor.shape)
        expected = tensor.view(np.uint16) if name == "half" else tensor
        np.testing.assert_array_equal(found["tensors"][name]["data"], expected.ravel())
    for cut in (0, 7, 30, len(content) - 1):
        with pytest.raises(Exception, match="safetensors: "):
            call("core/safetensors", "parse", {"bytes": base64.b64encode(content[:cut]).decode()})


def test_float16(call):
    bits = np.arange(65536, dtype=np.uint16)
    found = np.array(call("core/float16", "decode", {"u16": bits.tolist()}), dtype=np.float64)
    np.testing.assert_array_equal(found, bits.view(np.float16).astype(np.float64))


def words(call, text, pieces, segments=None):
    """Return the labels of the words that pieces `(token, start, end)` form."""
    tokenized = {
        "tokens": [token for token, _, _ in pieces],
        "offsets": [[start, end] for _, start, end in pieces],
        "segments": segments or [0] * len(pieces),
        "texts": text if isinstance(text, list) else [text],
    }
    return [(unit["label"], unit["tokens"]) for unit in call("core/words", "wordUnits", tokenized)]


@pytest.mark.parametrize(("size", "most"), [(7, 3), (97, 96), (130, 96)])
def test_small_maps_are_pooled_as_the_service_pools(call, size, most):
    weights = np.random.default_rng(2).random((size, size), np.float32)
    given = {"f32": weights.ravel().tolist()}
    found = call("core/matrix", "pooled", given, [size, size], [most, most])
    pooled = torch.nn.AdaptiveMaxPool2d(most)(torch.from_numpy(weights)[None])[0]
    np.testing.assert_allclose(found, pooled.numpy().ravel(), rtol=1e-6)


def test_a_part_of_a_signed_map_is_pooled_by_its_strongest(call):
    """Rows are smaller than tiles, columns larger."""
    values = [0.1, -0.9, 0.2, 0.3, 0.0, 0.4, -0.5, 0.6]
    found = call("core/matrix", "pooled", {"f32": values}, [2, 4], [4, 2], [0, 1, 2, 3])
    assert found == pytest.approx([-0.9, 0.3, -0.9, 0.3, -0.5, 0.6, -0.5, 0.6])


@pytest.mark.parametrize(
    ("detail", "said"),
    [
        (
            "inputs[0] has 602 tokens; at most 512 fit (`truncate` cuts it)",
            "The text has 602 tokens; at most 512 fit.",
        ),
        (
            "inputs[0] has 50000 characters; at most 32768 are taken (`truncate` cuts it)",
            "The text has 50000 characters. Limit: 32,768 characters.",
        ),
        (
            "it would take about 33.4 s, and 30.0 s are left of its time",
            "Too long for the 30 s limit: shorten the text.",
        ),
        ("the queue is full", "The queue is full."),
        (
            'pairs are shares of means, and this is pooling "cls": ask for pooling "mean", or '
            "leave pairs out of `include`",
            'Pairs are shares of means, and this is pooling "cls".',
        ),
        (
            "inputs[0][1] has 300 tokens: its decomposition takes 9 bytes of memory, more than 8 "
            "(--max-bytes-in-flight); texts of up to 250 tokens fit: send shorter ones, or leave "
            '"decomposition" out of `include`',
            "The text has 300 tokens: its decomposition takes 9 bytes of memory, more than 8; "
            "texts of up to 250 tokens fit: send shorter ones.",
        ),
        (
            "/explain does not explain ORG/NAME: ask /rank for the scores of a reranker, or serve "
            "an embedding model",
            "/explain does not explain ORG/NAME: serve an embedding model.",
        ),
    ],
)
def test_errors_are_put_into_words_for_people(call, detail, said):
    assert call("ui/problems", "worded", detail) == said


def test_words(call):
    cls, sep = ("[CLS]", 0, 0), ("[SEP]", 0, 0)
    assert words(
        call,
        "🙂 don't!",
        [cls, ("🙂", 0, 1), ("don", 2, 5), ("'", 5, 6), ("t", 6, 7), ("!", 7, 8), sep],
    ) == [("[CLS]", [0]), ("🙂", [1]), ("don't", [2, 3, 4]), ("!", [5]), ("[SEP]", [6])]
    assert words(call, "東京に", [("東", 0, 1), ("京", 1, 2), ("に", 2, 3)]) == [
        ("東", [0]),
        ("京", [1]),
        ("に", [2]),
    ]
    assert words(call, "...a", [(".", 0, 1), (".", 1, 2), (".", 2, 3), ("a", 3, 4)]) == [
        (".", [0]),
        (".", [1]),
        (".", [2]),
        ("a", [3]),
    ]
    assert words(call, " the cat", [("▁the", 0, 4), ("▁c", 4, 6), ("at", 6, 8)]) == [
        (" the", [0]),
        (" cat", [1, 2]),
    ]
    pair = [cls, ("ab", 0, 2), sep, ("c", 0, 1), ("##d", 1, 2), sep]
    assert words(call, ["ab", "cd"], pair, [0, 0, 0, 1, 1, 1]) == [
        ("[CLS]", [0]),
        ("ab", [1]),
        ("[SEP]", [2]),
        ("cd", [3, 4]),
        ("[SEP]", [5]),
    ]


def test_tokens_of_bytes_and_of_whitespace_can_be_read(call):
    """Tokens as GPT-2's, Llama's and BERT's tokenizers write them."""
    text = " an ähnliches\n\n  🙂 Ġ x"
    pieces = [
        ("Ġan", 0, 3),
        ("ĠÃ¤", 4, 5),
        ("hnliches", 5, 13),
        ("ĊĊ", 13, 15),
        ("Ġ", 15, 16),
        ("ĠðŁ", 16, 18),
        ("ĻĤ", 17, 18),
        ("<0xC4>", 19, 20),
        ("Ġ", 19, 20),
        ("##x", 21, 22),
        ("▁", 20, 21),
        ("[SEP]", 0, 0),
    ]
    tokenized = {
        "tokens": [token for token, _, _ in pieces],
        "offsets": [[start, end] for _, start, end in pieces],
        "segments": [0] * len(pieces),
        "texts": [text],
    }
    labels = [
        unit["label"]
        for unit in call("core/words", "unitsOf", tokenized, {"words": False, "bare": False})
    ]
    assert labels[:7] == ["an", "ä", "hnliches", "⏎⏎", "␣", "🙂", "🙂"]
    assert labels[7:] == ["Ġ", "Ġ", "##x", "␣", "[SEP]"]


@pytest.mark.parametrize("values", [[1.0, 2.0, 2.0, 5.0, 0.5], [3.0, 1.0, 2.0, -4.0, 1.0]])
def test_rank_correlation(call, values):
    others = [0.1, 0.4, 0.4, -0.2, 0.3]
    found = call("core/correlation", "spearman", values, others)
    assert found == pytest.approx(scipy.stats.spearmanr(values, others).statistic)
    assert call("core/correlation", "spearman", values, [1.0] * 5) is None


@pytest.mark.parametrize(
    "text",
    [
        "The animal didn't cross the street because it was too tired.",
        "“State-of-the-art” tokenizers (e.g. WordPiece) cost $3.14 — naïvely!",
        "東京タワー has 333 m; それは高い。 ¿Qué? C++/C#, a_b, x@y.z",
        "e\u0301lan 🙂🙃 ...!? ##not a piece #tag",
    ],
)
def test_words_are_the_notebooks(call, api, text):
    [result] = api.post("/attention", json={"inputs": text, "layers": [0]}).json()["results"]
    pieces = [
        (token, *offset) for token, offset in zip(result["tokens"], result["offsets"], strict=True)
    ]
    offsets = [(start, end) for _, start, end in pieces]
    expected = words_of(result["tokens"], offsets, result["segment_ids"], [text])
    assert [tokens for _, tokens in words(call, text, pieces)] == [w.tokens for w in expected]


@pytest.mark.parametrize(
    ("tokens", "offsets", "segments", "texts"),
    [
        ("<s> a b </s> </s> c </s>", [0, 1, (2, 3), 0, 0, 1, 0], [0] * 7, ["a b", "c"]),
        ("<s> </s> </s> c </s>", [0, 0, 0, 1, 0], [0] * 5, ["", "c"]),
        ("<s> a </s>", [0, 1, 0], [0] * 3, ["a", ""]),
        ("[CLS] a [SEP] c [SEP]", [0, 1, 0, 1, 0], [0, 0, 0, 1, 1], ["a", "c"]),
        ("ab cd ef gh", [(0, 2), (2, 4), (0, 2), (2, 4)], [0] * 4, ["abcd", "efgh"]),
        ("🙂 gh", [1, (3, 5)], [0] * 2, ["🙂", "   gh"]),
        ("<s> a </s> </s>", [0, 1, 0, 0], [0] * 4, ["a"]),
    ],
)
def test_places_are_the_notebooks(call, tokens, offsets, segments, texts):
    """This also holds if both texts of a pair have segment 0, as in RoBERTa."""
    spans = [span if isinstance(span, tuple) else (0, span) for span in offsets]
    text = {"tokens": tokens.split(), "offsets": spans, "segments": segments, "texts": texts}
    assert call("core/words", "placesOf", text) == places_of(tokens.split(), spans, segments, texts)


def test_state_survives_its_address(call):
    state = call("core/state", "read", "")
    assert call("core/state", "write", state) == "#"
    changed = {
        **state,
        "a": "x & y = #1 + 50% 🙂\n'quoted'",
        "b": "",
        "view": "ablation",
        "sort": "entropy",
        "up": True,
        "from": 0,
        "to": 3,
        "pins": [4, 0],
        "off": ["0.2", "5.11"],
        "min": 0.25,
        "zoom": [2.5, 0, 3.75],
        "part": "ba",
        "live": True,
    }
    address = call("core/state", "write", changed)
    assert call("core/state", "read", address) == changed


@pytest.mark.parametrize(
    "address",
    [
        "#min=NaN&layer=-1&zoom=1&up=yes&view=x&pins=1,x",
        "#sort=constructor&up=constructor&best=toString&view=__proto__&why=valueOf&part=has",
        "#layer=10000&head=1.5&from=1000000&min=1.01&zoom=64.1,0,0&cross=1.2.3&off=1.2,3",
        "#zoom=2,0&pins=1.5&measure=Weights&unknown=1",
    ],
)
def test_what_is_out_of_range_is_left_out(call, address):
    assert call("core/state", "read", address) == call("core/state", "read", "")


def test_the_last_readable_value_of_a_field_counts(call):
    assert call("core/state", "read", "#head=3&head=4&head=x")["head"] == 4


@pytest.mark.parametrize(
    ("tokens", "ends", "names"),
    [
        ("[CLS] a [SEP]", [0, 1, 0], ["[CLS] share", "[SEP] share", "[CLS] sink"]),
        ("<s> a </s>", [0, 1, 0], ["<s> share", "</s> share", "<s> sink"]),
        ("a b", [1, 1], ["First-token share", "Separator share", "first-token sink"]),
    ],
)
def test_shares_are_named_after_the_special_tokens_of_the_text(call, tokens, ends, names):
    text = {"tokens": tokens.split(), "offsets": [[0, end] for end in ends]}
    found = call("core/statistics", "namesFor", text)
    statistics = [found["statistics"][name]["name"] for name in ("cls", "sep")]
    assert [*statistics, found["labels"]["cls"]["name"]] == names


def test_cells_of_a_narrow_map_can_be_read(call):
    def layout(rows, columns):
        units = [[{"label": f"token {i}"} for i in range(count)] for count in (rows, columns)]
        options = {"zoom": [1, 0, 0], "pins": [], "small": False}
        names = {"rows": units[0], "columns": units[1]}
        return call("draw/heatmap", "layoutOf", names, options, 600)

    square, long, high = layout(16, 16), layout(7, 200), layout(200, 7)
    assert square["cell"] == square["tall"]
    assert long["tall"] == high["cell"] == 22
    for side, found in ((long["cell"], long), (high["tall"], high)):
        assert side * 200 == pytest.approx(600 - found["left"] - 4)


def test_titles_of_files_are_broken_into_lines_that_fit(call):
    title = "layer 3 head 1 · a-model · " + "some words of a text " * 6 + "x" * 90
    lines = call("draw/scene", "linesOf", title, 300)
    assert len(lines) > 3
    assert "".join(lines).replace(" ", "") == title.replace(" ", "")
    assert all(call("draw/canvas-and-svg", "widthOf", line, 15, True) <= 300 for line in lines)


@pytest.mark.parametrize("values", [[3.0], [0.5, 0.5], [1.0, 2.0, 4.0, 8.0, 8.0]])
def test_histogram(call, values):
    found = call("draw/histogram", "histogramOf", values)
    counts, edges = np.histogram(values, bins=16)
    assert (found["least"], found["most"]) == (min(values), max(values))
    assert found["median"] == np.median(values)
    if edges[0] == min(values):  # numpy puts equal values into the middle of a range it chooses
        assert found["counts"] == counts.tolist()
    assert sum(found["counts"]) == len(values)
