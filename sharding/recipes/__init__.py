"""Make the bytes of a tensor. Each module is one way to do so."""

from sharding.recipes import cast, laid, low_rank, quantized, stored, tolerance

__all__ = ["cast", "laid", "low_rank", "quantized", "stored", "tolerance"]
