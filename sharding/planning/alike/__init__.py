"""Give a checkpoint the names, shapes and form of another, with its own numbers."""
