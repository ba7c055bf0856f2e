"""Outputs of texts, each a subclass of `Output`; `declared.OUTPUTS` lists them."""
