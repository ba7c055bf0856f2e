"""Tokenisation of texts, pairs and token ids within limits of size, memory and time."""
