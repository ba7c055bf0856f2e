"""Outputs of task heads: labels, spans, sparse vectors, late interaction."""
