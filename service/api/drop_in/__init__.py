"""Code that the dialects of other services share: vectors, ranks, documents, reply budget."""
