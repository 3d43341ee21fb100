"""Read the files of torch.save, each with its pickle, by no other means than torch's weights-only reader allows."""

from collections.abc import Mapping, Sequence

from typing_extensions import override

from sharding.checkpoint.documents import read_json
from sharding.checkpoint.readers.reader import Reader, Weights
from sharding.checkpoint.weight_sets import WeightSet
from sharding.core.protocols import Files
from sharding.core.values import FileEntry
from sharding.formats.names import CONFIG_NAME
from sharding.formats.torch_checkpoint import describe_archives, read_archives
from sharding.model_class.class_table import ties


class TorchBin(Reader):
    """Files of torch.save: `pytorch_model.bin` and its shards."""

    @override
    def takes(self, paths: Sequence[str]) -> bool:
        return all(path.endswith(".bin") for path in paths)

    @override
    def read(
        self,
        source: Files,
        by_path: Mapping[str, FileEntry],
        weight_set: "WeightSet",
        paths: Sequence[str],
        most_tensors: int,
    ) -> Weights:
        files = [by_path[path] for path in paths]
        # A tied name may be left out only if the loader fills it in again. transformers does; others do not.
        is_tied = ties(read_json(source, by_path.get(weight_set.folder + CONFIG_NAME))) is True
        is_tied = is_tied and weight_set.stem == "model" and not weight_set.is_whole
        archives = read_archives(source, files, unites_tied=is_tied)
        tensors = [tensor for archive in archives for tensor in archive.tensors]
        tied = [name for archive in archives for name in archive.tied]
        return Weights(files, tensors, list(describe_archives(files, archives)), tied=tied)
