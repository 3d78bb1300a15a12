"""`tenure top`: one fleet live in a terminal, redrawn as it changes."""
