"""Make the bytes of a tensor. Each module is one way to do so."""

from sharding.recipes import cast, dora, laid, low_rank, quantized, stored, tolerance

__all__ = ["cast", "dora", "laid", "low_rank", "quantized", "stored", "tolerance"]
