"""Make the bytes of a tensor. Each module is one way to do so."""

from sharding.recipes import cast, dora, fp8, laid, low_rank, mxfp4, rows, stored, tolerance

__all__ = ["cast", "dora", "fp8", "laid", "low_rank", "mxfp4", "rows", "stored", "tolerance"]
