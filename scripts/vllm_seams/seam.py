"""What a row of the table of seams says."""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum


class Use(StrEnum):
    """How FlashEdge depends on a name. The value continues "FlashEdge ... it"."""

    SUBCLASSED = "inherits from"
    OVERRIDDEN = "overrides"
    REPLACED = "replaces"
    """While the process runs. `inside.patches` does it, or an object of ours for itself."""
    CALLED = "calls"
    ACCESSED = "reads, sets or passes"
    """A field or attribute: its name and type matter."""
    EXACT = "relies on the order or value of"
    """Of a struct all fields in order; of a constant or type alias the value."""
    NAMED = "imports"
    """Only that it exists matters: a module, an exception, an annotation."""
    WORKINGS = "relies on the workings of"
    """Nothing of ours names it, but FlashEdge needs it to do what it does."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Seam:
    """Names of vLLM that FlashEdge uses alike."""

    owner: str
    """The module "vllm.x" or the class "vllm.x:Class" that has the names. Where code of ours
    imports the class, it is the module that it is imported from."""
    names: tuple[str, ...]
    use: Use
    used_by: tuple[str, ...]
    """Our files, below engine/vllm."""
    reason: str

    def list_full_names(self) -> Iterator[str]:
        """Yield "vllm.x:name" or "vllm.x:Class.name"."""
        separator = "." if ":" in self.owner else ":"
        return (f"{self.owner}{separator}{name}" for name in self.names)


def describe_use(owner: str, names: str, use: Use, used_by: str, reason: str) -> Seam:
    """Several names or files are separated by a space."""
    return Seam(
        owner=f"vllm.{owner}".removesuffix("."),
        names=tuple(names.split()),
        use=use,
        used_by=tuple(used_by.split()),
        reason=reason,
    )
