"""The error of a failed build distinguishes faults of the source from faults of the machine."""

import shutil
from pathlib import Path

import pytest

from compiler.backends.cpu.toolchain import toolchain
from compiler.errors import BackendError, BuildKilledError, CodegenError

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
    with pytest.raises(BackendError, match="No space left on device"):
        toolchain().shared_object("int f(void) { return 1; }", "broken")
