"""Recognise a file that is something else than its name says. Pure."""

import re

POINTER_BYTES = 1024
"""A pointer of Git LFS is shorter (its specification, "The Pointer")."""

USUAL_POINTER = range(120, 200)
"""The bytes of a pointer with nothing but version, SHA-256 and size."""

_KINDS = (
    (
        rb"version https?://[\w.-]+/spec/",
        "a pointer of Git LFS, and not the file itself",
        "Run `git lfs pull` in its folder, or download the file.",
    ),
    (rb"GGUF", "a GGUF file", "Give it the ending .gguf. To get safetensors, use the repo that it was made from."),
    (rb"PK\x03\x04", "a file of torch.save", "Give it the ending .bin, as in pytorch_model.bin."),
    (
        rb"\s*<(?i:!doctype|html|\?xml)",
        "a web page",
        "Download the file again. Sign in, if its repo needs that.",
    ),
    (rb"\s*[{\[]", "a JSON file", "Download the weights again, or give the file its own name."),
)
"""How each kind of file starts, what it is, and what to do."""


def what_is(start: bytes, expected: str = "safetensors") -> tuple[str, str]:
    """Return what a file is that starts with these bytes, and what to do. Both are "" if it is none of these.

    A file that is `expected` to be one of torch.save is not told that it is.

    >>> what_is(b"version https://git-lfs.github.com/spec/v1\\noid sha256:00")[0]
    'a pointer of Git LFS, and not the file itself'
    """
    kinds = ((what, hint) for form, what, hint in _KINDS if re.match(form, start))
    return next((kind for kind in kinds if expected not in kind[0]), ("", ""))


def is_pointer(start: bytes) -> bool:
    """Return whether a file that starts with these bytes is a pointer of Git LFS."""
    return re.match(_KINDS[0][0], start) is not None
