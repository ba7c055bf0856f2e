"""Pictures of requests: decoding, preprocessing, and their place in the memory and time budgets."""
