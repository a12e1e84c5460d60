"""The C toolchain of the cpu backend: it compiles with gcc and caches what it has compiled."""

from __future__ import annotations

import functools
import hashlib
import os
import platform
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

from compiler.backends.cpu.native_runtime import RUNTIME_FLAGS, runtime_source
from compiler.backends.cpu.object_cache import DEFAULT_LIMIT, ObjectCache
from compiler.backends.cpu.processes import Command, run_all_bounded
from compiler.codegen.kernel_spec import KernelSpec
from compiler.codegen.printing import print_c
from compiler.codegen.schedules.schedule import COMPILER_FLAGS
from compiler.errors import BackendError, BuildKilledError, CodegenError
from compiler.support.memory import bytes_of_variable
from compiler.support.processor import processor
from compiler.support.threads import available_cores

FLAGS = (
    "-O3", "-march=native", "-std=gnu11", "-fPIC", "-shared", "-fopenmp-simd", "-fno-math-errno", "-fno-trapping-math",
    "-fno-semantic-interposition", "-w",
    # A short loop that begins near the end of a cache line takes twice as long on some processors, for some addresses
    # of its arrays; gcc 12 aligns loops to 16 bytes, and only if that takes few.
    "-falign-loops=32",
    # Otherwise gcc merges the sine and cosine of one angle into sincos, which has no vector variant.
    "-fno-builtin-sin", "-fno-builtin-sinf", "-fno-builtin-cos", "-fno-builtin-cosf",
    # Otherwise gcc moves loads and arithmetic into the branches of selects, which prevents vectorization; partial
    # redundancy elimination (pre) turns selects that follow each other, such as maxima, into branches.
    "-fno-tree-sink", "-fno-thread-jumps", "-fno-tree-pre",
    # Otherwise gcc moves what is the same for a row into the loop over its elements, and finds no vectors for bools.
    "-fno-loop-unroll-and-jam",
)  # fmt: skip
LIBRARIES = ("-Wl,--no-as-needed", "-lmvec", "-lm")
"""Libraries of the runtime. It is loaded first, so that kernels and drivers find the functions without linking."""
LINK_FLAGS = ("-nostdlib", "-pipe", "-fno-use-linker-plugin", "-lgcc")
"""Flags that halve the time of a build; a compiler that lacks them links as usual."""
GROUP_CHARACTERS, MAX_GROUP_CHARACTERS = 4_000, 60_000
"""Length of C source from which it is worthwhile to build kernels apart, and at which no group grows further."""
BUILD_SECONDS = 300
"""Time limit of one build in seconds."""


# Messages of compiler, assembler and linker that do not mean that the source is wrong.
_KILLED = ("signal terminated program", "out of memory", "virtual memory exhausted", "Cannot allocate memory")
_LACKING = (
    "No space left on device", "Disk quota exceeded", "Read-only file system", "Input/output error",
    "Resource temporarily unavailable", "Too many open files",
)  # fmt: skip


@dataclass(frozen=True)
class Source:
    """C source of one shared object.

    Attributes:
        text: the source.
        name: name for messages.
        flags: options of the compiler.
    """

    text: str
    name: str
    flags: tuple[str, ...] = FLAGS


@dataclass(frozen=True)
class CpuToolchain:
    """A C compiler with the cache of what it has compiled.

    Attributes:
        compiler: path of the compiler.
        version: first line of its version message.
        options: macros for the features that it supports, and what it is tuned for if it does not know the processor.
        links: options that come last, with the libraries of kernels and drivers.
        cache: the cache of shared objects.
    """

    compiler: str
    version: str
    options: tuple[str, ...]
    links: tuple[str, ...]
    cache: ObjectCache

    @property
    def identity(self) -> str:
        """Return a hash of what compiled kernels depend on besides their source; it is part of every cache key."""
        text = "\n".join([self.version, *FLAGS, *self.options, *self.links, processor(), print_c.preamble()])
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def shared_object(self, source: str, name: str, flags: Sequence[str] = FLAGS) -> Path:
        """Return the path of the shared object compiled from `source`; compile it unless it is in the cache.

        Raises:
            CodegenError: the compiler rejected the source, or took too long; includes the compiler's message.
            BuildKilledError: the compiler was killed or ran out of memory.
            BackendError: the cache cannot be written, or the machine lacks another resource.
        """
        return self.shared_objects([Source(source, name, tuple(flags))])[0]

    def shared_objects(self, sources: Sequence[Source]) -> list[Path]:
        """Return the shared objects of several sources, as `shared_object` does; missing ones are built in parallel."""
        keys = [hashlib.sha256("\n".join([s.text, *s.flags, self.identity]).encode()).hexdigest() for s in sources]
        found = self.cache.find_all("sources", keys)
        missing = {key: s for key, s in zip(keys, sources, strict=True) if key not in found}
        for key, built in zip(missing, self._build(list(missing.values())), strict=True):
            found[key] = self.cache.store(built)
            self.cache.record("sources", key, found[key])
        return [found[key] for key in keys]

    def runtime_source(self) -> Source:
        """Return the source of the C runtime."""
        return Source(runtime_source(), "runtime", (*RUNTIME_FLAGS, *LIBRARIES))

    def runtime(self) -> Path:
        """Return the path of the shared object of the C runtime."""
        return self.shared_objects([self.runtime_source()])[0]

    def _build(self, sources: Sequence[Source]) -> Iterator[bytes]:
        """Build sources, as many at a time as there are cores, and yield their shared objects in order."""
        with ExitStack() as folders:
            commands = []
            for s in sources:
                folder = Path(folders.enter_context(self.cache.draft_folder()))
                c_file = folder / f"{s.name}.c"
                links = self.links if s.flags[-1] not in LIBRARIES else ()
                words = [self.compiler, *s.flags, *self.options, str(c_file), "-o", str(folder / "built.so"), *links]
                commands.append(Command(words, folder))
                with self._report_errors(s.name):
                    c_file.write_text(s.text)
            results = run_all_bounded(commands, BUILD_SECONDS, available_cores())
            with closing(results):
                for s, command in zip(sources, commands, strict=True):
                    with self._report_errors(s.name):
                        done = next(results)
                        if done.returncode != 0:
                            raise self._build_error(done, s.name)
                        built = (command.folder / "built.so").read_bytes()
                    yield built

    @contextmanager
    def _report_errors(self, name: str) -> Iterator[None]:
        try:
            yield
        except subprocess.TimeoutExpired:
            raise CodegenError(f"the C compiler took more than {BUILD_SECONDS} s on {name}") from None
        except OSError as e:
            raise self.cache.failed(f"build {name} in", e.strerror) from e

    def _build_error(self, done: subprocess.CompletedProcess[str], name: str) -> CodegenError | BackendError:
        """Return the error of a failed build, which is the fault of either the source or the machine."""
        message = done.stderr.strip()
        if done.returncode < 0 or any(marker in message for marker in _KILLED):
            return BuildKilledError(f"the C compiler was killed while it built {name}; memory may have run out")
        lacking = next((marker for marker in _LACKING if marker in message), None)
        if lacking is not None:
            return self.cache.failed(f"build {name} in", lacking)
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
    return _probe(find_compiler(), _cache_folder(), _cache_limit())


def object_cache() -> ObjectCache:
    """Return the cache of compiled code."""
    return ObjectCache(_cache_folder(), _cache_limit())


@functools.lru_cache(maxsize=8)
def _probe(compiler: str, folder: Path, limit: int) -> CpuToolchain:
    try:
        done = subprocess.run([compiler, "--version"], capture_output=True, text=True, timeout=60, check=True)
    except (OSError, subprocess.SubprocessError) as e:
        raise BackendError(f"the C compiler {compiler} does not run: {e}") from e
    cache = ObjectCache(folder, limit)
    cache.remove_stale_drafts()
    version = done.stdout.splitlines()[0] if done.stdout else compiler
    options: tuple[str, ...] = (
        ("-DHLOGYM_LIBMVEC_FULL",) if _has(cache, compiler, version, FULL_LIBMVEC, LIBRARIES) else ()
    )
    if _has(cache, compiler, version, f"/* {processor()} */{TUNED_FOR_AN_OLDER_PROCESSOR}", LIBRARIES):
        options = (*options, "-mtune=icelake-server")
    links = LINK_FLAGS if _has(cache, compiler, version, ANY_FUNCTION, LINK_FLAGS) else LIBRARIES
    return CpuToolchain(compiler, version, options, links, cache)


# Older versions of glibc's vector math library lack functions.
FULL_LIBMVEC = """
__attribute__((simd("notinbranch"))) float tanhf(float);
void f(float *x) {
#pragma omp simd
  for (int i = 0; i < 64; i++) x[i] = tanhf(x[i]);
}
"""
# Versions of gcc before 13 take processors of AMD that have vectors of 512 bits for those of the generation before, on
# which a load is cheap inside of another instruction. They then load what is in a register, time and again.
TUNED_FOR_AN_OLDER_PROCESSOR = """
#if !defined(__tune_znver3__) || !defined(__AVX512F__)
#error
#endif
void f(float *x) { x[0] = 1; }
"""
ANY_FUNCTION = "void f(float *x) { x[0] = 1; }\n"


def _has(cache: ObjectCache, compiler: str, version: str, source: str, links: tuple[str, ...]) -> bool:
    """Check whether a library compiles and links without undefined functions; the answer is cached on disk."""
    flags = (*FLAGS, "-Wl,-z,defs")
    question = "\n".join([compiler, version, *platform.libc_ver(), source, *flags, *links])
    key = hashlib.sha256(question.encode()).hexdigest()
    known = cache.note("features", key)
    if known:
        return known == "yes"
    with tempfile.TemporaryDirectory() as folder:
        c_file = Path(folder) / "probe.c"
        c_file.write_text(source)
        command = [compiler, *flags, str(c_file), "-o", str(Path(folder) / "probe.so"), *links]
        done = subprocess.run(command, capture_output=True, timeout=60, check=False, cwd=folder)
    cache.write_note("features", key, "yes" if done.returncode == 0 else "no")
    return done.returncode == 0


def _cache_folder() -> Path:
    """Return the folder of compiled code: $HLOGYM_CACHE, the user's cache folder, or a temporary one."""
    requested = os.environ.get("HLOGYM_CACHE", "")
    home = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return _first_writable(*((_absolute(requested),) if requested else ()), _absolute(home) / "hlogym")


def _cache_limit() -> int:
    """Return the bytes that compiled code may take on disk: $HLOGYM_CACHE_SIZE, such as 500M or 4G, or the default."""
    return bytes_of_variable("HLOGYM_CACHE_SIZE", DEFAULT_LIMIT)


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


def kernel_objects(kernels: Sequence[KernelSpec], tools: CpuToolchain) -> dict[str, Path]:
    """Return the shared object that contains each kernel, by symbol; kernels that are not in the cache are compiled."""
    return program_objects(kernels, (), tools)[0]


def each_object(kernels: Sequence[KernelSpec], tools: CpuToolchain) -> dict[str, Path]:
    """Return what `kernel_objects` does, without the kernels that cannot be compiled."""
    try:
        return kernel_objects(kernels, tools)
    except CodegenError:
        if len(kernels) < 2:
            return {}
        return {symbol: path for k in kernels for symbol, path in each_object([k], tools).items()}


def program_objects(
    kernels: Sequence[KernelSpec], others: Sequence[Source], tools: CpuToolchain
) -> tuple[dict[str, Path], list[Path]]:
    """Return the shared object of each kernel, by symbol, and of other sources; build those that are missing."""
    index = f"kernels-{tools.identity}"
    distinct = {k.symbol: k for k in kernels}
    objects = tools.cache.find_all(index, distinct)
    groups = balanced_groups([k for symbol, k in distinct.items() if symbol not in objects], available_cores())
    built = tools.shared_objects([*others, *map(_group_source, groups)])
    for group, path in zip(groups, built[len(others) :], strict=True):
        for k in group:
            tools.cache.record(index, k.symbol, path)
            objects[k.symbol] = path
    return objects, built[: len(others)]


def _group_source(group: Sequence[KernelSpec]) -> Source:
    text = print_c.preamble() + "\n" + "\n".join(k.source for k in group)
    return Source(text, "kernels" if len(group) > 1 else "kernel", (*FLAGS, *COMPILER_FLAGS[group[0].flags]))


def balanced_groups(kernels: Sequence[KernelSpec], cores: int) -> list[list[KernelSpec]]:
    """Return groups of kernels to build apart: enough for all cores and none too long, of about equal length.

    The kernels of a group have the same flags.
    """
    by_flags: dict[int, list[KernelSpec]] = {}
    for k in kernels:
        by_flags.setdefault(k.flags, []).append(k)
    return [group for alike in by_flags.values() for group in _balanced(alike, cores)]


def _balanced(kernels: Sequence[KernelSpec], cores: int) -> list[list[KernelSpec]]:
    total = sum(len(k.source) for k in kernels)
    count = max(min(cores, -(-total // GROUP_CHARACTERS)), -(-total // MAX_GROUP_CHARACTERS))
    if count > cores:
        count += -count % cores  # a last round with fewer groups would leave cores idle
    count = min(count, len(kernels))
    groups: list[list[KernelSpec]] = [[] for _ in range(count)]
    sizes = [0] * count
    for k in sorted(kernels, key=lambda k: -len(k.source)):
        smallest = sizes.index(min(sizes))
        groups[smallest].append(k)
        sizes[smallest] += len(k.source)
    return [g for g in groups if g]


def why_unavailable() -> str | None:
    """Return why the cpu backend does not work on this machine, or None if it works."""
    try:
        toolchain()
    except BackendError as e:
        return str(e)
    return None
