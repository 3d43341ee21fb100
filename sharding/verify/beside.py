"""Compare the weight files beside two checkpoints, such as adapters, which are copied as they are."""

from collections.abc import Generator, Mapping, Sequence

from sharding.core.events import Progress
from sharding.core.repo import Repo
from sharding.core.values import Checkpoint, FileEntry, Mismatch, folder_of
from sharding.verify.digests import ThisMachine


def compare_beside(
    sources: Sequence[Repo], checkpoints: Sequence[Checkpoint]
) -> Generator[Progress, None, tuple[Mismatch, ...]]:
    """Read the weight files beside both checkpoints; yield progress; return where the second differs.

    Raises SourceError, also if the bytes from a Hub do not match the hash that it states.
    """
    mismatches, alike = compare_listed(checkpoints)
    digests = []
    for source, files in zip(sources, alike, strict=True):
        digests.append((yield from ThisMachine().digest_files(source.sources, files.values())))
    for path in alike[0]:
        if digests[0][path].sha256 != digests[1][path].sha256:
            mismatches.append(Mismatch(path, "its bytes differ"))
    return tuple(mismatches)


def compare_listed(
    checkpoints: Sequence[Checkpoint],
) -> tuple[list[Mismatch], tuple[Mapping[str, FileEntry], Mapping[str, FileEntry]]]:
    """Compare the listed sizes and hashes. Return the differences, and the other files of both, by path.

    A file that only the second has counts if it is in a folder of the model: there, libraries find it with the weights.
    """
    ours, theirs = ({file.path: file for file in checkpoint.copied_weights} for checkpoint in checkpoints)
    folders = {component.folder for component in checkpoints[0].components}
    mismatches, alike = list[Mismatch](), list[str]()
    for path in sorted(ours.keys() | theirs.keys()):
        if path not in theirs:
            mismatches.append(Mismatch(path, "it is missing"))
        elif path not in ours:
            if folder_of(path) in folders:
                mismatches.append(Mismatch(path, "it is not in the original"))
        elif _differ(ours[path], theirs[path]):
            mismatches.append(Mismatch(path, "its bytes differ"))
        else:
            alike.append(path)
    return mismatches, ({path: ours[path] for path in alike}, {path: theirs[path] for path in alike})


def _differ(file: FileEntry, other: FileEntry) -> bool:
    return file.bytes != other.bytes or bool(file.sha256 and other.sha256 and file.sha256 != other.sha256)
