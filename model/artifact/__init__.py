"""Format of the artifact folder: manifest, signatures of graphs, integrity, and settings."""
