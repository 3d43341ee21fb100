"""Read a checkpoint of torch.distributed.checkpoint: `.metadata`, and the pieces that it locates in `.distcp` files."""

import re
from collections.abc import Sequence

from typing_extensions import override

from sharding.checkpoint.foreign import refuse_megatron
from sharding.checkpoint.readers.reader import Found, Reader, Weights
from sharding.checkpoint.readers.safetensors import refuse_long
from sharding.checkpoint.state_dict import final_names, findings_on_run, model_names, state_in
from sharding.core.dtypes import BY_TORCH
from sharding.core.errors import SourceError
from sharding.core.limits import MAX_DCP_BYTES
from sharding.core.text import format_bytes
from sharding.formats.dcp_archives import find_boxes
from sharding.formats.dcp_metadata import parse_metadata
from sharding.formats.names import DCP_METADATA_NAME
from sharding.formats.rank_boxes import SavedBoxes, assemble
from sharding.formats.torch_globals import PickleRefused


class Dcp(Reader):
    """A folder that torch.distributed.checkpoint saved."""

    names = re.compile(re.escape(DCP_METADATA_NAME))
    of_run = True

    @override
    def finds(self, inside: Sequence[str]) -> list[str]:
        if found := super().finds(inside):
            refuse_megatron(inside)
        return found

    @override
    def read(self, found: Found) -> Weights:
        source, by_path = found.source, found.by_path
        listed = by_path[DCP_METADATA_NAME]
        refuse_long(source, listed.bytes, found.most_tensors)
        if listed.bytes > MAX_DCP_BYTES:
            raise SourceError(
                f"{listed.path}, the list of all saved pieces, has {format_bytes(listed.bytes)}. The limit is "
                f"{format_bytes(MAX_DCP_BYTES)}.",
                "Save the model without its optimizer, which takes two thirds of it, or from fewer ranks.",
            )
        try:
            metadata = parse_metadata(b"".join(source.read(listed.path, 0, listed.bytes)))
        except PickleRefused as error:
            message = f"{listed.path}, the list of all saved pieces, cannot be read: {error}."
            raise SourceError(message, "Copy it again, or ask its author to save the checkpoint again.") from error
        state = state_in({entry.name: entry.path for entry in metadata.entries})
        weights = [entry for entry in metadata.entries if entry.name not in state]
        names = final_names(model_names({entry.name: entry.path for entry in weights}), state or metadata.others)
        for entry in weights:
            if not BY_TORCH[entry.dtype].name:
                message = f"{entry.name} has the dtype {entry.dtype}, which safetensors does not support."
                raise SourceError(message, "Save it again in another dtype.")
        boxes = find_boxes(source, weights, by_path)
        tensors = assemble(
            SavedBoxes(names[entry.name], BY_TORCH[entry.dtype].name, entry.shape, boxes[entry.name])
            for entry in weights
        )
        files = [by_path[name] for name in sorted({chunk.file for entry in weights for chunk in entry.chunks})]
        sizes = {entry.name: sum(chunk.bytes for chunk in entry.chunks) for entry in metadata.entries}
        left_out = {name: size for name, size in sizes.items() if name in state}
        return Weights(files, tensors, list(findings_on_run(found, files, tensors, left_out, metadata.others, names)))
