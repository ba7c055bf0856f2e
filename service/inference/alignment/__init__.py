"""Word alignments of two texts: words, matches of their tokens, and pairs of words."""
