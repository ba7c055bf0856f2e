"""Maps of heads, a layer at a time, and what is taken of them where they are computed."""
