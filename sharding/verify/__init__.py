"""Check that a copy holds the same tensors as its source."""
