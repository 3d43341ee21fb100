"""Read the GGUF models of a source: choose them by name or tag, read their headers, and check that parts fit."""

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from functools import partial

from sharding.checkpoint.readers.safetensors import too_many_tensors
from sharding.checkpoint.side_files import other_weights, refuse_links, refuse_unfinished, sort_files
from sharding.core.errors import SourceError, VariantMissing
from sharding.core.limits import MAX_HEADER_BYTES, MAX_TENSORS
from sharding.core.protocols import Files
from sharding.core.text import count, name_some
from sharding.core.threads import readers
from sharding.core.values import Component, Content, FileEntry, Finding, GgufHead
from sharding.formats.gguf import (
    ALIGNMENT,
    COUNT,
    FIRST_BYTES,
    GGUF,
    NO,
    SPLIT_KEYS,
    TENSORS,
    Header,
    NeedsMore,
    is_model,
    number_in,
    parts_of,
    read_header,
    tag_of,
    text_in,
)
from sharding.formats.names import GGUF_PIECE, is_reserved, may_be_model
from sharding.recipes.stored import place_of

EVERY = "*"  # The variant that is all models.
_MOST_GAPS_BYTES = 16 << 20
"""The most bytes between tensors that are kept as they are. Usually there are none, and they are zeros."""
_FIRST = ("Q4_K_M", "Q8_0")  # What llama.cpp takes if it is given no tag.
_WHOLE = ("adapter", "imatrix", "mmproj")
_Files = dict[int, FileEntry]  # The files of a model, by their numbers from 1.


def holds_only_gguf(paths: Collection[str]) -> bool:
    """Return whether a source has GGUF files, or pieces of them, and no weights of other formats."""
    others = (may_be_model(path) for path in paths if not path.endswith(GGUF) and not is_reserved(path))
    return any(path.endswith(GGUF) or GGUF_PIECE.fullmatch(path) for path in paths) and not any(others)


def read_models(source: Files, variant: str, most_tensors: int = MAX_TENSORS) -> Content:
    """Return the content of the models in `source` that `variant` names: by a tag, a name or a glob.

    Raises VariantMissing if that is not clear, SourceError if files do not belong together, HeaderError for a file that
    llama.cpp would not read, and TooManyTensors.
    """
    by_path = {file.path: file for file in source.files}
    refuse_links(source.links_out)
    models, twice = _models_in(source)
    names = _chosen(models, variant)
    for name in names:
        if name in twice:
            message = f"{name} is there twice: {twice[name]} do not belong together."
            raise SourceError(message, "Remove the files that are out of date.")
    files = [file for name in names for _, file in sorted(models[name].items())]
    taken = {file.path for file in files}
    refuse_unfinished(by_path, taken)
    folder_of = {file.path: f"{name}/" * (len(names) > 1) for name in names for file in models[name].values()}
    headers = dict(zip(files, read_headers(source, files, folder_of, most_tensors), strict=True))
    components, tensors, findings, same = [], [], list[Finding](), dict[bytes, bytes]()
    for name in names:
        ours = [file for _, file in sorted(models[name].items())]
        parts = [headers[file] for file in ours]
        findings += _checked(name, ours, parts)
        held = [tensor for part in parts for tensor in part.tensors]
        # Quantizations of one model have the same vocabulary, which is large.
        keys = {key: same.setdefault(value, value) for key, value in parts[0].keys.items()}
        raw = _raw(source, ours[0], parts[0]) if len(ours) == 1 else ()
        kind, whole = text_in(keys, b"general.type"), text_in(keys, b"general.architecture") == "clip"
        head = GgufHead(keys, len(ours), len(held), raw)
        folder = folder_of[ours[0].path]
        components.append(Component(folder, name, tag_of(name), whole or kind in _WHOLE, {}, gguf=head))
        tensors += held
    if not tensors:
        raise SourceError("The GGUF files contain no tensors.", "Use a model that has weights.")
    side_files, left_out = sort_files(source.files, taken)
    choices = _choices(name for name in models if is_model(name + GGUF) or name in names)
    others = tuple(choice for choice, name in choices.items() if name not in names)
    if others and variant != EVERY:
        findings.append(Finding("info", "variants", f"Other models are left out: {name_some(others)}."))
    architecture = text_in(headers[files[0]].keys, b"general.architecture")
    return Content(
        source=source.ref,
        beside=source.places[1:],
        tensors=tuple(tensors),
        components=tuple(components),
        weight_files=tuple(files),
        side_files=side_files,
        findings=(*findings, *left_out),
        architecture=architecture or None,
        library="llama.cpp",
        other_variants=others,
        other_weights=other_weights(source.files, taken | {file.path for file in side_files}),
        unreached=source.unreached,
        format="gguf",
        sizes={choice: sum(file.bytes for file in models[name].values()) for choice, name in choices.items()},
    )


def read_headers(
    source: Files, files: Sequence[FileEntry], folder_of: Mapping[str, str], most_tensors: int = MAX_TENSORS
) -> list[Header]:
    """Return the headers of `files`. Before the names of tensors stands what `folder_of` has for their file."""

    def header(file: FileEntry, most_bytes: int = MAX_HEADER_BYTES) -> Header | None:
        def read(start: int, end: int) -> bytes:
            if start >= most_bytes:
                raise NeedsMore(end)
            data = b"".join(source.read(file.path, start, end))
            if not start and data[:4] == b"GGUF" and int.from_bytes(data[8:16], "little") > most_tensors:
                raise too_many_tensors(source, most_tensors)
            return data

        try:
            return read_header(read, file.bytes, file.path, folder_of[file.path])
        except NeedsMore:
            return None

    found, seen = list[Header](), 0
    with readers(source.ranges_at_once) as pool:
        for file, short in zip(files, pool.map(partial(header, most_bytes=FIRST_BYTES), files), strict=True):
            one = short or header(file)  # those with a vocabulary one after another, because they take memory
            assert one, "a header has a limit"
            found.append(one)
            seen += len(one.tensors)
            if seen > min(most_tensors, MAX_TENSORS):
                raise too_many_tensors(source, most_tensors)
    return found


def _models_in(source: Files) -> tuple[dict[str, _Files], dict[str, str]]:
    """Return the models by name, and two files of each one that does not fit together. Raises SourceError."""
    models, twice = dict[str, _Files](), dict[str, str]()
    for file in source.files:
        if not (parts := parts_of(file.path)) or is_reserved(file.path):
            continue
        name, number, total = parts
        files = models.setdefault(name, {})
        other = next(iter(files.values()), file)
        if number in files or (parts_of(other.path) or parts)[2] != total:
            twice[name] = f"{other.path} and {file.path}"
        files[number] = file
    pieces = sorted(file.path for file in source.files if GGUF_PIECE.fullmatch(file.path))
    if not models and pieces:
        message = f"These are plain pieces of a GGUF file, and not GGUF files: {name_some(pieces)}."
        raise SourceError(message, "Put them together in their order: `cat PIECE1 PIECE2 > MODEL.gguf`.")
    return models, twice


def _choices(names: Iterable[str]) -> dict[str, str]:
    """Return the models to choose from, each by its tag, or by its name if the tag is not its own."""
    names = sorted(names)
    choices = dict[str, str]()
    for name in names:
        tag = tag_of(name)
        choices[tag if tag and tag not in names and _ending(names, tag) == [name] else name] = name
    return dict(sorted(choices.items(), key=lambda one: (_FIRST + (one[0],)).index(one[0])))


def _ending(names: Iterable[str], text: str) -> list[str]:
    """Return those of `names` that end in `text`, as a part of their own and in any case."""
    ending = re.compile(rf"(?:.*[-./])?{re.escape(text)}", re.IGNORECASE | re.DOTALL)
    return [name for name in names if ending.fullmatch(name)]


def _chosen(models: Mapping[str, _Files], variant: str) -> list[str]:
    """Return the names of the models that `variant` takes. Raises VariantMissing."""
    plain = [name for name in models if is_model(name + GGUF)] or list(models)
    named = (parts_of(variant) or (variant, 1, 1))[0]
    if named in models:
        return [named]
    if set("*?[") & set(variant):
        taken = [name for name in plain if any(fnmatchcase(text, variant) for text in (name, tag_of(name)))]
        if taken:
            return sorted(taken)
    else:
        taken = _ending(plain, variant) if variant else plain
    if len(taken) == 1:
        return taken
    if not models:
        raise SourceError("There are no GGUF files.", "Name a repo or a folder that has some.")
    there = tuple(sorted(taken) if variant and taken else _choices(plain))
    message = f"{variant!r} fits {len(taken)} models." if taken else f"There is no model {variant!r}."
    message = message if variant else f"There are {len(plain)} GGUF models."
    raise VariantMissing(message, f"Choose one with --variant: {', '.join(there)}.", there)


def _checked(name: str, files: Sequence[FileEntry], parts: Sequence[Header]) -> Iterator[Finding]:
    """Yield what you should know about the files of a model. Raises SourceError if they do not belong together."""
    total, tensors = (parts_of(files[0].path) or (name, 1, 1))[2], sum(len(part.tensors) for part in parts)
    there = {(parts_of(file.path) or (name, 1, 1))[1] for file in files}
    if missing := [f"{name}-{number:05d}-of-{total:05d}.gguf" for number in range(1, total + 1) if number not in there]:
        message = f"{len(missing)} of the {total} parts of {name} are missing: {name_some(missing)}."
        raise SourceError(message, "Download them again. llama.cpp cannot load the model without them.")
    dropped, seen = set[bytes](), set[str]()
    for number, (file, part) in enumerate(zip(files, parts, strict=True)):
        stated = _split_of(file, part)
        real = {NO: number, COUNT: total, TENSORS: tensors}
        needed = set() if total == 1 else {*real} if not number else {NO}
        wrong = [key for key in real if stated[key] != real[key] and (stated[key] is not None or key in needed)]
        if wrong and not (total == 1 and (stated[COUNT] or 0) <= 1):
            said = ", ".join(f"{key.decode()} {stated[key]}" for key in wrong)
            message = f"{file.path} is file {number + 1} of {total} by its name, but its header says {said}."
            raise SourceError(message, "Give the files the names that they were made with, or download them again.")
        if twice := seen.intersection(tensor.name for tensor in part.tensors):
            raise SourceError(f"{name_some(sorted(twice))} is in two files of {name}.", "Download the model again.")
        seen.update(tensor.name for tensor in part.tensors)
        dropped |= part.keys.keys() - {*SPLIT_KEYS, ALIGNMENT} if number else set()
        last = place_of(part.tensors[-1]) if part.tensors else None
        if last and (more := file.bytes - last.end_byte - -last.size_bytes % part.alignment) > 0:
            message = f"The copy does not get {count(more, 'byte')} behind the last tensor of {file.path}."
            yield Finding("warning", "behind-tensors", message, "Nothing in the header says what they are.")
    if dropped:
        keys = name_some(sorted(key.decode(errors="replace") for key in dropped))
        message = f"Keys that only a later file of {name} has are left out, as gguf-split leaves them out: {keys}."
        yield Finding("warning", "keys-left-out", message)


def _split_of(file: FileEntry, part: Header) -> dict[bytes, int | None]:
    try:
        return {key: number_in(part.keys, key, kind) for key, kind in SPLIT_KEYS.items()}
    except ValueError as error:
        hint = "llama.cpp does not load it. Download it again, or ask its author."
        raise SourceError(f"{file.path} cannot be a part of a model: {error}.", hint) from error


def _raw(source: Files, file: FileEntry, header: Header) -> tuple[bytes, ...]:
    """Return the header of a single file and what lies behind each tensor, () if it is as anybody would write it."""
    places = [place_of(tensor) for tensor in header.tensors]
    ends = [place.end_byte + -place.size_bytes % header.alignment for place in places]
    gaps = [(place.end_byte, min(end, file.bytes)) for place, end in zip(places, ends, strict=True)]
    if sum(end - start for start, end in gaps) > _MOST_GAPS_BYTES:
        return ()
    with readers(source.ranges_at_once) as pool:
        between = list(pool.map(lambda gap: b"".join(source.read(file.path, *gap)) if gap[0] < gap[1] else b"", gaps))
    if header.is_usual and ends[-1:] <= [file.bytes] and not any(map(any, between)):
        return ()
    return b"".join(source.read(file.path, 0, header.end)), *between
