"""The error of a failed build distinguishes faults of the source from faults of the machine."""

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from compiler.backends.cpu.toolchain import Source, balanced_groups, toolchain
from compiler.codegen.kernel_spec import KernelSpec
from compiler.errors import BackendError, BuildKilledError, CodegenError

KERNEL = KernelSpec("k", "loop", "c", "", "k", (), (), 0, 0)
MESSAGES = {
    "kernel.c:1:2: error: expected ';'": CodegenError,
    "kernel.s: Fatal error: can't write 12 bytes: No space left on device": BackendError,
    "/usr/bin/ld: final link failed: Disk quota exceeded": BackendError,
    "cc1: fatal error: fork: Resource temporarily unavailable": BackendError,
    "cc1: out of memory allocating 65536 bytes after a total of 1 bytes": BuildKilledError,
    "gcc: fatal error: Killed signal terminated program cc1": BuildKilledError,
}


def compile_with(commands: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Set CC to gcc with a wrapper that runs these shell commands for a source named `broken`."""
    script = folder / "cc"
    script.write_text(f'#!/bin/sh\ncase "$*" in *broken.c*) {commands};; esac\nexec {shutil.which("gcc")} "$@"\n')
    script.chmod(0o755)
    monkeypatch.setenv("CC", str(script))
    monkeypatch.setenv("HLOGYM_CACHE", str(folder / "cache"))


@pytest.mark.parametrize("message", MESSAGES)
def test_the_message_of_the_compiler_decides_the_error(
    message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "message").write_text(message)
    compile_with(f"cat {tmp_path}/message >&2; exit 1", tmp_path, monkeypatch)
    with pytest.raises((CodegenError, BackendError)) as caught:
        toolchain().shared_object("int f(void) { return 1; }", "broken")
    assert caught.type is MESSAGES[message]


def test_the_compiler_runs_in_the_c_locale(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compile_with('[ "$LC_ALL" = C ] && echo "No space left on device" >&2; exit 1', tmp_path, monkeypatch)
    monkeypatch.setenv("LC_ALL", "de_DE.UTF-8")
    with pytest.raises(BackendError, match="No space left on device; free some space there, or set HLOGYM_CACHE"):
        toolchain().shared_object("int f(void) { return 1; }", "broken")


def test_an_error_in_one_of_several_sources_names_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HLOGYM_CACHE", str(tmp_path))
    sources = [Source("int f(void) { return 1; }", "right"), Source("int f(", "wrong"), Source("int g;", "other")]
    with pytest.raises(CodegenError, match="rejected wrong"):
        toolchain().shared_objects(sources)
    assert [p.suffix for p in (tmp_path / "objects").iterdir()] == [".so"]  # what was built before is kept
    assert not list(tmp_path.glob(".draft-*"))


def test_missing_kernels_are_built_in_groups_of_similar_length() -> None:
    lengths = (9000, 100, 5000, 4000, 50, 200, 8000)
    kernels = [replace(KERNEL, symbol=f"k{n}", source="x" * length) for n, length in enumerate(lengths)]
    groups = balanced_groups(kernels, 2)
    assert sorted(k.symbol for g in groups for k in g) == [k.symbol for k in kernels]
    assert [sum(len(k.source) for k in g) for g in groups] == pytest.approx([13175, 13175], abs=300)
    assert len(balanced_groups(kernels[1:2], 2)) == 1  # starting a compiler costs more than a short kernel
    assert len(balanced_groups(kernels * 20, 2)) == 10
    assert len(balanced_groups(kernels * 20, 4)) == 12  # as many in the last round as there are cores
    assert balanced_groups([], 2) == []
