"""Read the GGUF models of a source: choose them by name or tag, read their headers, and check that parts fit."""

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from functools import partial
from itertools import pairwise
from typing import NamedTuple

from sharding.checkpoint.readers.safetensors import too_many_tensors
from sharding.checkpoint.side_files import other_weights, refuse_links, refuse_unfinished, sort_files
from sharding.core.errors import SourceError, VariantMissing
from sharding.core.limits import MAX_HEADER_BYTES, MAX_TENSORS
from sharding.core.protocols import Files
from sharding.core.text import count, name_some
from sharding.core.threads import readers
from sharding.core.values import Component, Content, FileEntry, Finding, GgufHead
from sharding.formats import gguf
from sharding.formats.names import GGUF_PIECE, is_reserved, may_be_model
from sharding.recipes.stored import place_of

EVERY = "*"  # The variant that is all models.
_MOST_GAPS_BYTES = 16 << 20
"""The most bytes between tensors that are kept as they are. Usually there are none, and they are zeros."""
_FIRST = ("Q4_K_M", "Q8_0")  # What llama.cpp takes if it is given no tag.
_WHOLE = ("adapter", "imatrix", "mmproj", "clip")  # Types, and an architecture, that llama.cpp loads from one file.


class _Part(NamedTuple):
    """A file of a model: its number from 1, and how many there are, by its name."""

    number: int
    total: int
    file: FileEntry


def holds_only_gguf(paths: Collection[str]) -> bool:
    """Return whether a source has GGUF files, or pieces of them, and no weights of other formats."""
    others = (may_be_model(path) for path in paths if not path.endswith(gguf.GGUF) and not is_reserved(path))
    return any(path.endswith(gguf.GGUF) or GGUF_PIECE.fullmatch(path) for path in paths) and not any(others)


def read_models(source: Files, variant: str, most_tensors: int = MAX_TENSORS) -> Content:
    """Return the content of the models in `source` that `variant` names: by a tag, a name or a glob.

    Raises VariantMissing if that is not clear, SourceError if files do not belong together, HeaderError for a file that
    llama.cpp would not read, and TooManyTensors.
    """
    refuse_links(source.links_out)
    models = _models_in(source)
    names = _chosen(models, variant)
    for name in names:
        for one, other in pairwise(models[name]):
            if one.number == other.number or one.total != other.total:
                message = f"{name} is there twice: {one.file.path} and {other.file.path} do not belong together."
                raise SourceError(message, "Remove the files that are out of date.")
    files = {part.file: f"{name}/" * (len(names) > 1) for name in names for part in models[name]}
    taken = {file.path for file in files}
    refuse_unfinished(source.by_path, taken)
    headers = dict(zip(files, _read_headers(source, files, most_tensors), strict=True))
    components, tensors, findings, same = [], [], list[Finding](), dict[bytes, bytes]()
    for name in names:
        parts = [(part, headers[part.file]) for part in models[name]]
        (first, header), *more = parts
        findings += _checked(name, parts)
        held = [tensor for _, header in parts for tensor in header.tensors]
        # Quantizations of one model have the same vocabulary, which is large.
        keys = {key: same.setdefault(value, value) for key, value in header.keys.items()}
        texts = {gguf.text_in(keys, key) for key in (b"general.type", b"general.architecture")}
        head = GgufHead(keys, len(parts), len(held), () if more else _raw(source, first.file, header))
        is_whole = not texts.isdisjoint(_WHOLE)
        components.append(Component(files[first.file], name, gguf.tag_of(name), is_whole, {}, gguf=head))
        tensors += held
    if not tensors:
        raise SourceError("The GGUF files contain no tensors.", "Use a model that has weights.")
    side_files, left_out = sort_files(source.files, taken)
    choices = _choices(name for name in models if gguf.is_model(name + gguf.GGUF) or name in names)
    others = tuple(choice for choice, name in choices.items() if name not in names)
    if others and variant != EVERY:
        findings.append(Finding("info", "variants", f"Other models are left out: {name_some(others)}."))
    return Content(
        source=source.ref,
        beside=source.places[1:],
        tensors=tuple(tensors),
        components=tuple(components),
        weight_files=tuple(files),
        side_files=side_files,
        findings=(*findings, *left_out),
        architecture=gguf.text_in(next(iter(headers.values())).keys, b"general.architecture") or None,
        library="llama.cpp",
        other_variants=others,
        other_weights=other_weights(source.files, taken | {file.path for file in side_files}),
        unreached=source.unreached,
        format="gguf",
        sizes={choice: sum(part.file.bytes for part in models[name]) for choice, name in choices.items()},
    )


def _read_headers(source: Files, files: Mapping[FileEntry, str], most_tensors: int) -> list[gguf.Header]:
    def header(file: FileEntry, most_bytes: int = MAX_HEADER_BYTES) -> gguf.Header | None:
        def read(start: int, end: int) -> bytes:
            if start >= most_bytes:
                raise gguf.NeedsMore(end)
            data = b"".join(source.read(file.path, start, end))
            if not start and data[:4] == b"GGUF" and int.from_bytes(data[8:16], "little") > most_tensors:
                raise too_many_tensors(source, most_tensors)
            return data

        try:
            return gguf.read_header(read, file.bytes, file.path, files[file])
        except gguf.NeedsMore:
            return None

    found, seen = list[gguf.Header](), 0
    with readers(source.ranges_at_once) as pool:
        for file, short in zip(files, pool.map(partial(header, most_bytes=gguf.FIRST_BYTES), files), strict=True):
            one = short or header(file)  # those with a vocabulary one after another, because they take memory
            assert one, "a header has a limit"
            found.append(one)
            seen += len(one.tensors)
            if seen > min(most_tensors, MAX_TENSORS):
                raise too_many_tensors(source, most_tensors)
    return found


def _models_in(source: Files) -> dict[str, list[_Part]]:
    models: dict[str, list[_Part]] = {}
    for file in source.files:
        if (parts := gguf.parts_of(file.path)) and not is_reserved(file.path):
            models.setdefault(parts[0], []).append(_Part(*parts[1:], file))
    pieces = sorted(file.path for file in source.files if GGUF_PIECE.fullmatch(file.path))
    if not models and pieces:
        message = f"These are plain pieces of a GGUF file, and not GGUF files: {name_some(pieces)}."
        raise SourceError(message, "Put them together in their order: `cat PIECE1 PIECE2 > MODEL.gguf`.")
    return {name: sorted(parts, key=lambda part: part.number) for name, parts in models.items()}


def _choices(names: Iterable[str]) -> dict[str, str]:
    """Return the models to choose from, each by its tag, or by its name if the tag is not its own."""
    names = sorted(names)
    choices = dict[str, str]()
    for name in names:
        tag = gguf.tag_of(name)
        choices[tag if tag and tag not in names and _ending(names, tag) == [name] else name] = name
    return dict(sorted(choices.items(), key=lambda one: (_FIRST + (one[0],)).index(one[0])))


def _ending(names: Iterable[str], text: str) -> list[str]:
    """Return those of `names` that end in `text`, as a part of their own and in any case."""
    ending = re.compile(rf"(?:.*[-./])?{re.escape(text)}", re.IGNORECASE | re.DOTALL)
    return [name for name in names if ending.fullmatch(name)]


def _chosen(models: Collection[str], variant: str) -> list[str]:
    plain = [name for name in models if gguf.is_model(name + gguf.GGUF)] or list(models)
    named = (gguf.parts_of(variant) or (variant, 1, 1))[0]
    if named in models:
        return [named]
    if set("*?[") & set(variant):
        taken = [name for name in plain if any(fnmatchcase(text, variant) for text in (name, gguf.tag_of(name)))]
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


def _checked(name: str, parts: Sequence[tuple[_Part, gguf.Header]]) -> Iterator[Finding]:
    """Yield what you should know about the files of a model. Raises SourceError if they do not belong together."""
    total, tensors = parts[0][0].total, sum(len(header.tensors) for _, header in parts)
    there = {part.number for part, _ in parts}
    if missing := [f"{name}-{number:05d}-of-{total:05d}.gguf" for number in range(1, total + 1) if number not in there]:
        message = f"{len(missing)} of the {total} parts of {name} are missing: {name_some(missing)}."
        raise SourceError(message, "Download them again. llama.cpp cannot load the model without them.")
    dropped, seen = set[bytes](), set[str]()
    for number, ((*_, file), part) in enumerate(parts):
        stated = _split_of(file, part)
        real = {gguf.NO: number, gguf.COUNT: total, gguf.TENSORS: tensors}
        needed = set() if total == 1 else {*real} if not number else {gguf.NO}
        wrong = [key for key in real if stated[key] != real[key] and (stated[key] is not None or key in needed)]
        if wrong and not (total == 1 and (stated[gguf.COUNT] or 0) <= 1):
            said = ", ".join(f"{key.decode()} {stated[key]}" for key in wrong)
            message = f"{file.path} is file {number + 1} of {total} by its name, but its header says {said}."
            raise SourceError(message, "Give the files the names that they were made with, or download them again.")
        if twice := seen.intersection(tensor.name for tensor in part.tensors):
            raise SourceError(f"{name_some(sorted(twice))} is in two files of {name}.", "Download the model again.")
        seen.update(tensor.name for tensor in part.tensors)
        dropped |= part.keys.keys() - {*gguf.SPLIT_KEYS, gguf.ALIGNMENT} if number else set()
        last = place_of(part.tensors[-1]) if part.tensors else None
        if last and (more := file.bytes - last.end_byte - -last.size_bytes % part.alignment) > 0:
            message = f"The copy does not get {count(more, 'byte')} behind the last tensor of {file.path}."
            yield Finding("warning", "behind-tensors", message, "Nothing in the header says what they are.")
    if dropped:
        keys = name_some(sorted(key.decode(errors="replace") for key in dropped))
        message = f"Keys that only a later file of {name} has are left out, as gguf-split leaves them out: {keys}."
        yield Finding("warning", "keys-left-out", message)


def _split_of(file: FileEntry, part: gguf.Header) -> dict[bytes, int | None]:
    try:
        return {key: gguf.number_in(part.keys, key, kind) for key, kind in gguf.SPLIT_KEYS.items()}
    except ValueError as error:
        hint = "llama.cpp does not load it. Download it again, or ask its author."
        raise SourceError(f"{file.path} cannot be a part of a model: {error}.", hint) from error


def _raw(source: Files, file: FileEntry, header: gguf.Header) -> tuple[bytes, ...]:
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
