"""Pictures of a model."""
