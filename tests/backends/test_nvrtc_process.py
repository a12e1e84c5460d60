"""NVRTC in processes of its own, which end when they are idle or crash."""

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from compiler.backends.cuda import nvrtc, nvrtc_process, nvrtc_worker
from compiler.backends.cuda.nvrtc_process import ProcessNvrtc
from compiler.errors import BackendError, CodegenError
from tests.codegen.nvrtc_errors import has_nvrtc

_KERNEL = 'extern "C" __global__ void k{0}(float* a) {{ a[threadIdx.x] += {0}; }}'
_OPTIONS = (*nvrtc.OPTIONS, "--gpu-architecture=sm_90")
needs_nvrtc = pytest.mark.skipif(not has_nvrtc(), reason="NVRTC is not installed")


def _process() -> ProcessNvrtc:
    return ProcessNvrtc(nvrtc._beside_headers())


@needs_nvrtc
def test_threads_get_the_cubins_of_their_sources() -> None:
    compiler = _process()
    with ThreadPoolExecutor(4) as pool:
        made = list(pool.map(lambda n: compiler.compile(_KERNEL.format(n), _OPTIONS)[0] or b"", range(8)))
    assert all(image.startswith(b"\x7fELF") and b"k%d\0" % n in image for n, image in enumerate(made))


@needs_nvrtc
def test_a_process_that_has_ended_is_replaced() -> None:
    compiler = _process()
    before = compiler.compile(_KERNEL.format(1), _OPTIONS)
    (worker,) = compiler._idle
    worker.kill()
    worker.wait()
    assert compiler.compile(_KERNEL.format(1), _OPTIONS) == before
    assert compiler._idle != [worker]


@needs_nvrtc
def test_a_source_that_is_rejected_has_a_log_and_no_cubin() -> None:
    compiler = _process()
    image, log = compiler.compile("__global__ void k() { undefined(); }", _OPTIONS)
    assert image is None
    assert "undefined" in log
    assert compiler.compile(_KERNEL.format(2), _OPTIONS)[0]


@needs_nvrtc
@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="only Linux lists what a process has loaded")
def test_the_library_is_not_loaded_by_the_process_that_asks() -> None:
    code = (
        "from compiler.backends.cuda import nvrtc_process as p\n"
        f"made = p.ProcessNvrtc({nvrtc._beside_headers()!r}).compile({_KERNEL.format(3)!r}, {_OPTIONS!r})[0]\n"
        "print(len(made) > 0, 'libnvrtc' in open('/proc/self/maps').read())\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[2])}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["True", "False"]


def test_an_idle_process_ends(tmp_path: Path) -> None:
    script = tmp_path / "worker.py"
    text = Path(nvrtc_worker.__file__).read_text()
    script.write_text(text.replace(f"IDLE_SECONDS = {nvrtc_worker.IDLE_SECONDS}", "IDLE_SECONDS = 0.0"))
    command = [sys.executable, "-I", "-S", str(script), "libnothing.so"]
    with subprocess.Popen(command, stdin=subprocess.PIPE) as worker:
        assert worker.wait(timeout=60) == 0


def test_a_library_that_cannot_be_loaded_is_a_backend_error() -> None:
    with pytest.raises(BackendError, match="libnothing"):
        ProcessNvrtc("libnothing.so").version()


def test_a_crash_is_an_error_and_does_not_end_the_process_that_asks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = tmp_path / "worker.py"
    script.write_text("import os, signal, sys\nsys.stdin.readline()\nos.kill(os.getpid(), signal.SIGSEGV)\n")
    monkeypatch.setattr(nvrtc_process, "_SCRIPT", str(script))
    with pytest.raises(CodegenError, match="NVRTC ended with code -11"):
        ProcessNvrtc("any").compile("", ())
