"""Attention maps, computed layer by layer and reduced in the computing thread."""
