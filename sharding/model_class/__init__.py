"""What transformers knows of a model."""
