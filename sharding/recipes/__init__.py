"""How the bytes of a tensor are made, one way a room."""

from sharding.recipes import cast, fp8, laid, mxfp4, stored

__all__ = ["cast", "fp8", "laid", "mxfp4", "stored"]
