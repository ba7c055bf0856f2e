"""Arithmetic on arrays that needs only numpy: batches, pooling, scores, comparisons."""
