"""Read the digests that a result stores beside its weights. Whoever uploaded it may have written any digests."""

from collections.abc import Mapping

from sharding.checkpoint.documents import read_small
from sharding.core.errors import Remedy, SourceError
from sharding.core.repo import Repo
from sharding.core.text import source_name, values_in
from sharding.core.values import Checkpoint, TensorDigest
from sharding.formats.names import DIGESTS_NAME
from sharding.report.digests import parse_digests

_WITHOUT_QUICK = "Leave out --quick to read and compare the weights."
_READ = Remedy("read_every_byte")


def stored_digests(
    source: Repo, checkpoint: Checkpoint, most_bytes: int, most_values: int | None = None
) -> Mapping[str, TensorDigest]:
    """Return the digests that `source` stores, from a file of at most `most_bytes` and `most_values` JSON values.

    Raises SourceError if there are none, if they are not valid, or if they do not describe `checkpoint`.
    """
    name = source_name(source.ref.kind, source.ref.name)
    files = {file.path: file for file in source.files}
    if DIGESTS_NAME not in files:
        raise SourceError(f"{name} has no {DIGESTS_NAME}.", _WITHOUT_QUICK, _READ)
    text = read_small(source, files[DIGESTS_NAME], most_bytes)
    if most_values is not None and values_in(text) > most_values:
        raise SourceError(f"{DIGESTS_NAME} of {name} holds more than a page can show.", _WITHOUT_QUICK, _READ)
    stored = parse_digests(text, name)
    headers = {tensor.name: (tensor.dtype, tensor.shape) for tensor in checkpoint.tensors}
    if headers != {name: (digest.dtype, digest.shape) for name, digest in stored.items()}:
        message = f"{DIGESTS_NAME} of {name} does not describe the weights beside it."
        raise SourceError(message, _WITHOUT_QUICK, _READ)
    return stored
