"""The hash of tensors: BLAKE3, as hard to forge as SHA-256 and several times as fast.

Files have their SHA-256 instead, by which the Hub knows them.
"""

from blake3 import blake3

new_tensor_hash = blake3
