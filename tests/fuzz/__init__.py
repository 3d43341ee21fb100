"""Inputs found by coverage, for what reads bytes that anybody may have written."""
