"""Prove that what was written is what was there."""
