"""The frozen things that stages hand to each other."""

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from math import prod
from typing import Literal, NamedTuple

from sharding.core.bounds import Count, File, Files, Line, Seconds, Word
from sharding.core.hints import PipelineCut
from sharding.core.options import Options
from sharding.core.recipe import Recipe

Library = Literal[
    "transformers",
    "diffusers",
    "sentence-transformers",
    "peft",
    "timm",
    "open_clip",
    "spacy",
    "pytorch_model_hub_mixin",
    "unknown",
]
"""What loads a repo, as the Hub calls it; "unknown" where nothing names it."""


@dataclass(frozen=True, slots=True)
class Finding:
    """Something a person should know about a checkpoint or a plan; never a reason to stop."""

    level: Literal["info", "warning"]
    code: str
    message: str
    hint: str = ""


@dataclass(frozen=True, slots=True)
class FileEntry:
    """A file of a source: its path inside the repo or folder and its size; hashes where somebody states them.

    `git_sha1` is git's own name for the content of a file that lies in git itself. In a repo that is put together of
    several sources it is of the `source` of this number, where it is called `place`, "" where it is called the same.
    """

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
    """A tensor, and how its bytes come about.

    The name has the folder of its component before it ("unet/conv_in.weight"), so that it is the only one in its repo.
    In headers and indexes it stands without. (A tuple, because a plan makes a hundred thousand of them.)
    """

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
        """The file that its first byte is made of."""
        return self.recipe.file

    @property
    def parameters(self) -> int:
        """Number of elements; 1 for a scalar."""
        return prod(self.shape)


@dataclass(frozen=True, slots=True)
class Header:
    """A parsed safetensors header. `tensors` are in stored order; `data_start` is where their bytes begin."""

    tensors: tuple[Tensor, ...]
    metadata: Mapping[str, str] | None
    data_start: int


@dataclass(frozen=True, slots=True)
class RepoRef:
    """What a source or destination is called, and the state of it that a job is pinned to.

    `revision` is a commit of a Hub repo or, for a folder that is read, a digest of its weight files' names,
    sizes and modification times: two jobs with the same revision read the same bytes.
    """

    kind: Literal["folder", "hub"]
    repo_id: Word
    revision: Word


@dataclass(frozen=True, slots=True)
class Component:
    """Weights that are loaded together, by one name: most checkpoints are one, a pipeline has one in each folder.

    `folder` is "" or ends in "/". `metadata` stands in the header of every file, `total_parameters` in the index
    (None: to be counted). One that `is_whole` is loaded from one file only, so it is never cut.

    >>> unet = Component("unet/", "diffusion_pytorch_model", "fp16")
    >>> unet.file("-00001-of-00002"), unet.index
    ('unet/diffusion_pytorch_model.fp16-00001-of-00002.safetensors', \
'unet/diffusion_pytorch_model.safetensors.index.fp16.json')
    """

    folder: str = ""
    stem: str = "model"
    variant: str = ""
    is_whole: bool = False
    metadata: Mapping[str, str] = field(default_factory=lambda: {"format": "pt"})
    total_parameters: int | None = None

    def file(self, suffix: str = "") -> str:
        """Return the path of the weight file whose number is `suffix`, "" for the only one."""
        return f"{self.folder}{self.stem}{self._variant}{suffix}.safetensors"

    @property
    def index(self) -> str:
        """Path of the index, where there is more than one file."""
        return f"{self.folder}{self.stem}.safetensors.index{self._variant}.json"

    def of_rank(self, rank: int, ranks: int) -> "Component":
        """Return it as the variant of one rank of a pipeline, which has an index and no files of its own.

        >>> Component().of_rank(0, 2).index
        'model.safetensors.index.rank0-of-2.json'
        """
        return replace(self, variant=f"{self.variant}{'-' if self.variant else ''}rank{rank}-of-{ranks}")

    @property
    def _variant(self) -> str:
        return f".{self.variant}" if self.variant else ""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """What the headers of a source say: the tensors in stored order, and the files beside the weights."""

    source: RepoRef
    tensors: tuple[Tensor, ...]
    components: tuple[Component, ...]
    weight_files: tuple[FileEntry, ...]
    side_files: tuple[FileEntry, ...]
    findings: tuple[Finding, ...]
    copied_weights: tuple[FileEntry, ...] = ()
    """Which of the side files are weights, of adapters and the like, that are copied as they are."""
    architecture: str | None = None
    library: Library = "transformers"
    configs: Mapping[str, str] = field(default_factory=dict)
    """The text of config.json in the folder of each component that has one, as it is true of the tensors."""
    reconfigured: frozenset[str] = frozenset()
    """The folders in which that is not what the file says."""
    of_ranks: bool = False
    """Whether the ranks of a training run have saved it, so that no library loads it as it is."""
    base: RepoRef | None = None
    """The model that was trained, from which the files beside the weights are."""
    other_variants: tuple[str, ...] = ()
    """Variants that could be taken instead, "" for the plain weights."""
    dequantized: str = ""
    """How they are quantized, in words."""
    unreached: tuple[str, ...] = ()
    """Which of source and base ("owner/name@commit") no branch and no tag of its repo is known to lead to."""

    @property
    def total_bytes(self) -> int:
        """Bytes of all tensors, headers not counted."""
        return sum(tensor.bytes for tensor in self.tensors)

    @property
    def in_pieces(self) -> tuple[Tensor, ...]:
        """The tensors that lie in several files."""
        return tuple(tensor for tensor in self.tensors if len(tensor.recipe.files()) > 1)

    @property
    def tensors_in(self) -> Mapping[str, int]:
        """How many tensors, or pieces of them, each weight file holds."""
        return Counter(file for tensor in self.tensors for _, file in tensor.recipe.files())

    @property
    def total_parameters(self) -> int:
        """Number of parameters: what the indexes say, else the elements of all tensors."""
        stated = ((component.folder, component.total_parameters) for component in self.components)
        index_counts = {folder: count for folder, count in stated if count is not None}
        counted = (tensor.parameters for tensor in self.tensors if tensor.folder not in index_counts)
        return sum(index_counts.values()) + sum(counted)

    @property
    def variant(self) -> str:
        """The variant that was taken, "" for the plain weights."""
        return next((component.variant for component in self.components if component.variant), "")

    @property
    def is_plain_model(self) -> bool:
        """Whether transformers loads it by the name of its repo alone: no pipeline, adapter, variant or ranks."""
        return self.library in ("transformers", "sentence-transformers") and not self.variant and not self.of_ranks


@dataclass(frozen=True, slots=True)
class TiedTensor:
    """A `tensor` in the `file` of one stage that another one needs too: there it is the weights `used_as`."""

    tensor: Line
    file: File
    used_as: tuple[Line, ...]


@dataclass(frozen=True, slots=True)
class Stage:
    """What one machine of a pipeline holds: whole blocks, tensors outside of blocks, and the files with just these.

    `also_needs` are weights in files of other stages, as an output head that is the embeddings; their bytes are
    counted there.
    """

    blocks: tuple[Line, ...]
    others: tuple[Line, ...]
    files: Files
    bytes: Count
    also_needs: tuple[TiedTensor, ...] = ()


@dataclass(frozen=True, slots=True)
class Shard:
    """One file of the result: its tensors in the order their bytes are written, and the header before them."""

    file: str
    tensors: tuple[Tensor, ...]
    bytes: int

    @property
    def folder(self) -> str:
        """Folder of the file, "" or ending in "/": that of its component."""
        return folder_of(self.file)


@dataclass(frozen=True, slots=True)
class Plan:
    """Which shard holds what; the shards of one of the `components` stand one after another.

    `stages` are what each rank of a pipeline loads, where the options ask for one; `pipeline` is where transformers
    cuts it.
    `dequantized` says how the weights were quantized that are computed, "" where none are. `sources` are those whose
    numbers stand in the recipes, `written` the files of the source that the copy has anew, by path.
    """

    shards: tuple[Shard, ...]
    components: tuple[Component, ...]
    total_bytes: int
    total_parameters: int
    options: Options
    findings: tuple[Finding, ...]
    stages: tuple[Stage, ...] = ()
    pipeline: PipelineCut | None = None
    dequantized: str = ""
    sources: tuple[RepoRef, ...] = ()
    written: Mapping[str, bytes] = field(default_factory=dict)

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """All tensors, in the order of the shards."""
        return tuple(tensor for shard in self.shards for tensor in shard.tensors)

    @property
    def weight_map(self) -> dict[str, str]:
        """Tensor name to file name, as an index has it."""
        return {tensor.name: shard.file for shard in self.shards for tensor in shard.tensors}

    def component(self, shard: Shard) -> Component:
        """Return the component that `shard` is of: no two are in one folder."""
        return next(component for component in self.components if component.folder == shard.folder)

    @property
    def indexes(self) -> tuple[str, ...]:
        """Paths of the indexes that the result needs: one for each component of several shards, one for each rank."""
        shards = Counter(shard.folder for shard in self.shards)
        several = [component for component in self.components if shards[component.folder] > 1]
        ranks = range(len(self.stages))
        of_ranks = [component.of_rank(rank, len(ranks)) for component in several for rank in ranks]
        return tuple(component.index for component in (*several, *of_ranks))


def folder_of(path: str) -> str:
    """Return the folder of a file in a repo, "" or ending in "/".

    >>> folder_of("unet/model.safetensors"), folder_of("model.safetensors")
    ('unet/', '')
    """
    return path[: path.rfind("/") + 1]


def folders_around(path: str) -> set[str]:
    """Return the folders of a repo that a file is in, all but its top.

    >>> sorted(folders_around("a/b/model.safetensors"))
    ['a/', 'a/b/']
    """
    return {path[: match.end()] for match in re.finditer("/", path)}


@dataclass(frozen=True, slots=True)
class StagedJob:
    """What a job leaves beside its staged shards, so that anybody who may can go on with it, or discard it.

    The rest says more of a repo and is None for a folder: `private` is the visibility that the result is meant to have,
    `created` whether the job made the repo itself, `main` the commit that `main` was at when staging began. `id` is
    the job's own.
    """

    plan_id: str
    source: RepoRef
    options: Options
    private: bool | None = None
    created: bool | None = None
    main: str | None = None
    id: str = ""


@dataclass(frozen=True, slots=True)
class Discarded:
    """What was removed of an unfinished job. `remark` is what could not be, and what is left to do."""

    found: bool
    repo_deleted: bool = False
    remark: str = ""


class BytesRead(NamedTuple):
    """What came when bytes `[start_byte, end_byte)` of a `file` of a source were read: their BLAKE3 in hex."""

    file: str
    start_byte: int
    end_byte: int
    blake3: str
    source: int = 0


@dataclass(frozen=True, slots=True)
class ShardRecord:
    """A finished shard: file size and SHA-256, and the BLAKE3 of every tensor's bytes. Hashes in hex.

    `reads` are what the job has read of its source since the record before, where it notes that; `overflowed` how many
    numbers of which tensor a cast has made infinite.
    """

    file: str
    bytes: int
    sha256: str
    tensor_blake3: Mapping[str, str]
    reads: tuple[BytesRead, ...] = ()
    overflowed: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class TensorDigest:
    """What a tensor is, short of its bytes: equal digests, by the same hash, mean bit-identical tensors."""

    dtype: str
    shape: tuple[Count, ...]
    digest: str


@dataclass(frozen=True, slots=True)
class Mismatch:
    """A tensor, or a file, that is not what it should be: one line a person can act on."""

    tensor: Line
    problem: Line


UNCHECKED = (
    "code",
    "configuration",
    "tokenizer",
    "other files beside the weights",
    "what a report says of time, memory and bytes moved",
)
"""What nobody has compared who has compared the weights of two checkpoints."""


@dataclass(frozen=True, slots=True)
class Verification:
    """The outcome of comparing two checkpoints. `method` says what was read and compared.

    With a `dtype` other than "keep" the tensors were compared with the original's cast to it, and before that
    `dequantized`, which says how they were quantized. One that is `unstated` matches what was read of a Hub's files, of
    which not all were compared with a hash that the Hub states. `unreached` are those of a `Checkpoint`, of both.
    `unchecked` names what was not compared, where only weights were.
    """

    tensors: Count
    bytes: Count
    seconds: Seconds
    method: Line
    mismatches: tuple[Mismatch, ...]
    dtype: Word = "keep"
    dequantized: Line = ""
    unstated: bool = False
    unreached: tuple[Line, ...] = ()
    unchecked: tuple[Line, ...] = ()

    @property
    def identical(self) -> bool:
        """Whether every tensor is bit-identical to the original's, or to what `tensor.to(dtype)` makes of it."""
        return not self.mismatches


@dataclass(frozen=True, slots=True)
class NodeCost:
    """What a job took of one machine of a fleet: parts done, their bytes, the time of its workers added up.

    `peak_anon_bytes` is the memory of the largest of these processes.
    """

    node: Line
    parts: Count
    bytes: Count
    seconds: Seconds
    peak_anon_bytes: Count


@dataclass(frozen=True, slots=True)
class FleetCost:
    """What many machines took: the engine with its version, each node, and the files that were begun again."""

    engine: Word
    nodes: tuple[NodeCost, ...]
    repeated: tuple[Line, ...] = ()


@dataclass(frozen=True, slots=True)
class Resources:
    """What a job cost: peak anonymous memory of its largest process, wall time, and the bytes it moved.

    What is read to prove the result is not counted, neither of the result nor of the source.
    """

    peak_anon_bytes: Count
    seconds: Seconds
    bytes_read: Count
    read_requests: Count
    bytes_uploaded: Count
    bytes_deduplicated: Count
    disk_bytes_written: Count
