"""The script of the trained example: what it leaves is a checkpoint that Headscope reads."""

from __future__ import annotations

import math

import numpy as np
import torch
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

from examples.spelled_dates.sentences import pairs
from examples.spelled_dates.train import train
from model.checkpoint import load_checkpoint
from model.decoder.decoder import load_decoder
from model.numerics.batch import pack
from model.numerics.comparison import shift_right
from model.packing import PackedBatch


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
