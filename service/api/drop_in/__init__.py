"""What several of other services' dialects share: vectors, ranks, documents, bytes held."""
