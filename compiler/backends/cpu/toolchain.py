"""The C toolchain of the cpu backend: it compiles with gcc and caches what it has compiled."""

from __future__ import annotations

import functools
import hashlib
import os
import platform
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from compiler.backends.cpu.native_runtime import RUNTIME_FLAGS, runtime_source
from compiler.backends.cpu.object_cache import ObjectCache
from compiler.backends.cpu.processes import run_bounded
from compiler.codegen import print_c
from compiler.codegen.kernel_spec import KernelSpec
from compiler.errors import BackendError, BuildKilledError, CodegenError

FLAGS = (
    "-O3", "-march=native", "-std=gnu11", "-fPIC", "-shared", "-fopenmp-simd", "-fno-math-errno", "-fno-trapping-math",
    "-fno-semantic-interposition", "-w",
    # Otherwise gcc merges the sine and cosine of one angle into sincos, which has no vector variant.
    "-fno-builtin-sin", "-fno-builtin-sinf", "-fno-builtin-cos", "-fno-builtin-cosf",
    # Otherwise gcc moves loads and arithmetic into the branches of selects, which prevents vectorization.
    "-fno-tree-sink", "-fno-thread-jumps",
)  # fmt: skip
DRIVER_FLAGS = ("-O1", "-fPIC", "-shared", "-w")
LIBRARIES = ("-lmvec", "-lm")
BUILD_SECONDS = 300
"""Time limit of one build in seconds."""


# Messages of compiler, assembler and linker that do not mean that the source is wrong.
_KILLED = ("signal terminated program", "out of memory", "virtual memory exhausted", "Cannot allocate memory")
_LACKING = (
    "No space left on device", "Disk quota exceeded", "Read-only file system", "Input/output error",
    "Resource temporarily unavailable", "Too many open files",
)  # fmt: skip


@dataclass(frozen=True)
class CpuToolchain:
    """A C compiler with the cache of what it has compiled.

    Attributes:
        compiler: path of the compiler.
        version: first line of its version message.
        macros: options that define the macros for the features it supports.
        cache: the cache of shared objects.
    """

    compiler: str
    version: str
    macros: tuple[str, ...]
    cache: ObjectCache

    @property
    def identity(self) -> str:
        """Return a hash of what compiled kernels depend on besides their source; it is part of every cache key."""
        text = "\n".join([self.version, *FLAGS, *self.macros, processor(), print_c.preamble()])
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def shared_object(self, source: str, name: str, flags: Sequence[str] = FLAGS) -> Path:
        """Return the path of the shared object compiled from `source`; compile it unless it is in the cache.

        Raises:
            CodegenError: the compiler rejected the source, or took too long; includes the compiler's message.
            BuildKilledError: the compiler was killed or ran out of memory.
            BackendError: the cache cannot be written, or the machine lacks another resource.
        """
        key = hashlib.sha256("\n".join([source, *flags, self.identity]).encode()).hexdigest()
        found = self.cache.find("sources", key)
        if found is None:
            found = self.cache.store(self._build(source, name, flags))
            self.cache.record("sources", key, found)
        return found

    def runtime(self) -> Path:
        """Return the path of the shared object of the C runtime."""
        return self.shared_object(runtime_source(), "runtime", RUNTIME_FLAGS)

    def _build(self, source: str, name: str, flags: Sequence[str]) -> bytes:
        with self.cache.draft_folder() as folder:
            c_file, out = Path(folder) / f"{name}.c", Path(folder) / f"{name}.so"
            command = [self.compiler, *flags, *self.macros, str(c_file), "-o", str(out), *LIBRARIES]
            try:
                c_file.write_text(source)
                done = run_bounded(command, Path(folder), BUILD_SECONDS)
                if done.returncode != 0:
                    raise self._build_error(done, name)
                return out.read_bytes()
            except subprocess.TimeoutExpired:
                raise CodegenError(f"the C compiler took more than {BUILD_SECONDS} s on {name}") from None
            except OSError as e:
                raise BackendError(f"cannot build {name} in {self.cache.folder}: {e.strerror}") from e

    def _build_error(self, done: subprocess.CompletedProcess[str], name: str) -> CodegenError | BackendError:
        """Return the error of a failed build, which is the fault of either the source or the machine."""
        message = done.stderr.strip()
        if done.returncode < 0 or any(marker in message for marker in _KILLED):
            return BuildKilledError(f"the C compiler was killed while it built {name}; memory may have run out")
        lacking = next((marker for marker in _LACKING if marker in message), None)
        if lacking is not None:
            return BackendError(f"cannot build {name} in {self.cache.folder}: {lacking}")
        return CodegenError(f"the C compiler rejected {name}:\n{message[:4000]}")


def find_compiler() -> str:
    """Return the path of the C compiler, $CC, gcc or cc; raise BackendError if there is none."""
    for name in (os.environ.get("CC", ""), "gcc", "cc"):
        found = shutil.which(name) if name else None
        if found:
            return os.path.abspath(found)  # noqa: PTH100 - resolve() would follow a link such as cc -> gcc
    raise BackendError(
        "no C compiler found: the cpu backend needs gcc. Install it (Debian: apt install gcc), point CC at one, "
        "or use backend='interpreter'"
    )


def toolchain() -> CpuToolchain:
    """Return the C compiler that is currently found, after probing it once per path and cache folder."""
    return _probe(find_compiler(), _cache_folder())


def object_cache() -> ObjectCache:
    """Return the cache of compiled code."""
    return ObjectCache(_cache_folder())


@functools.lru_cache(maxsize=8)
def _probe(compiler: str, folder: Path) -> CpuToolchain:
    try:
        done = subprocess.run([compiler, "--version"], capture_output=True, text=True, timeout=60, check=True)
    except (OSError, subprocess.SubprocessError) as e:
        raise BackendError(f"the C compiler {compiler} does not run: {e}") from e
    cache = ObjectCache(folder)
    cache.remove_stale_drafts()
    base = CpuToolchain(compiler, done.stdout.splitlines()[0] if done.stdout else compiler, (), cache)
    full = """
        __attribute__((simd("notinbranch"))) float tanhf(float);
        void f(float *x) {
        #pragma omp simd
          for (int i = 0; i < 64; i++) x[i] = tanhf(x[i]);
        }
        int main(void) { return 0; }
    """
    macros = ("-DHLOGYM_LIBMVEC_FULL",) if _links(base, full) else ()
    return CpuToolchain(base.compiler, base.version, macros, base.cache)


def _links(tools: CpuToolchain, source: str) -> bool:
    """Check whether a program compiles and links; glibc's vector math library lacks functions in older versions."""
    flags = tuple(f for f in FLAGS if f not in ("-shared", "-fPIC"))
    with tempfile.TemporaryDirectory() as folder:
        c_file = Path(folder) / "probe.c"
        c_file.write_text(source)
        command = [tools.compiler, *flags, str(c_file), "-o", str(Path(folder) / "probe"), *LIBRARIES]
        return subprocess.run(command, capture_output=True, timeout=60, check=False, cwd=folder).returncode == 0


def _cache_folder() -> Path:
    """Return the folder of compiled code: $HLOGYM_CACHE, the user's cache folder, or a temporary one."""
    requested = os.environ.get("HLOGYM_CACHE", "")
    home = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return _first_writable(*((_absolute(requested),) if requested else ()), _absolute(home) / "hlogym")


def _absolute(path: str) -> Path:
    # The working directory may change before the cache is used.
    return Path(path).expanduser().absolute()


@functools.lru_cache(maxsize=8)
def _first_writable(*folders: Path) -> Path:
    for folder in folders:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=folder):
                return folder
        except OSError:
            continue
    return Path(tempfile.mkdtemp(prefix="hlogym-"))


@functools.lru_cache(maxsize=1)
def processor() -> str:
    """Return the processor's model and a digest of its features, on which code compiled with -march=native depends."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    found = {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in lines)}
    features = hashlib.sha256(found.get("flags", "").encode()).hexdigest()[:12]
    return f"{found.get('model name', platform.machine())} {features}"


def kernel_objects(kernels: Sequence[KernelSpec], tools: CpuToolchain) -> dict[str, Path]:
    """Return the shared object that contains each kernel, by symbol; kernels that are not in the cache are compiled."""
    index = f"kernels-{tools.identity}"
    distinct = {k.symbol: k for k in kernels}
    objects = tools.cache.find_all(index, distinct)
    for group in _group_by_size([k for symbol, k in distinct.items() if symbol not in objects]):
        source = print_c.preamble() + "\n" + "\n".join(k.source for k in group)
        built = tools.shared_object(source, "kernels" if len(group) > 1 else "kernel")
        for k in group:
            tools.cache.record(index, k.symbol, built)
            objects[k.symbol] = built
    return objects


def _group_by_size(kernels: list[KernelSpec]) -> list[list[KernelSpec]]:
    """Return groups of kernels of bounded source size, so that no single build takes long."""
    groups: list[list[KernelSpec]] = []
    size = 0
    for k in kernels:
        if not groups or size > 60_000:
            groups.append([])
            size = 0
        groups[-1].append(k)
        size += len(k.source)
    return groups


def why_unavailable() -> str | None:
    """Return why the cpu backend does not work on this machine, or None if it works."""
    try:
        toolchain()
    except BackendError as e:
        return str(e)
    return None
