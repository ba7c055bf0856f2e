"""Texts or token ids in, arrays and timings out; knows no wire form."""
