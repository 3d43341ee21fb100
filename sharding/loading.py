"""Write the lines that load a checkpoint with the library that it is for. Pure."""

import re

from sharding.values import Library

_CLASS = re.compile(r"[A-Za-z_]\w{0,100}", re.ASCII)


def loading_code(place: str, library: Library, architecture: str | None, variant: str = "") -> str:
    """Return code that loads what is at `place`, a repo or a folder; `architecture` is the class that it names.

    >>> print(loading_code("me/small", "diffusers", "StableDiffusionPipeline", "fp16"))
    from diffusers import DiffusionPipeline
    <BLANKLINE>
    pipeline = DiffusionPipeline.from_pretrained('me/small', variant='fp16')
    """
    named = architecture if architecture and _CLASS.fullmatch(architecture) else None
    with_variant = f", variant={variant!r}" if variant else ""
    match library:
        case "transformers":
            model = named or "AutoModel"
            call = f'model = {model}.from_pretrained({place!r}{with_variant}, dtype="auto")'
        case "diffusers":
            model = named if named and not named.endswith("Pipeline") else "DiffusionPipeline"
            result = "pipeline" if model == "DiffusionPipeline" else "model"
            call = f"{result} = {model}.from_pretrained({place!r}{with_variant})"
        case "sentence-transformers":
            model = "SentenceTransformer"
            call = f"model = SentenceTransformer({place!r})"
        case "peft":
            model = "AutoPeftModel"
            call = f"model = AutoPeftModel.from_pretrained({place!r})"
    return f"from {library.replace('-', '_')} import {model}\n\n{call}"
