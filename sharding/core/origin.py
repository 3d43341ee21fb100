"""Name the places of a job: what it reads, each input in its role, and where the copy goes. Pure."""

from dataclasses import dataclass
from typing import Annotated, Literal
from urllib.parse import quote

from pydantic import Field

from sharding.core.bounds import OptionalFolder, Word

Store = Literal["folder", "hub"]
Role = Literal["model", "base", "adapter", "like", "fill"]
"""What a job takes from an input.

The *model* is what it copies. The *base* is the model that was trained: its files beside the weights go into the copy.
The *adapter* is merged into the model. The copy gets the layout of what is *like*, and tensors of what it is to *fill*.
"""

_CALLED = {"model": "source", "like": "original", "fill": "repo of the filled tensors"}


@dataclass(frozen=True, slots=True)
class Place:
    """A folder or a repo in its role, and the state of it that a job is pinned to.

    `revision` is a commit of a Hub repo. For a folder that is read, it is a digest of the names, sizes and modification
    times of its weight files. Two jobs with the same revision read the same bytes. With `inside` (a folder ending in
    "/"), only that folder of a Hub repo counts, as if it were a repo.

    >>> lora = Place("hub", "me/loras", "4f2c", "small/", "adapter")
    >>> lora.name, lora.text, Place("folder", "run", "4f2c").words
    ('me/loras/small', 'me/loras@4f2c/small', 'the folder run')
    """

    store: Store
    repo_id: Word
    revision: Word = ""
    inside: OptionalFolder = ""
    role: Annotated[Role, Field(exclude_if=lambda role: role == "model")] = "model"

    @property
    def name(self) -> str:
        """Its name: "owner/name/sub". A folder may have the name of a repo: see `words`."""
        return f"{self.repo_id}/{self.inside}".removesuffix("/")

    @property
    def called(self) -> str:
        """What a sentence calls it: "source", "base", "adapter", "original"."""
        return _CALLED.get(self.role, self.role)

    def is_same(self, other: "Place") -> bool:
        """Return whether both are the same repo of a Hub. Two folders with the same name may be different ones."""
        return self.store == other.store == "hub" and self.repo_id == other.repo_id

    @property
    def words(self) -> str:
        """Its name in a sentence."""
        return self.name if self.store == "hub" else f"the folder {self.name}"

    @property
    def text(self) -> str:
        """What a command takes for this state of it: "owner/name@commit/sub", or only the name of a folder."""
        at = f"@{self.revision}" if self.store == "hub" and self.revision else ""
        return f"{self.repo_id}{at}/{self.inside}".removesuffix("/")

    @property
    def gives_numbers(self) -> bool:
        """Whether tensors of the copy may be made of its bytes."""
        return self.role != "base"

    @property
    def is_pinned(self) -> bool:
        """Whether anybody who may read it finds this state of it by its `text`."""
        return self.store == "hub"

    @property
    def states_hashes(self) -> bool:
        """Whether its store states hashes of its files."""
        return self.store == "hub"

    def page(self, endpoint: str) -> str:
        """Return the address of its page on the Hub at `endpoint`, "" for a folder on a disk."""
        tree = f"/tree/{quote(self.revision or 'main', safe='')}/{quote(self.inside)}"
        at = tree if self.revision or self.inside else ""
        return f"{endpoint}/{self.repo_id}{at}".removesuffix("/") if self.store == "hub" else ""
