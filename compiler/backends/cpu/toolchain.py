"""The CPU: C built by gcc, kept on disk so that nothing is built twice."""

from __future__ import annotations

import ctypes
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

from compiler.backends.cpu.native_runtime import RUNTIME, RUNTIME_FLAGS, runtime_source
from compiler.backends.cpu.object_cache import ObjectCache
from compiler.backends.cpu.processes import run_bounded
from compiler.codegen import print_c
from compiler.codegen.kernel_spec import KernelSpec
from compiler.errors import BackendError, BuildKilledError, CodegenError

FLAGS = (
    "-O3", "-march=native", "-std=gnu11", "-fPIC", "-shared", "-fopenmp-simd", "-fno-math-errno", "-fno-trapping-math",
    "-fno-semantic-interposition", "-w",
    # Else gcc joins sine and cosine of one angle into sincos, which has no vector form.
    "-fno-builtin-sin", "-fno-builtin-sinf", "-fno-builtin-cos", "-fno-builtin-cosf",
    # Else it moves loads and arithmetic under the conditions of selects, which vectors cannot follow.
    "-fno-tree-sink", "-fno-thread-jumps",
)  # fmt: skip
DRIVER_FLAGS = ("-O1", "-fPIC", "-shared", "-w")
LIBRARIES = ("-lmvec", "-lm")
BUILD_SECONDS = 300


# What compiler, assembler and linker say when it is not the source that is wrong with a build.
_KILLED = ("signal terminated program", "out of memory", "virtual memory exhausted", "Cannot allocate memory")
_LACKING = (
    "No space left on device", "Disk quota exceeded", "Read-only file system", "Input/output error",
    "Resource temporarily unavailable", "Too many open files",
)  # fmt: skip


@dataclass(frozen=True)
class CpuToolchain:
    """A C compiler, what it can do, and where its results are kept."""

    compiler: str
    version: str
    macros: tuple[str, ...]
    cache: ObjectCache

    @property
    def identity(self) -> str:
        """What kernels built here depend on besides their source; part of every cache key."""
        text = "\n".join([self.version, *FLAGS, *self.macros, processor(), print_c.preamble()])
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def shared_object(self, source: str, name: str, flags: Sequence[str] = FLAGS) -> Path:
        """Build `source` unless that was done before; the path of the result.

        Raises:
            CodegenError: the compiler refused the source; with its own words.
            BuildKilledError: the compiler was killed, or ran out of memory.
            BackendError: the cache cannot be written, or the machine lacks something else.
        """
        key = hashlib.sha256("\n".join([source, *flags, self.identity]).encode()).hexdigest()
        found = self.cache.find("sources", key)
        if found is None:
            found = self.cache.keep(self._build(source, name, flags))
            self.cache.note("sources", key, found)
        return found

    def runtime(self) -> Path:
        """The shared object of the C runtime."""
        return self.shared_object(runtime_source(), "runtime", RUNTIME_FLAGS)

    def _build(self, source: str, name: str, flags: Sequence[str]) -> bytes:
        with self.cache.draft_folder() as folder:
            c_file, out = Path(folder) / f"{name}.c", Path(folder) / f"{name}.so"
            command = [self.compiler, *flags, *self.macros, str(c_file), "-o", str(out), *LIBRARIES]
            try:
                c_file.write_text(source)
                done = run_bounded(command, Path(folder), BUILD_SECONDS)
                if done.returncode != 0:
                    raise self._refusal(done, name)
                return out.read_bytes()
            except subprocess.TimeoutExpired:
                raise CodegenError(f"the C compiler took more than {BUILD_SECONDS} s on {name}") from None
            except OSError as e:
                raise BackendError(f"cannot build {name} in {self.cache.folder}: {e.strerror}") from e

    def _refusal(self, done: subprocess.CompletedProcess[str], name: str) -> CodegenError | BackendError:
        """What a failed build says of the source, or else of the machine it was tried on."""
        said = done.stderr.strip()
        if done.returncode < 0 or any(sign in said for sign in _KILLED):
            return BuildKilledError(f"the C compiler was killed while it built {name}; memory may have run out")
        lacking = next((sign for sign in _LACKING if sign in said), None)
        if lacking is not None:
            return BackendError(f"cannot build {name} in {self.cache.folder}: {lacking}")
        return CodegenError(f"the C compiler refused {name}:\n{said[:4000]}")


def find_compiler() -> str:
    """The C compiler to use: $CC, gcc or cc; BackendError when there is none."""
    for name in (os.environ.get("CC", ""), "gcc", "cc"):
        found = shutil.which(name) if name else None
        if found:
            return os.path.abspath(found)  # noqa: PTH100 - a link such as cc -> gcc keeps its name
    raise BackendError(
        "no C compiler found: the cpu backend needs gcc. Install it (Debian: apt install gcc), point CC at one, "
        "or use backend='interpreter'"
    )


def toolchain() -> CpuToolchain:
    """The C compiler found now, probed once for each place it stands at."""
    return _probe(find_compiler(), _cache_folder())


def object_cache() -> ObjectCache:
    """Where built code is kept."""
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


def _links(chain: CpuToolchain, source: str) -> bool:
    """Whether a small program builds and links: glibc's vector math library grew over time."""
    flags = tuple(f for f in FLAGS if f not in ("-shared", "-fPIC"))
    with tempfile.TemporaryDirectory() as folder:
        c_file = Path(folder) / "probe.c"
        c_file.write_text(source)
        command = [chain.compiler, *flags, str(c_file), "-o", str(Path(folder) / "probe"), *LIBRARIES]
        return subprocess.run(command, capture_output=True, timeout=60, check=False, cwd=folder).returncode == 0


def _cache_folder() -> Path:
    """Where built code is kept: $HLOGYM_CACHE, the user's cache folder, or a temporary one."""
    wished = os.environ.get("HLOGYM_CACHE", "")
    home = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return _first_writable(*((_absolute(wished),) if wished else ()), _absolute(home) / "hlogym")


def _absolute(path: str) -> Path:
    # The current folder may change before the cache is used.
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
    """The processor's model and a digest of its features, which -march=native code depends on."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    found = {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in lines)}
    features = hashlib.sha256(found.get("flags", "").encode()).hexdigest()[:12]
    return f"{found.get('model name', platform.machine())} {features}"


def load_runtime() -> ctypes.CDLL:
    """The C runtime of this process, built when it is not there."""
    return RUNTIME.load(toolchain().runtime())


def kernel_objects(kernels: Sequence[KernelSpec], chain: CpuToolchain) -> dict[str, Path]:
    """Shared object that holds each kernel, by symbol; what was not built before is built in one go."""
    index = f"kernels-{chain.identity}"
    distinct = {k.symbol: k for k in kernels}
    objects = chain.cache.find_all(index, distinct)
    for group in _halves([k for symbol, k in distinct.items() if symbol not in objects]):
        source = print_c.preamble() + "\n" + "\n".join(k.source for k in group)
        built = chain.shared_object(source, "kernels" if len(group) > 1 else "kernel")
        for k in group:
            chain.cache.note(index, k.symbol, built)
            objects[k.symbol] = built
    return objects


def _halves(kernels: list[KernelSpec]) -> list[list[KernelSpec]]:
    """Groups of bounded size, so that one build stays short."""
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
    """Why the cpu backend does not work here, or None."""
    try:
        toolchain()
    except BackendError as e:
        return str(e)
    return None
