"""Why two texts are alike: pairs of tokens, occlusion, decomposition, matches."""
