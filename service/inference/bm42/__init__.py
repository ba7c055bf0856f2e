"""Sparse vectors of any encoder: the [CLS] row of its attention, by word."""
