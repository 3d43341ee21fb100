"""Read the files of torch.save, each with its pickle, by no other means than torch's weights-only reader allows."""

import re

from typing_extensions import override

from sharding.checkpoint.documents import read_json
from sharding.checkpoint.readers.reader import Found, Reader, Weights
from sharding.formats.names import CONFIG_NAME
from sharding.formats.torch_checkpoint import describe_archives, read_archives
from sharding.model_class.class_table import ties


class TorchBin(Reader):
    """Files of torch.save: `pytorch_model.bin` and its shards."""

    names = re.compile(r".*\.bin", re.DOTALL)

    @override
    def read(self, found: Found) -> Weights:
        files = found.files
        # A tied name may be left out only if the loader fills it in again. transformers does; others do not.
        is_tied = ties(read_json(found.source, found.by_path.get(found.weight_set.folder + CONFIG_NAME))) is True
        is_tied = is_tied and found.weight_set.stem == "model" and not found.weight_set.is_whole
        archives = read_archives(found.source, files, unites_tied=is_tied)
        tensors = [tensor for archive in archives for tensor in archive.tensors]
        tied = [name for archive in archives for name in archive.tied]
        return Weights(files, tensors, list(describe_archives(files, archives)), tied=tied)
