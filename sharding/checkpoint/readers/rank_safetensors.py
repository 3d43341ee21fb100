"""Read the safetensors files of all ranks of a training run, each with its own pieces of the tensors."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from typing_extensions import override

from sharding.checkpoint.readers.reader import Found, Reader, Weights
from sharding.checkpoint.readers.safetensors import merge_metadata, read_headers
from sharding.checkpoint.state_dict import final_names, findings_on_run, state_in
from sharding.core.errors import SourceError
from sharding.core.text import name_some
from sharding.core.values import Finding
from sharding.formats.names import RANK_SHARD_NAME
from sharding.formats.rank_boxes import assemble_headers, missing_names, without_dcp


class RankSafetensors(Reader):
    """Files of torch's HuggingFaceStorageWriter: `shard-00001-model-00001-of-00002.safetensors`."""

    names = RANK_SHARD_NAME
    of_run = True

    @override
    def finds(self, inside: Sequence[str]) -> list[str]:
        counts = sorted({match["count"] for path in inside if (match := self.names.fullmatch(path))})
        if len(counts) > 1:
            message = f"The folder has rank files of several saves, with {' and '.join(counts)} files each."
            raise SourceError(message, "Keep the files of each save in their own folder.")
        return super().finds(inside)

    @override
    def read(self, found: Found) -> Weights:
        files = found.files
        headers = read_headers(found.source, files, found.most_tensors)
        metadata, conflicts = merge_metadata(replace(one, metadata=without_dcp(one.metadata)) for one in headers)
        stored = dict.fromkeys(tensor.name for header in headers for tensor in header.tensors)
        # Each name is one key of a flat dictionary, because a wrapper and a module of that name look the same.
        state = state_in({name: (name,) for name in stored})
        names = final_names({name: name for name in stored if name not in state}, state)
        left_out, of_model = Counter[str](), []
        for header in headers:
            of_model.append(replace(header, tensors=tuple(tensor for tensor in header.tensors if tensor.name in names)))
            left_out.update({tensor.name: tensor.bytes for tensor in header.tensors if tensor.name in state})
        tensors = [tensor._replace(name=names[tensor.name]) for tensor in assemble_headers(files, of_model)]
        findings = list(findings_on_run(found, files, tensors, left_out, (), names))
        missing, number = missing_names(files)
        if number:
            message = f"Some ranks saved fewer files than others. Missing files: {name_some(missing, total=number)}."
            hint = "No piece is missing in the middle. One may be missing at the end. To check that, add --base "
            hint += "owner/name."
            findings.append(Finding("warning", "ranks-uneven", message, hint))
        return Weights(files, tensors, [*findings, *conflicts], metadata)
