"""What the C compiler tunes kernels for."""

from __future__ import annotations

import subprocess

from compiler.backends.cpu import toolchain


def test_processors_with_wide_vectors_are_not_taken_for_those_before() -> None:
    tools = toolchain.toolchain()
    command = [tools.compiler, "-march=native", "-dM", "-E", "-x", "c", "/dev/null"]
    known = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    is_older = "#define __tune_znver3__ " in known and "#define __AVX512F__ " in known
    assert ("-mtune=icelake-server" in tools.options) == is_older


def test_the_tuning_is_part_of_the_identity_of_kernels() -> None:
    tools = toolchain.toolchain()
    other = toolchain.CpuToolchain(
        tools.compiler, tools.version, (*tools.options, "-mtune=generic"), tools.links, tools.cache
    )
    assert other.identity != tools.identity
