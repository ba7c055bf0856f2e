"""A small encoder–decoder that spells dates out."""
