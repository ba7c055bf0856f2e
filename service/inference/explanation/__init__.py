"""Explanations of two texts' similarity: token pairs, occlusion, decomposition, matches."""
