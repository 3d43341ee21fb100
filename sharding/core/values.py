"""The frozen values that the stages of a job pass to each other."""

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from math import prod
from typing import Literal, NamedTuple

from sharding.core.bounds import Blake3, Count, File, Files, Line
from sharding.core.hints import PipelineCut
from sharding.core.made import Made
from sharding.core.options import Options
from sharding.core.origin import Place, Role
from sharding.core.recipe import Recipe

Library = Literal[
    "transformers", "diffusers", "sentence-transformers", "peft", "timm", "open_clip", "spacy",
    "pytorch_model_hub_mixin", "llama.cpp", "unknown",
]  # fmt: skip
"""The library that loads a repo, by its name on the Hub. "unknown" means that no file names one."""


@dataclass(frozen=True, slots=True)
class Finding:
    """A fact about a checkpoint or a plan that a person should know. It never stops a job."""

    level: Literal["info", "warning"]
    code: str
    message: str
    hint: str = ""


@dataclass(frozen=True, slots=True)
class FileEntry:
    """A file of a source: its path, its size, and the hashes that a Hub states. `git_sha1` is git's own, of a file in
    git itself. Of several sources combined, `source` is the number of the file's, and `place` its path there if that is
    another."""

    path: str
    bytes: int
    sha256: str | None = None
    xet_hash: str | None = None
    git_sha1: str | None = None
    source: int = 0
    place: str = ""

    @property
    def at(self) -> str:
        """Its path in its source."""
        return self.place or self.path


class Tensor(NamedTuple):
    """A tensor and the recipe for its bytes. The name starts with the folder of its component ("unet/conv_in.weight");
    headers and indexes leave it out. (A tuple, because a plan makes a hundred thousand of them.)"""

    name: str
    dtype: str
    shape: tuple[int, ...]
    recipe: Recipe
    folder: str = ""

    @property
    def bytes(self) -> int:
        """Size in bytes."""
        return self.recipe.size_bytes

    @property
    def file(self) -> str:
        """The file of its first byte."""
        return self.recipe.file

    @property
    def parameters(self) -> int:
        """Number of elements; 1 for a scalar."""
        return prod(self.shape)


@dataclass(frozen=True, slots=True)
class GgufHead:
    """What the files of a GGUF model hold besides its tensors. `keys` are those of its first file, each with its bytes.
    `files` and `tensors` are how many the model has. `raw` is empty, except for a single file that nobody would write
    like that: its header, and the bytes behind each tensor."""

    keys: Mapping[bytes, bytes]
    files: int
    tensors: int
    raw: tuple[bytes, ...] = ()


@dataclass(frozen=True, slots=True)
class Component:
    """Weights that are loaded together, by one name. A pipeline has several, each in its `folder`, which is "" or ends
    in "/". `metadata` goes into the header of every file, `total_parameters` into the index (None: they are counted).
    `loads_as` is torch's name of the dtype in which transformers loads the source if config.json names none, or "". One
    that `is_whole` is loaded from one file only, so it is never split."""

    folder: str = ""
    stem: str = "model"
    variant: str = ""
    is_whole: bool = False
    metadata: Mapping[str, str] = field(default_factory=lambda: {"format": "pt"})
    total_parameters: int | None = None
    loads_as: str = ""
    gguf: GgufHead | None = None

    def of_rank(self, rank: int, ranks: int) -> "Component":
        """Return it as the variant of one rank of a pipeline, which has an index and no files of its own."""
        return replace(self, variant=f"{self.variant}{'-' if self.variant else ''}rank{rank}-of-{ranks}")


@dataclass(frozen=True, slots=True)
class Content:
    """The content of a source's headers: the tensors in stored order, and the files beside the weights."""

    source: Place
    tensors: tuple[Tensor, ...]
    components: tuple[Component, ...]
    weight_files: tuple[FileEntry, ...]
    side_files: tuple[FileEntry, ...]
    findings: tuple[Finding, ...]
    copied_weights: tuple[FileEntry, ...] = ()
    """The side files that are weights, such as adapters. They are copied unchanged."""
    architecture: str | None = None
    library: Library = "transformers"
    configs: Mapping[str, str] = field(default_factory=dict)
    """The text of config.json in the folder of each component that has one, corrected to match the tensors."""
    reconfigured: frozenset[str] = frozenset()  # The folders whose config.json was corrected.
    of_ranks: bool = False  # Whether the ranks of a training run saved it, so no library loads it as it is.
    beside: tuple[Place, ...] = ()  # The other inputs of the job, in the order of their numbers.
    other_variants: tuple[str, ...] = ()  # Other variants that the user could choose, "" for the plain weights.
    other_weights: tuple[str, ...] = ()
    """Files of the repo that hold weights, or may hold some, and are neither part of it nor copied."""
    others: tuple["Content", ...] = ()  # The contents of other inputs that numbers of a copy are made of.
    head_is_copy: bool | None = None
    """Whether an output head and the embeddings that it may be tied to are both stored, with the same bytes."""
    unreached: tuple[str, ...] = ()
    """The commits of source and base ("owner/name@commit") that no known branch or tag of their repo contains."""
    has_twice: bool = False  # Whether its files hold a tensor twice, which is in `tensors` once.
    notes: Mapping[str, bytes] = field(default_factory=dict)
    """The bytes of small tensors that say how a quantized weight lies, by their names."""
    named_base: str = ""  # The base that an adapter names, or the model card of a quantized checkpoint.
    format: str = "safetensors"  # The name of the file format in which a copy is written.
    sizes: Mapping[str, int] = field(
        default_factory=dict
    )  # The variants that one may choose from, each with its bytes.

    @property
    def total_bytes(self) -> int:
        """Bytes of all tensors, without headers."""
        return sum(tensor.bytes for tensor in self.tensors)

    @property
    def inputs(self) -> tuple[Place, ...]:
        """All places that a job reads. Recipes refer to them by number."""
        return (self.source, *self.beside)

    def of(self, role: Role) -> "Content | None":
        """Return the content of the input in `role`, None if no numbers come from one."""
        return next((other for other in self.others if other.source.role == role), None)

    def the(self, role: Role) -> "Content":
        """Return the content of the input in `role`, which there must be."""
        return next(other for other in self.others if other.source.role == role)

    @property
    def input_bytes(self) -> int:
        """Bytes of all tensors and of the other inputs' files: what a job reads numbers from."""
        return self.total_bytes + sum(file.bytes for other in self.others for file in other.weight_files)

    @property
    def input_tensors(self) -> int:
        """How many tensors it and the other inputs have."""
        return len(self.tensors) + sum(len(other.tensors) for other in self.others)

    @property
    def key_bytes(self) -> int:
        """Bytes of what its headers hold besides tensors, if they are GGUF."""
        heads = (component.gguf for component in self.components if component.gguf)
        return sum(len(part) for head in heads for part in (*head.keys.values(), *head.raw))

    @property
    def read_files(self) -> tuple[FileEntry, ...]:
        """The weight files that a job reads numbers from, of all inputs."""
        return (*self.weight_files, *(file for other in self.others for file in other.weight_files))

    @property
    def in_pieces(self) -> tuple[Tensor, ...]:
        """The tensors whose bytes are in several files."""
        return tuple(tensor for tensor in self.tensors if len(tensor.recipe.files()) > 1)

    @property
    def tensors_in(self) -> Mapping[str, int]:
        """How many tensors, or pieces of them, each weight file holds."""
        return Counter(file for tensor in self.tensors for _, file in tensor.recipe.files())

    @property
    def total_parameters(self) -> int:
        """Number of parameters: as the indexes state it, else the elements of all tensors."""
        stated = ((component.folder, component.total_parameters) for component in self.components)
        index_counts = {folder: count for folder, count in stated if count is not None}
        counted = (tensor.parameters for tensor in self.tensors if tensor.folder not in index_counts)
        return sum(index_counts.values()) + sum(counted)

    @property
    def variant(self) -> str:
        """The variant that was chosen, "" for the plain weights."""
        return next((component.variant for component in self.components if component.variant), "")

    @property
    def is_plain_model(self) -> bool:
        """Whether transformers loads it by the name of its repo alone: no pipeline, adapter, variant or ranks."""
        return self.library in ("transformers", "sentence-transformers") and not self.variant and not self.of_ranks

    @property
    def has_loadable_copy(self) -> bool:
        """Whether transformers loads a copy of it. It loads no pieces of a training run, but loads their copy."""
        return self.is_plain_model or (self.library == "transformers" and self.of_ranks)


@dataclass(frozen=True, slots=True)
class TiedTensor:
    """A `tensor` in the `file` of one stage that another stage needs too, as its weights `used_as`."""

    tensor: Line
    file: File
    used_as: tuple[Line, ...]


@dataclass(frozen=True, slots=True)
class Stage:
    """The part of one machine in a pipeline: whole blocks, tensors outside of blocks, and the files with just these.
    `also_needs` are weights in the files of other stages, such as embeddings that are the output head. Their bytes
    count only there."""

    blocks: tuple[Line, ...]
    others: tuple[Line, ...]
    files: Files
    bytes: Count
    also_needs: tuple[TiedTensor, ...] = ()


@dataclass(frozen=True, slots=True)
class Shard:
    """One file of the result: its tensors, in the order in which their bytes are written. A file read for its hashes is
    one tensor of bytes. `sampled` are ranges (start, end) of the file that are hashed while it is written."""

    file: str
    tensors: tuple[Tensor, ...]
    bytes: int
    sampled: tuple[tuple[int, int], ...] = ()

    @property
    def folder(self) -> str:
        """Folder of its component: "" or ending in "/"."""
        return self.tensors[0].folder if self.tensors else folder_of(self.file)


Piece = bytes | Tensor  # A part of a file: bytes as they are, or what a recipe makes.


@dataclass(frozen=True, slots=True)
class Plan:
    """Which shard holds which tensor. The shards of a component follow one another. `stages` are what the ranks of a
    pipeline load, `pipeline` where transformers cuts it. `made` says what is done to the numbers. The recipes refer to
    `sources` by number. `written` are the files of the source that get new content, by path. The copy does not get the
    `unfit` ones."""

    shards: tuple[Shard, ...]
    components: tuple[Component, ...]
    total_bytes: int
    total_parameters: int
    options: Options
    findings: tuple[Finding, ...]
    stages: tuple[Stage, ...] = ()
    pipeline: PipelineCut | None = None
    made: Made = ()
    sources: tuple[Place, ...] = ()
    written: Mapping[str, bytes] = field(default_factory=dict)
    unfit: frozenset[str] = frozenset()
    format: str = "safetensors"  # The name of its file format.

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """All tensors, in the order of the shards."""
        return tuple(tensor for shard in self.shards for tensor in shard.tensors)

    @property
    def weight_map(self) -> dict[str, str]:
        """Tensor name to file name, as in an index."""
        return {tensor.name: shard.file for shard in self.shards for tensor in shard.tensors}

    @property
    def of_others(self) -> frozenset[str]:
        """The names of the tensors that are made of another input than the model."""
        if all(change.by is None for change in self.made):  # saves a walk through very many tensors
            return frozenset()
        reads = ((tensor.name, [number for number, _ in tensor.recipe.files()]) for tensor in self.tensors)
        return frozenset(name for name, numbers in reads if any(numbers))

    def component(self, shard: Shard) -> Component:
        """Return the component of `shard`. No two components share a folder."""
        return next(component for component in self.components if component.folder == shard.folder)


def folder_of(path: str) -> str:
    """Return the folder of a file in a repo: "" or ending in "/"."""
    return path[: path.rfind("/") + 1]


def folders_around(path: str) -> set[str]:
    """Return all folders of a repo that contain a file, except the top: "a/" and "a/b/" for "a/b/c.json"."""
    return {path[: match.end()] for match in re.finditer("/", path)}


@dataclass(frozen=True, slots=True)
class StagedJob:
    """What a job stores beside its staged shards, so that somebody with access can resume or discard it. None for a
    folder: the visibility of the result, whether the job `created` the repo, and the commit of `main` when staging
    started."""

    plan_id: str
    source: Place
    options: Options
    private: bool | None = None
    created: bool | None = None
    main: str | None = None
    id: str = ""


class BytesRead(NamedTuple):
    """The BLAKE3, in hex, of the bytes `[start_byte, end_byte)` that were read from a `file` of a source."""

    file: str
    start_byte: int
    end_byte: int
    blake3: str
    source: int = 0


@dataclass(frozen=True, slots=True)
class ShardRecord:
    """A finished shard: file size and SHA-256, and the BLAKE3 of the bytes of each tensor, in hex. `reads` is what the
    job has read from its source since the previous record, if it notes that. `overflowed` counts the numbers of each
    tensor that a cast has made infinite. A merge could have changed the numbers of `unchanged` and did not; nobody can
    judge many of those of `unsure` (`Chunk`). `xet_hash` is that of what was sent to a store, and `samples` has the
    hashes of the ranges that were `sampled`."""

    file: str
    bytes: int
    sha256: str
    tensor_blake3: Mapping[str, str]
    reads: tuple[BytesRead, ...] = ()
    overflowed: Mapping[str, int] = field(default_factory=dict)
    unchanged: tuple[str, ...] = ()
    unsure: tuple[str, ...] = ()
    xet_hash: str | None = field(default=None, compare=False)
    samples: tuple[BytesRead, ...] = field(default=(), compare=False)


@dataclass(frozen=True, slots=True)
class TensorDigest:
    """A tensor without its bytes, whose BLAKE3 is "" where only headers are compared. Equal ones are bit-identical."""

    dtype: str
    shape: tuple[Count, ...]
    blake3: Blake3
