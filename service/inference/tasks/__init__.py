"""What a model has beside vectors: labels, spans, late interaction."""
