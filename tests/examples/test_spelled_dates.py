"""The trained example: pairs of spelled numbers and dates, and the checkpoint that it leaves."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

from examples.spelled_dates.sentences import Pair, cardinal, ordinal, pairs
from examples.spelled_dates.train import train
from model.checkpoint import load_checkpoint
from model.decoder.decoder import load_decoder
from model.numerics.batch import pack
from model.numerics.comparison import shift_right
from model.packing import PackedBatch


@pytest.mark.parametrize(
    ("spell", "words"),
    [
        (cardinal, {0: "zero", 9: "nine", 13: "thirteen", 20: "twenty", 84: "eighty four"}),
        (ordinal, {1: "first", 4: "fourth", 12: "twelfth", 20: "twentieth", 23: "twenty third"}),
    ],
)
def test_numbers_and_days_are_spelled(spell, words):
    assert {number: " ".join(spell(number)) for number in words} == words


def test_a_date_is_spelled_day_first():
    pair = Pair(["paid"])
    pair.add_number(17)
    pair.source.append("on")
    pair.add_date(1984, 3, 23)
    assert " ".join(pair.source) == "paid 17 on 1984 03 23"
    assert " ".join(pair.target) == "seventeen twenty third march nineteen eighty four"


def test_a_seed_gives_the_same_pairs():
    some, again = (list(itertools.islice(pairs(7), 50)) for _ in range(2))
    assert some == again


def test_what_it_trains_is_read_as_transformers_reads_it(tmp_path):
    loss = train(tmp_path, steps=2)
    assert math.isfinite(loss)
    pair = next(pairs(2))
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    texts = " ".join(pair.source), " ".join(pair.target)
    ids, labels = (np.array(tokenizer(text)["input_ids"]) for text in texts)
    assert tokenizer.unk_token_id not in {*ids, *labels}
    reference = AutoModelForSeq2SeqLM.from_pretrained(tmp_path, attn_implementation="eager").eval()
    encoder = load_checkpoint(tmp_path)
    decoder = load_decoder(tmp_path, encoder.config)
    assert decoder is not None
    read = shift_right(labels, decoder.config.start_token_id)
    batches = [PackedBatch.of(pack([(each, np.zeros_like(each))])) for each in (ids, read)]
    with torch.inference_mode():
        wanted = reference(
            input_ids=torch.tensor(ids)[None],
            labels=torch.tensor(labels)[None],
            output_attentions=True,
        )
        encoded = encoder(batches[0]).hidden_states[-1]
        found = decoder(batches[1], batches[0], encoded, output_attentions=True)
    for ours, theirs in zip(found.cross_attentions, wanted.cross_attentions, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-5)
