"""Word alignments between two texts, from matches of their tokens."""
