"""Inference: texts or token ids in, arrays and timings out, without knowledge of JSON or HTTP."""
