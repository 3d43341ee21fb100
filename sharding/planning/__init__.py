"""Decide which tensor goes where."""
