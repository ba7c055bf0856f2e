"""`headscope encode`: encode the texts of files into a file of vectors, resumably."""
