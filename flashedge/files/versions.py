"""Versions of files, by which caches of their contents are keyed."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class FileVersion:
    path: Path
    changed_ns: int
    """The later of its changes of contents and of metadata."""
    size_bytes: int
    inode: int

    @classmethod
    def find(cls, path: Path) -> FileVersion | None:
        """The version that is there now, None without the file. Raises OSError."""
        try:
            found = path.stat()
        except FileNotFoundError:
            return None
        changed = max(found.st_mtime_ns, found.st_ctime_ns)
        return cls(path=path, changed_ns=changed, size_bytes=found.st_size, inode=found.st_ino)
