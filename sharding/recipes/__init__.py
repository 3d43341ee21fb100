"""Make the bytes of a tensor. Each module is one way to do so."""

from sharding.recipes import cast, fp8, laid, mxfp4, stored

__all__ = ["cast", "fp8", "laid", "mxfp4", "stored"]
