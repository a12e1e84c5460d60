"""Layering: a module imports only from its own layer and lower ones, and the compiler needs few dependencies."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent
LAYERS = (
    ("compiler.errors", "compiler.support"),
    ("compiler.ir",),
    ("compiler.text",),
    ("compiler.frontends",),
    ("compiler.interpreter",),
    ("compiler.analysis",),
    ("compiler.passes",),
    ("compiler.codegen",),
    ("compiler.fusion",),
    ("compiler.loops", "compiler.loop_packing", "compiler.plan", "compiler.plan_binding", "compiler.plan_text"),
    ("compiler.runtime",),
    ("compiler.backends",),
    ("compiler.expansions",),
    ("compiler.learned",),
    (
        "compiler.deciders",
        "compiler.lowering",
        "compiler.session",
        "compiler.default_fusion",
        "compiler.expansion_changes",
    ),
    ("compiler.policy",),
    ("compiler.api",),
    ("compiler.program_cache",),
    ("compiler.jit",),
    ("compiler",),
    ("env",),
    ("agents",),
    ("experiments",),
)
"""The layers, lowest first. A module may import from its own layer and from those below it."""
BLOCKED = (
    "torch", "jax", "jaxlib", "gymnasium", "mlflow", "cupy", "stable_baselines3", "sb3_contrib", "matplotlib",
    "safetensors", "typer", "rich", "pandas", "hypothesis", "env", "agents", "experiments",
)  # fmt: skip


def _modules() -> Iterator[tuple[str, Path]]:
    for top in ("compiler", "env", "agents", "experiments"):
        for file in sorted((ROOT / top).rglob("*.py")):
            yield ".".join(file.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"), file


def _layer(module: str) -> int | None:
    """Return the index of a module's layer; None if it is not a module of this project."""
    found = [(len(name), n) for n, names in enumerate(LAYERS) for name in names if f"{module}.".startswith(f"{name}.")]
    return max(found)[1] if found else None


def _imports(tree: ast.AST) -> Iterator[tuple[str, str]]:
    """Yield (module, how): how is "top" at module level, "lazy" in a function, "types" for the type checker only."""
    work = [(tree, "top")]
    while work:
        node, how = work.pop()
        if isinstance(node, ast.Import):
            yield from ((a.name, how) for a in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute here"
            # `from package import module` may name a module of another layer.
            yield from ((f"{node.module}.{a.name}", how) for a in node.names)
        inner = how
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            inner = "lazy"
        elif isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            inner = "types"
        work += [(child, inner) for child in ast.iter_child_nodes(node)]


def test_modules_import_only_from_lower_layers() -> None:
    wrong = []
    for module, file in _modules():
        own = _layer(module)
        assert own is not None, f"{module} belongs to no layer"
        for imported, how in _imports(ast.parse(file.read_text(encoding="utf-8"))):
            other = _layer(imported)
            if other is None or other <= own or how == "types":
                continue
            wrong.append(f"{module} imports {imported} ({how})")
    assert wrong == []


def _file_imports(modules: dict[str, Path]) -> dict[str, set[str]]:
    """Return the modules that each module imports at run time, without imports for the type checker."""
    graph: dict[str, set[str]] = {}
    for module, file in modules.items():
        found = set()
        for name, how in _imports(ast.parse(file.read_text(encoding="utf-8"))):
            # `from package import x` imports a module of the package, or a name from the package itself.
            target = name if name in modules else name.rpartition(".")[0]
            if how != "types" and target in modules and target != module:
                found.add(target)
        graph[module] = found
    return graph


def _cycles(graph: dict[str, set[str]]) -> list[str]:
    """Return the modules that are in import cycles or lead to one.

    Modules that import none of the remaining modules are removed until there are no more of them.
    """
    left = {module: set(imported) for module, imported in graph.items()}
    while free := [m for m, imported in left.items() if not imported & left.keys()]:
        for module in free:
            del left[module]
    return sorted(left)


def test_there_are_no_import_cycles() -> None:
    modules = dict(_modules())
    graph = _file_imports(modules)
    assert len(graph) > 300 and sum(map(len, graph.values())) > 1000  # the imports were found
    assert _cycles(graph) == []


def test_a_cycle_is_detected() -> None:
    assert _cycles({"a": {"b"}, "b": {"c"}, "c": {"b"}, "d": set()}) == ["a", "b", "c"]


PROGRAM = """
import sys

class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {blocked!r}:
            raise ImportError(f"{{name}} is blocked")

sys.meta_path.insert(0, Blocker())
import numpy as np
import compiler
from compiler import compile, parse
print("scipy" in sys.modules)

text = "HloModule m\\nENTRY main {{\\n a = f32[3] parameter(0)\\n n = f32[3] negate(a)\\n ROOT r = f32[3] tanh(n)\\n}}"
for backend in ("interpreter", "cpu"):
    print(compile(text, backend=backend)(np.zeros(3, np.float32))[0].tolist())
print(len(compile(text, backend="cuda").kernels))
print(str(parse(text))[:11])
foreign = sorted({{m.split(".")[0] for m in sys.modules}} & set({blocked!r}))
print(foreign)
"""


def test_the_compiler_needs_only_numpy_scipy_and_ml_dtypes() -> None:
    program = PROGRAM.format(blocked=BLOCKED)
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, cwd=ROOT, timeout=250, check=False
    )
    assert done.returncode == 0, done.stderr
    zeros = "[0.0, 0.0, 0.0]"
    lines = done.stdout.replace("-0.0", "0.0").splitlines()
    # SciPy is imported only where it is needed, because that takes twice as long as importing NumPy.
    assert lines == ["False", zeros, zeros, "1", "HloModule m", "[]"]
