"""Measure and predict what it costs to load a checkpoint."""
