"""BM42: sparse vectors of any encoder, from the [CLS] row of its attention."""
