"""How g++ builds emulated kernels: groups of kernels become shared objects, which are cached on disk by content."""

from __future__ import annotations

import functools
import hashlib
import re
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

from compiler.backends.cpu.object_cache import ObjectCache
from compiler.backends.cpu.processes import Command, run_all_bounded
from compiler.backends.cpu.toolchain import BUILD_SECONDS, balanced_groups, object_cache
from compiler.codegen.kernel_spec import KernelSpec
from compiler.codegen.printing import print_cuda
from compiler.errors import BackendError, BuildKilledError, CodegenError
from compiler.support.threads import available_cores

FLAGS = ("-std=c++17", "-shared", "-fPIC", "-w", "-fvisibility=hidden", "-fno-gnu-unique", "-U_FORTIFY_SOURCE")
KERNEL_FLAGS = (
    "-O1", "-fno-strict-aliasing", "-ffp-contract=off", "-fno-exceptions",
    # Each access to memory becomes a call, which emulation.h defines; the library of the sanitizer is not linked.
    "-fsanitize=thread", "--param", "tsan-instrument-func-entry-exit=0", "-nodefaultlibs",
    # Otherwise vectors are loaded and stored by their elements.
    "-fno-tree-sra",
)  # fmt: skip
KERNEL_LIBRARIES = ("-lm", "-lc", "-lgcc")
_DYNAMIC_SHARED = re.compile(r"extern\s+__shared__\s+([^;\[\]]+?)\s*\b(\w+)\s*\[\s*\]\s*;")
_ALIGNMENT = re.compile(r"(?:__align__|alignas)\s*\([^()]*\)|__attribute__\s*\(\(.*?\)\)")


def find_compiler() -> str | None:
    """Return the path of g++, or None if it is not installed."""
    return shutil.which("g++")


@dataclass(frozen=True)
class EmulatorToolchain:
    """g++ with the cache of what it has compiled.

    Attributes:
        compiler: path of g++.
        version: first line of its version message.
        cache: the cache of shared objects.
    """

    compiler: str
    version: str
    cache: ObjectCache

    @functools.cached_property
    def index(self) -> str:
        """Return the name of the index of kernels in the cache, with a hash of all they depend on but their source."""
        text = "\n".join([self.version, *FLAGS, *KERNEL_FLAGS, *KERNEL_LIBRARIES, *map(_text, _HEADERS), _preamble()])
        return f"kernels-emulated-{hashlib.sha256(text.encode()).hexdigest()[:16]}"

    @functools.cached_property
    def identity(self) -> str:
        """Return a hash of all that counts of a kernel depend on besides the kernel and its inputs."""
        parts = [self.index, *map(_text, ("counters.h", "runtime.cpp", "counting.py", "inputs.py"))]
        return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]

    def runtime(self) -> Path:
        """Return the shared object of the runtime; errors are those of `objects`."""
        text = "".join(map(_text, ("runtime.h", "counters.h", "runtime.cpp"))).replace("#pragma once", "")
        key = hashlib.sha256("\n".join([text, self.version, *FLAGS]).encode()).hexdigest()
        found = self.cache.find("sources", key)
        if found is None:
            (built,) = self._build([("runtime", text, (*FLAGS, "-O2", "-fvisibility=default"), ())])
            found = self.cache.store(built)
            self.cache.record("sources", key, found)
        return found

    def objects(self, specs: Sequence[KernelSpec]) -> dict[str, Path]:
        """Return the shared object that contains each kernel, by symbol; those that are not in the cache are built.

        Raises:
            CodegenError: g++ rejects the source of a kernel or takes too long.
            BackendError: the cache cannot be written, or g++ was killed.
        """
        distinct = {s.symbol: s for s in specs}
        found = self.cache.find_all(self.index, distinct)
        groups = balanced_groups([s for symbol, s in distinct.items() if symbol not in found], available_cores())
        sources = [("kernels", source_of(g), (*FLAGS, *KERNEL_FLAGS), KERNEL_LIBRARIES) for g in groups]
        for group, built in zip(groups, self._build(sources), strict=True):
            path = self.cache.store(built)
            for s in group:
                self.cache.record(self.index, s.symbol, path)
                found[s.symbol] = path
        return found

    def _build(self, sources: Sequence[tuple[str, str, tuple[str, ...], tuple[str, ...]]]) -> Iterator[bytes]:
        """Build sources (name, text, flags, libraries) in parallel and yield their shared objects in order."""
        with ExitStack() as folders:
            commands = []
            for name, text, flags, libraries in sources:
                folder = Path(folders.enter_context(self.cache.draft_folder()))
                file, out = folder / f"{name}.cpp", folder / "built.so"
                words = [self.compiler, *flags, str(file), "-o", str(out), *libraries]
                commands.append(Command(words, folder))
                file.write_text(text)
            results = run_all_bounded(commands, BUILD_SECONDS, available_cores())
            with closing(results):
                for (name, *_), command in zip(sources, commands, strict=True):
                    try:
                        done = next(results)
                    except subprocess.TimeoutExpired:
                        raise CodegenError(f"g++ took more than {BUILD_SECONDS} s on emulated {name}") from None
                    except OSError as e:
                        raise BackendError(f"cannot build emulated {name}: {e.strerror}") from e
                    if done.returncode < 0:
                        raise BuildKilledError(f"g++ was killed while it built emulated {name}")
                    if done.returncode != 0:
                        raise CodegenError(f"g++ rejected emulated {name}:\n{done.stderr.strip()[:4000]}")
                    yield (command.folder / "built.so").read_bytes()


_HEADERS = ("runtime.h", "emulation.h", "tensor.h")


def toolchain() -> EmulatorToolchain:
    """Return the g++ that is installed; raise BackendError if there is none."""
    compiler = find_compiler()
    if compiler is None:
        raise BackendError("emulated kernels need g++, which is not installed (Debian: apt install g++)")
    return EmulatorToolchain(compiler, _version(compiler), object_cache())


@functools.lru_cache(maxsize=8)
def _version(compiler: str) -> str:
    try:
        done = subprocess.run([compiler, "--version"], capture_output=True, text=True, timeout=60, check=True)
    except (OSError, subprocess.SubprocessError) as e:
        raise BackendError(f"the C++ compiler {compiler} does not run: {e}") from e
    return done.stdout.partition("\n")[0]


def source_of(specs: Sequence[KernelSpec]) -> str:
    """Return C++ source of kernels with a function `run_SYMBOL(addresses)` for each, which runs one thread."""
    text = "\n".join([_preamble(), *(s.source for s in specs)])
    text = _DYNAMIC_SHARED.sub(_as_pointer, text)
    entries = [_entry(s) for s in specs]
    return "\n".join([*map(_text, _HEADERS), text, *entries, ""]).replace("#pragma once", "")


def _entry(s: KernelSpec) -> str:
    count = len(s.inputs) + len(s.outputs)
    arguments = ", ".join(f"emulation_argument{{a[{k}]}}" for k in range(count))
    head = f'extern "C" __attribute__((visibility("default"), no_sanitize("thread"))) void run_{s.symbol}(void **a)'
    return f"{head} {{ {s.symbol}({arguments}); }}"


def _as_pointer(match: re.Match[str]) -> str:
    """Return a declaration of dynamic shared memory as a pointer."""
    element = _ALIGNMENT.sub("", match[1]).strip()
    return f"{element} *const {match[2]} = ({element} *)emulation_dynamic_shared();"


@functools.cache
def _text(name: str) -> str:
    return resources.files("compiler.backends.cuda.emulation").joinpath(name).read_text()


@functools.cache
def _preamble() -> str:
    """Return the preamble of all kernels without the headers that emulation.h replaces."""
    return "\n".join(line for line in print_cuda.preamble().splitlines() if not line.startswith("#include"))
