"""Find out what transformers knows about a model."""
