"""A small encoder–decoder that spells dates out, trained on pairs whose alignment is known."""
