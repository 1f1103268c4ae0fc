"""Versions of files, which are keys in caches of their contents."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class FileVersion:
    path: Path
    changed_ns: int
    """Nanoseconds since 1970 of the last change of contents or metadata."""
    size_bytes: int
    inode: int

    @classmethod
    def find(cls, path: Path) -> FileVersion | None:
        """The file's version now, or None if there is no file. Raises OSError."""
        try:
            found = path.stat()
        except FileNotFoundError:
            return None
        changed = max(found.st_mtime_ns, found.st_ctime_ns)
        return cls(path=path, changed_ns=changed, size_bytes=found.st_size, inode=found.st_ino)
