"""Notebook helper on a real server, and BertViz's views, against the API's own JSON."""

from __future__ import annotations

import ast
import asyncio
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import torch

from headscope import AsyncClient, Client, Reply, attention

pytestmark = pytest.mark.e2e

ROOT = Path(__file__).resolve().parents[2]
TEXT = "The animal didn't cross the street because it was too tired."
PAIR = ('What does "it" mean?', "The animal, unsurprisingly.")
ATOL = 1e-6
"""Absolute tolerance: float32 as JSON's decimals, and computed twice."""


def by_json(client: httpx.Client, text: Any, **fields: Any) -> Any:
    """Return the API's reply to one text, and its result."""
    reply = client.post("/attention", json={"inputs": [text]} | fields)
    assert reply.status_code == 200, reply.text
    return reply.json(), reply.json()["results"][0]


def shown(page: Any) -> dict[str, Any]:
    """Return the data in the script of a BertViz view."""
    start = page.data.index("const params = ") + len("const params = ")
    return json.JSONDecoder().raw_decode(page.data[start:])[0]


def view(reply: Reply, name: str, **options: Any) -> dict[str, Any]:
    with pytest.warns(ResourceWarning, match=f"{name}.js"):  # BertViz leaves it open
        return shown(getattr(reply, name)(html_action="return", **options))


@pytest.mark.parametrize("name", ["head_view", "model_view"])
def test_views_of_a_text(client, server, name):
    _, result = by_json(client, TEXT)
    params = view(attention(server, TEXT), name)
    (only,) = params["attention"]
    np.testing.assert_allclose(only["attn"], result["attention"], atol=ATOL)
    assert only["left_text"] == only["right_text"] == result["tokens"]
    assert params["include_layers"] == list(range(6))


@pytest.mark.parametrize("name", ["head_view", "model_view"])
def test_views_of_a_pair(client, server, name):
    _, result = by_json(client, PAIR, layers=[1])
    everything, *parts = view(attention(server, PAIR, layers=[1]), name)["attention"]
    maps = np.array(result["attention"])
    np.testing.assert_allclose(everything["attn"], maps, atol=ATOL)
    first = slice(0, result["segment_ids"].index(1))
    second = slice(first.stop, None)
    quadrants = {"A -> A": (first, first), "B -> B": (second, second)}
    quadrants |= {"A -> B": (first, second), "B -> A": (second, first)}
    assert len(parts) == len(quadrants)
    for part in parts:
        rows, columns = quadrants[part["name"].replace("Sentence ", "")]
        np.testing.assert_allclose(part["attn"], maps[:, :, rows, columns], atol=ATOL)
        assert part["left_text"] == result["tokens"][rows]
        assert part["right_text"] == result["tokens"][columns]


def test_the_documented_lines(server):
    text = (ROOT / "docs" / "notebook.md").read_text(encoding="utf-8")
    blocks = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    found: dict[str, Any] = {}
    shown = []
    for block in blocks:
        code = block.replace("http://localhost:8000", server)
        for statement in ast.parse(code).body:
            source = ast.unparse(statement)
            if isinstance(statement, ast.Expr) and "_view" not in source:
                shown.append(eval(source, found))
            elif "_view" in source:
                with pytest.warns(ResourceWarning):  # a file that BertViz leaves open
                    exec(source, found)
            else:
                exec(source, found)
    tokens, shape, weight, entropy, label, rollout, second, turned = shown
    assert tokens[:6] == ["[CLS]", "the", "animal", "didn", "'", "t"]
    assert shape == (6, 12, 16, 16)
    assert round(float(weight), 2) == 0.68
    assert entropy.shape == (2, 12)
    assert label == "previous token"
    assert rollout.shape == (11, 11)
    assert second == 6
    assert 0 < turned < 1


def test_the_documented_lines_of_the_client(server, transformers_reference):
    text = (ROOT / "docs" / "client.md").read_text(encoding="utf-8")
    found: dict[str, Any] = {}
    for block in re.findall(r"```python\n(.*?)```", text, re.DOTALL):
        exec(block.replace("http://localhost:8000", server), found)
    similar = found["vectors"] @ found["vectors"].T
    np.testing.assert_array_equal(similar[0].round(1), np.float32([1, 0.5, 0]))
    np.testing.assert_allclose(np.concatenate(found["rows"]), found["vectors"], atol=1e-5)
    assert found["vectors"].shape == (3, 384)
    reply, map_ = found["reply"], found["map_"]
    assert reply.tokens[:4] == ["[CLS]", "the", "fe", "##line"]
    assert reply.embeddings.shape == (10, 384)
    assert map_.weights.shape == (1, 1, 9, 9)
    assert [error.index for error in found["refused"]] == [1]
    assert f"# '{found['refused'][0]}'" in text
    tokenizer, model = transformers_reference
    with torch.no_grad():
        batch = tokenizer(reply.texts[0], return_tensors="pt")
        expected = model(**batch, output_hidden_states=True).hidden_states[-2][0]
    np.testing.assert_allclose(reply.embeddings, expected, atol=1e-4)


def test_the_documented_table_of_an_explanation(server, capsys):
    pytest.importorskip("pandas")
    text = (ROOT / "docs" / "client.md").read_text(encoding="utf-8")
    (code,) = re.findall(r"```python\n(def shares.*?)```", text, re.DOTALL)
    found: dict[str, Any] = {}
    exec(code, found)
    with Client(server) as client:
        shares = found["shares"](client)
        similarity = client.score("A man plays a guitar.", ["Someone plays an instrument."])
    np.testing.assert_allclose(shares.groupby("text").sum(), [similarity[0]] * 2, atol=1e-5)
    (start, end), line = re.findall(r"# (Explanation.*)…(.*)", code)[0], capsys.readouterr().out
    assert line.startswith(start)
    assert line.endswith(f"{end}\n")


def test_a_long_list_is_what_each_text_alone_is(client, server):
    """The list has more texts than one request takes, over real connections of both clients."""
    texts = [f"{'a ' * (i % 3)}{i}" for i in range(520)]
    with Client(server) as one:
        found = one.embed(texts)

    async def run() -> Any:
        async with AsyncClient(server, max_in_flight=2) as other:
            return await other.embed(texts)

    np.testing.assert_allclose(asyncio.run(run()), found, atol=1e-5)
    for i in (0, 1, 511, 512, 519):
        body = {"inputs": texts[i], "outputs": ["pooled"]}
        [result] = client.post("/encode", json=body).json()["results"]
        np.testing.assert_allclose(found[i], result["pooled"], atol=1e-5)


def test_nothing_heavy_is_needed_to_fetch():
    code = "import sys, headscope; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = {name.partition(".")[0] for name in done.stdout.split()}
    assert not loaded & {
        "torch",
        "transformers",
        "bertviz",
        "IPython",
        "pandas",
        "service",
        "model",
    }
