"""Whether answers are given, and right: probes, golden texts, live verification."""
