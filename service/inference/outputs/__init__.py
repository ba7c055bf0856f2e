"""Outputs of texts, each declared in one file; `declared.OUTPUTS` lists them."""
