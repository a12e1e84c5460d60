"""Cubins: kernels compiled without a GPU, one by one, and found again on disk."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from compiler import compile
from compiler.backends.cuda import nvrtc
from compiler.backends.cuda.cubins import compile_cubins, read_cubin, stored_cubin
from compiler.codegen.kernel_spec import KernelSpec
from compiler.errors import ArgumentError, CodegenError
from tests.codegen import fusions, running
from tests.codegen.nvrtc_errors import has_nvrtc

pytestmark = pytest.mark.skipif(not has_nvrtc(), reason="NVRTC is not installed")

NAMES = fusions.NAMES[:3]


@pytest.fixture(autouse=True)
def empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HLOGYM_CACHE", str(tmp_path))


def _kernels() -> list[KernelSpec]:
    return [running.kernel_of(fusions.fusion(n), "cuda") for n in NAMES]


def test_a_kernel_is_compiled_once(monkeypatch: pytest.MonkeyPatch) -> None:
    kernels = _kernels()
    compiled: list[str] = []
    through = nvrtc.compiler()

    class Counting:
        def version(self) -> str:
            return through.version()

        def architectures(self) -> tuple[int, ...]:
            return through.architectures()

        def compile(self, source: str, options: tuple[str, ...]) -> tuple[bytes, str]:
            compiled.append(source)
            return through.compile(source, options)

    monkeypatch.setattr(nvrtc, "compiler", Counting)
    first = compile_cubins(kernels[:2])
    assert len(compiled) == 2
    second = compile_cubins(kernels)
    assert len(compiled) == 3
    assert {s: second[s] for s in first} == first
    compile_cubins(kernels[:1], "sm_80")
    assert len(compiled) == 4


def test_cubins_are_elf_files_for_their_architecture() -> None:
    (kernel,) = _kernels()[:1]
    for architecture in ("sm_80", "sm_90"):
        cubin = compile_cubins([kernel], architecture)[kernel.symbol]
        assert cubin.architecture == architecture
        assert cubin.image.startswith(b"\x7fELF")
        assert kernel.symbol.encode() in cubin.image
        assert 0 < cubin.resources.registers <= 255
        assert cubin.resources.spill_stores == 0


@pytest.mark.parametrize("architecture", ["sm_999", "90", "compute_90", 9.0, None, True])
def test_architectures_are_checked_before_a_kernel_is_blamed(architecture: Any) -> None:
    with pytest.raises(ArgumentError, match=r"sm_90"):
        compile_cubins(_kernels()[:1], architecture)


def test_an_architecture_may_be_a_number() -> None:
    (kernel,) = _kernels()[:1]
    assert compile_cubins([kernel], 90) == compile_cubins([kernel], "sm_90")


def test_shared_memory_and_spills_are_reported() -> None:
    source = """
extern "C" __global__ void __launch_bounds__(1024) greedy(float *__restrict__ o0) {
  __shared__ float tile[512];
  float x[128];
  for (int i = 0; i < 128; i++) x[i] = o0[i * 1024 + threadIdx.x];
  tile[threadIdx.x & 511] = x[5];
  __syncthreads();
  for (int k = 0; k < 9; k++)
    for (int i = 0; i < 128; i++) x[i] = x[(i * 7 + 3) & 127] * x[i] + tile[(threadIdx.x + i) & 511];
  for (int i = 0; i < 128; i++) o0[i * 1024 + threadIdx.x] = x[i];
}
"""
    kernel = replace(_kernels()[0], source=source, symbol="greedy")
    resources = compile_cubins([kernel])["greedy"].resources
    assert resources.shared_bytes >= 2048
    assert resources.registers <= 64  # of 1024 threads
    assert resources.spill_stores + resources.stack_bytes > 0


def test_a_kernel_that_is_rejected_is_named() -> None:
    kernel = replace(_kernels()[0], source='extern "C" __global__ void wrong() { nothing(); }', symbol="wrong")
    with pytest.raises(CodegenError, match=r"(?s)the kernel wrong of %.* cannot be compiled: .*nothing"):
        compile_cubins([kernel])


@pytest.mark.parametrize("architecture", ["", "compute_90", "sm_90 -I/", "90"])
def test_architectures_have_names(architecture: str) -> None:
    with pytest.raises(ArgumentError, match="an architecture is a name such as 'sm_90'"):
        compile_cubins(_kernels(), architecture)


def test_kernels_in_c_have_no_cubins() -> None:
    kernels = compile("HloModule m\nENTRY e { x = f32[9] parameter(0) ROOT y = f32[9] negate(x) }").kernels
    with pytest.raises(ArgumentError, match="compile the program for 'cuda'"):
        compile_cubins(kernels)


def test_a_damaged_file_is_compiled_again(tmp_path: Path) -> None:
    kernels = _kernels()[:1]
    wanted = compile_cubins(kernels)
    for file in (tmp_path / "objects").iterdir():
        file.write_bytes(b"damaged")
    assert compile_cubins(kernels) == wanted


def test_the_form_on_disk_is_read_back() -> None:
    (cubin,) = compile_cubins(_kernels()[:1]).values()
    data = stored_cubin(cubin)
    assert read_cubin(cubin.symbol, cubin.architecture, data) == cubin
    for damaged in (b"", b"{}\n", b"[1]\n", b"{\n", data[:5]):
        assert read_cubin(cubin.symbol, cubin.architecture, damaged) is None
