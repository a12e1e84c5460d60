"""The CPU: C built by gcc, kept on disk by the hash of what it was built from."""

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

from compiler.codegen import print_c
from compiler.codegen.kernel_spec import KernelSpec
from compiler.errors import BackendError, CodegenError

FLAGS = (
    "-O3", "-march=native", "-std=gnu11", "-fPIC", "-shared", "-fopenmp", "-fno-math-errno", "-fno-trapping-math",
    "-fno-semantic-interposition", "-w",
    # Else gcc joins sine and cosine of one angle into sincos, which has no vector form.
    "-fno-builtin-sin", "-fno-builtin-sinf", "-fno-builtin-cos", "-fno-builtin-cosf",
    # Else it moves loads and arithmetic under the conditions of selects, which vectors cannot follow.
    "-fno-tree-sink", "-fno-thread-jumps",
)  # fmt: skip
LIBRARIES = ("-lmvec", "-lm")
BUILD_SECONDS = 300


@dataclass(frozen=True)
class CpuToolchain:
    """A C compiler, what it can do, and where its results are kept."""

    compiler: str
    version: str
    macros: tuple[str, ...]
    cache: Path

    @property
    def identity(self) -> str:
        """What kernels built here depend on besides their source; part of every cache key."""
        text = "\n".join([self.version, *FLAGS, *self.macros, processor(), print_c.preamble()])
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def shared_object(self, source: str, name: str, flags: Sequence[str] = FLAGS) -> Path:
        """Build `source` unless that was done before; the path of the result.

        CodegenError with the compiler's own words when it fails.
        """
        digest = hashlib.sha256("\n".join([source, *flags, self.identity]).encode()).hexdigest()[:24]
        path = self.cache / f"{name}-{digest}.so"
        if path.exists():
            return path
        with tempfile.TemporaryDirectory(dir=self.cache) as folder:
            c_file, out = Path(folder) / f"{name}.c", Path(folder) / f"{name}.so"
            c_file.write_text(source)
            command = [self.compiler, *flags, *self.macros, str(c_file), "-o", str(out), *LIBRARIES]
            try:
                done = subprocess.run(command, capture_output=True, text=True, timeout=BUILD_SECONDS, check=False)
            except subprocess.TimeoutExpired:
                raise CodegenError(f"the C compiler took more than {BUILD_SECONDS} s on {name}") from None
            if done.returncode != 0:
                raise CodegenError(f"the C compiler refused {name}:\n{done.stderr.strip()[:4000]}")
            out.replace(path)
        return path


def find_compiler() -> str:
    """The C compiler to use: $CC, gcc or cc; BackendError when there is none."""
    for name in (os.environ.get("CC", ""), "gcc", "cc"):
        found = shutil.which(name) if name else None
        if found:
            return found
    raise BackendError(
        "no C compiler found: the cpu backend needs gcc. Install it (Debian: apt install gcc), point CC at one, "
        "or use backend='interpreter'"
    )


def toolchain() -> CpuToolchain:
    """The C compiler found now, probed once for each place it stands at."""
    return _probe(find_compiler(), os.environ.get("HLOGYM_CACHE", ""))


@functools.lru_cache(maxsize=8)
def _probe(compiler: str, cache: str) -> CpuToolchain:
    try:
        done = subprocess.run([compiler, "--version"], capture_output=True, text=True, timeout=60, check=True)
    except (OSError, subprocess.SubprocessError) as e:
        raise BackendError(f"the C compiler {compiler} does not run: {e}") from e
    base = CpuToolchain(compiler, done.stdout.splitlines()[0] if done.stdout else compiler, (), _cache_folder(cache))
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
        return subprocess.run(command, capture_output=True, timeout=60, check=False).returncode == 0


def _cache_folder(wished: str) -> Path:
    """Where built kernels are kept: $HLOGYM_CACHE, the user's cache folder, or a temporary one."""
    home = os.environ.get("XDG_CACHE_HOME") or str(Path("~/.cache").expanduser())
    for folder in ([Path(wished)] if wished else []) + [Path(home) / "hlogym"]:
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


class LoadedLibraries:
    """Shared objects in this process; loading one twice gives the same handle."""

    def __init__(self) -> None:
        self._handles: dict[Path, ctypes.CDLL] = {}

    def load(self, path: Path) -> ctypes.CDLL:
        found = self._handles.get(path)
        if found is None:
            try:
                found = self._handles[path] = ctypes.CDLL(str(path))
            except OSError as e:
                raise BackendError(f"cannot load the built kernels {path.name}: {e}") from e
        return found


LIBRARIES_LOADED = LoadedLibraries()


def kernel_objects(kernels: Sequence[KernelSpec], chain: CpuToolchain) -> dict[str, Path]:
    """Shared object that holds each kernel, by symbol; what was not built before is built in one go."""
    kept = chain.cache / f"kernels-{chain.identity}"
    kept.mkdir(exist_ok=True)
    distinct = {k.symbol: k for k in kernels}
    links = {symbol: kept / f"{symbol}.so" for symbol in distinct}
    missing = [k for symbol, k in distinct.items() if not links[symbol].exists()]
    for group in _halves(missing):
        source = print_c.preamble() + "\n" + "\n".join(k.source for k in group)
        name = "kernels" if len(group) > 1 else "kernel"
        built = chain.shared_object(source, name)
        for k in group:
            _link(built, links[k.symbol])
    return {symbol: link.resolve() for symbol, link in links.items()}


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


def _link(target: Path, link: Path) -> None:
    """A symbolic link, put in place at once even when several processes do so."""
    temporary = link.with_name(f"{link.name}.{os.getpid()}.tmp")
    temporary.unlink(missing_ok=True)
    temporary.symlink_to(target)
    temporary.replace(link)


def kernel_address(symbol: str, path: Path) -> int:
    """Address of a built kernel's function."""
    function = getattr(LIBRARIES_LOADED.load(path), symbol)
    return ctypes.cast(function, ctypes.c_void_p).value or 0


@functools.lru_cache(maxsize=16)
def blas_address(name: str) -> int:
    """Address of a Fortran BLAS routine, as SciPy hands it to Cython code."""
    from scipy.linalg import cython_blas

    capsules: dict[str, object] = dict(cython_blas.__pyx_capi__)
    capsule = capsules[name]
    get_name = ctypes.pythonapi.PyCapsule_GetName
    get_name.restype, get_name.argtypes = ctypes.c_char_p, [ctypes.py_object]
    get_pointer = ctypes.pythonapi.PyCapsule_GetPointer
    get_pointer.restype, get_pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    return int(get_pointer(capsule, get_name(capsule)))


@functools.lru_cache(maxsize=1)
def blas_threading() -> tuple[int, int]:
    """Address of the function that sets how many threads SciPy's OpenBLAS uses, and how many it uses now.

    (0, 0) when SciPy's BLAS is not OpenBLAS or cannot be found.
    """
    blas_address("sgemm")
    try:
        mapped = {line.rpartition(" ")[2] for line in Path("/proc/self/maps").read_text().splitlines()}
    except OSError:
        return 0, 0
    for name in sorted(p for p in mapped if "scipy" in p and "openblas" in p):
        library = ctypes.CDLL(name)
        for prefix in ("scipy_", ""):
            setter = getattr(library, f"{prefix}openblas_set_num_threads", None)
            getter = getattr(library, f"{prefix}openblas_get_num_threads", None)
            if setter is not None and getter is not None:
                return ctypes.cast(setter, ctypes.c_void_p).value or 0, int(getter())
    return 0, 0


def why_unavailable() -> str | None:
    """Why the cpu backend does not work here, or None."""
    try:
        toolchain()
    except BackendError as e:
        return str(e)
    return None
