"""Versions of files, by which what was read of one is known to be what it still says."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class FileVersion:
    """A file as it was when it was looked at. A key of a cache of what it says."""

    path: Path
    changed_ns: int
    """The later of its last changes, of contents or of anything else about it."""
    size_bytes: int
    inode: int

    @classmethod
    def find(cls, path: Path) -> FileVersion | None:
        """The version that is there now. None where there is no such file. Raises OSError."""
        try:
            found = path.stat()
        except FileNotFoundError:
            return None
        changed = max(found.st_mtime_ns, found.st_ctime_ns)
        return cls(path=path, changed_ns=changed, size_bytes=found.st_size, inode=found.st_ino)
