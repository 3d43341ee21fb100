"""Find the weight files that belong together, and take one set of each folder that is loaded. Touches no files.

The choice is that of transformers 5.23 and diffusers 0.42: `model.safetensors` before an index before shards, all of
them before the same in `.bin` files, each of the variant that is asked for. What an index says is compared with the
headers afterwards; the headers win.
"""

import re
from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass, field

from sharding.checkpoint.library import ADAPTER_FILE, Documents, find_layout
from sharding.checkpoint.unsupported import no_variant, no_weights, unreadable_weights
from sharding.core.errors import SourceError
from sharding.core.text import name_some
from sharding.core.values import Finding, Library, folder_of
from sharding.formats.index import Index
from sharding.formats.names import (
    BIN_SHARD_NAME,
    DCP_METADATA_NAME,
    RANK_SHARD_NAME,
    SHARD_NAME,
    is_rank_index,
    is_weights,
)

_BASES = ("model", "diffusion_pytorch_model", "adapter_model")
"""What transformers, diffusers and peft call their weights; the first that a folder has is taken."""

_BIN_BASES = {"pytorch_model": "model", "diffusion_pytorch_model": "diffusion_pytorch_model"}
"""What they call them in `.bin` files, and what the same are called as safetensors."""


_DATA = (".npz", ".npy", ".pkl", ".pickle")
"""Files of a component that can be something else than its weights."""


def _names(suffix: str, bases: Iterable[str]) -> tuple[re.Pattern[str], re.Pattern[str]]:
    """Return what the names of weights and of their indexes look like.

    `old` is where releases of diffusers before 0.32 put the variant.
    """
    base = f"(?P<base>{'|'.join(bases)})"
    weights = rf"{base}(?:\.(?P<variant>[^./]+?))?(?P<number>-\d{{5,}}-of-\d{{5,}})?(?:\.(?P<old>[^./]+))?\.{suffix}"
    index = rf"{base}\.{suffix}(?:\.(?P<old>[^./]+))?\.(?P<index>index)(?:\.(?P<variant>[^./]+))?\.json"
    return re.compile(weights), re.compile(index)


_SAFETENSORS, _BIN = _names("safetensors", _BASES), _names("bin", _BIN_BASES)


@dataclass(slots=True)
class WeightSet:
    """Files that are loaded together from `folder` ("" or ending in "/"): by one name, by an index, or as shards."""

    folder: str
    base: str = "model"
    variant: str = ""
    is_whole: bool = False
    single: str | None = None
    index: str | None = None
    shards: list[str] = field(default_factory=list)
    ranks: list[str] = field(default_factory=list)
    """Safetensors files that the ranks of a training run have saved, or what says where their pieces are."""

    def files(self, index: Index | None, paths: Container[str]) -> list[str]:
        """Return the weight files; `index` is what `self.index` says, `paths` all files of the repo.

        Raises SourceError where some are missing.
        """
        if self.single:
            return [self.single]
        if index is None:
            return _complete(self.shards)
        listed = sorted(set(index.weight_map.values()))
        missing = [path for path in listed if path not in paths]
        if missing:
            raise SourceError(
                f"{len(missing)} of the {len(listed)} files that {self.index} lists are missing: {name_some(missing)}.",
                "Download them again; the checkpoint is incomplete without them.",
            )
        return listed

    def findings(self) -> list[Finding]:
        """Return what a person should know about how the files were chosen."""
        if self.single and (self.index or self.shards):
            message = f"{self.single} stands beside an index or shards; it is the one used, as in transformers."
            return [Finding("warning", "several-checkpoints", message, "Remove the set that is out of date.")]
        if not self.single and not self.index and not self.ranks:
            return [Finding("warning", "no-index", "There is no index; the shard files alone say what is in them.")]
        return []


@dataclass(frozen=True, slots=True)
class Found:
    """The sets of a repo, one a folder; weights that are copied as they are; what a person should know."""

    library: Library
    sets: tuple[WeightSet, ...]
    copied: frozenset[str]
    findings: tuple[Finding, ...]
    passed_over: tuple[str, ...] = ()
    """Variants that could be taken instead, "" for the plain weights."""


def find_sets(paths: Sequence[str], documents: Documents, variant: str = "") -> Found:
    """Return the sets of weights of a repo with files at `paths`, of `variant` wherever a folder has it.

    Raises SourceError where there are none that can be streamed, or there is no such variant.
    """
    layout = find_layout(paths, documents)
    sets: list[WeightSet] = []
    unread: list[str] = []
    passed_over, copied = set[str](), set[str]()
    for folder, is_whole in layout.folders.items():
        inside = [path for path in paths if folder_of(path) == folder]
        named = documents.weights_named if not folder else None
        if named and named not in inside and _of_ranks(inside):
            named = None  # that is what the weights of the base are called
        # What the configuration names is loaded whichever variant is asked for.
        variants = {} if named else _by_variant(folder, inside)
        if not is_whole and not named:
            variants = _pickled(folder, inside) | variants
        chosen = named_set(named, inside) if named else _choose(variants, variant)
        if chosen is None and layout.library == "transformers":
            chosen = _of_ranks(inside) or _unnamed(inside)
        if chosen:
            chosen.is_whole = is_whole
            sets.append(chosen)
            passed_over |= variants.keys() - {chosen.variant}
        elif is_whole:
            copied |= {path for path in inside if path.endswith(".bin")}
        elif layout.library == "diffusers":
            unread += [path for path in inside if is_weights(path) and not path.endswith(_DATA)]
    if not sets:
        raise no_weights(paths)
    if unread:
        raise unreadable_weights(unread)
    if variant and all(chosen.variant != variant for chosen in sets):
        raise no_variant(variant, {chosen.variant for chosen in sets} | passed_over)
    if layout.library != "peft":
        copied |= {
            path for path in paths if path.rsplit("/", 1)[-1] == ADAPTER_FILE and folder_of(path) in layout.folders
        }
    findings = tuple(_remarks(sets, passed_over, copied))
    return Found(layout.library, tuple(sets), frozenset(copied), findings, tuple(sorted(passed_over)))


def _by_variant(folder: str, inside: Iterable[str]) -> dict[str, WeightSet]:
    """Return the sets of a folder by variant, "" for the plain weight_set, of the first base that it has."""
    return _of_first_base(_matching(folder, inside, *_SAFETENSORS), _BASES)


def _pickled(folder: str, inside: Iterable[str]) -> dict[str, WeightSet]:
    """Return the same of weights that torch has saved; their index often stays where they do not."""
    found = {
        key: weight_set
        for key, weight_set in _matching(folder, inside, *_BIN).items()
        if weight_set.single or weight_set.shards
    }
    sets = _of_first_base(found, list(_BIN_BASES))
    for weight_set in sets.values():
        weight_set.base = _BIN_BASES[weight_set.base]
    return sets


def _of_first_base(found: dict[tuple[str, str], WeightSet], bases: Sequence[str]) -> dict[str, WeightSet]:
    base = min((base for base, _ in found), key=bases.index, default="")
    return {variant: weight_set for (of, variant), weight_set in found.items() if of == base}


def _matching(
    folder: str, inside: Iterable[str], weights: re.Pattern[str], index: re.Pattern[str]
) -> dict[tuple[str, str], WeightSet]:
    """Return the sets of a folder by base and variant."""
    found: dict[tuple[str, str], WeightSet] = {}
    for path in inside:
        name = path.removeprefix(folder)
        match = weights.fullmatch(name) or index.fullmatch(name)
        if match is None or is_rank_index(path):
            continue
        named = match.groupdict()
        variant = named["variant"] or named["old"] or ""
        weight_set = found.setdefault((named["base"], variant), WeightSet(folder, named["base"], variant))
        if "index" in named:
            weight_set.index = path
        elif named["number"]:
            weight_set.shards.append(path)
        else:
            weight_set.single = path
    return found


def _choose(variants: dict[str, WeightSet], variant: str) -> WeightSet | None:
    if variant in variants:
        return variants[variant]
    if "" in variants or not variants:
        return variants.get("")
    if len(variants) > 1:
        raise no_variant(variant, variants)
    return next(iter(variants.values()))


def named_set(name: str, inside: Container[str]) -> WeightSet:
    """Return the set that config.json names, of the files `inside` its folder. Raises SourceError without it."""
    if name not in inside or not name.endswith((".safetensors", ".safetensors.index.json")):
        raise SourceError(
            f"config.json names {name[:100]!r} as transformers_weights, which is no safetensors file beside it.",
            "Download that file, or remove the entry if model.safetensors is meant.",
        )
    return WeightSet("", index=name) if name.endswith(".json") else WeightSet("", single=name)


def _of_ranks(inside: Sequence[str]) -> WeightSet | None:
    """Return what the ranks of a training run have saved: files of theirs, or what says where their pieces are."""
    ranks = sorted(path for path in inside if RANK_SHARD_NAME.fullmatch(path))
    if not ranks and DCP_METADATA_NAME in inside:
        ranks = [DCP_METADATA_NAME]
    counts = {match["count"] for path in ranks if (match := RANK_SHARD_NAME.fullmatch(path))}
    if len(counts) > 1:
        raise SourceError(
            f"There are files of ranks of several saves: of {', '.join(sorted(counts))} files each.",
            "Keep those of one save in a folder of their own.",
        )
    return WeightSet("", ranks=ranks) if ranks else None


def _unnamed(inside: Iterable[str]) -> WeightSet | None:
    """Return the shards of any other name, or the one file that can only be the weights."""
    others = [path for path in inside if path.endswith(".safetensors") and not path.startswith("consolidated.")]
    shards = [path for path in others if SHARD_NAME.fullmatch(path)]
    if shards:
        return WeightSet("", shards=shards)
    return WeightSet("", single=others[0]) if len(others) == 1 else None


def _complete(shards: Sequence[str]) -> list[str]:
    """Return shards that make up one checkpoint. Raises SourceError where some are missing, or of another."""
    sets: dict[tuple[str, str, int], set[int]] = {}
    for path in shards:
        match = SHARD_NAME.fullmatch(path) or BIN_SHARD_NAME.fullmatch(path)
        assert match is not None
        sets.setdefault((match["base"], match["rest"], int(match["count"])), set()).add(int(match["number"]))
    if len(sets) > 1:
        names = ", ".join(f"{base} of {count}" for base, _, count in sets)
        raise SourceError(
            f"There are shards of several checkpoints and no index: {names}.", "Remove those that are out of date."
        )
    ((_, _, count), numbers), *_ = sets.items()
    missing = count - len(numbers & set(range(1, count + 1)))
    if missing:
        raise SourceError(
            f"{missing} of the {count} shards are missing, and there is no index.", "Download them again."
        )
    return sorted(shards)


def _remarks(sets: Sequence[WeightSet], passed_over: set[str], copied: Iterable[str]) -> Iterable[Finding]:
    if names := sorted(name for name in passed_over if name):
        message = f"Other variants are left out: {', '.join(names)}."
        hint = f"Choose one as the variant (--variant {names[0]}) to re-shard that instead."
        yield Finding("info", "variants", message, hint)
    for name in sorted({weight_set.variant for weight_set in sets} - {""}):
        yield Finding("info", "variant", f"The variant {name} is taken.", f'Load the result with variant="{name}".')
    whole = sorted(
        [weight_set.single or weight_set.folder for weight_set in sets if weight_set.is_whole] + list(copied)
    )
    if whole:
        yield Finding(
            "info",
            "kept-whole",
            f"Kept as one file, which is all that its loader knows: {name_some(whole)}.",
            "Adapters and the small modules of a sentence transformer are loaded by one name, not by an index.",
        )
