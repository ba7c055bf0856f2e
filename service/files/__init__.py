"""`headscope encode`: the texts of files to a file of vectors, resumable."""
