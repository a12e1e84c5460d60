"""The frameworks whose scripts `experiments.benchmarks.one_line` runs with one line changed: JAX and PyTorch."""

from __future__ import annotations

import copy
import importlib
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

Namespace = dict[str, Any]
_HERE = Path(__file__).parent


@dataclass(frozen=True)
class Framework:
    """How scripts of one framework are changed and run.

    A script defines `start()`, which returns a state, and `step(state)`, which returns the next state and results.

    Attributes:
        compiler: what compiles the unchanged script.
        folder: the scripts.
        changed: returns the source of a script with the line changed, or None if not exactly one line can be.
        prepare: called before a script is run both ways.
        arrays: returns the arrays of what `step` returns, in order.
        wait: waits until what `step` returns has been computed.
        continued: returns a state of the changed script, made from one of the same script and one of the given script,
            from which it continues like the given script.
    """

    compiler: str
    folder: Path
    changed: Callable[[str], str | None]
    prepare: Callable[[], None]
    arrays: Callable[[Any], list[NDArray[Any]]]
    wait: Callable[[Any], object]
    continued: Callable[[Any, Any], Any]

    def names(self) -> list[str]:
        """Return the names of the scripts."""
        return sorted(p.stem for p in self.folder.glob("*.py"))

    def run_script(self, name: str, changed: bool) -> Namespace:
        """Run a script as a module, with or without the changed line, and return its names.

        Raises:
            ValueError: the script does not have the line.
        """
        path = self.folder / f"{name}.py"
        source = path.read_text(encoding="utf-8")
        after = self.changed(source)
        if after is None:
            raise ValueError(f"{path} does not have one line by which {self.compiler} compiles")
        space: Namespace = {"__name__": f"{name}_{'changed' if changed else 'given'}"}
        exec(compile(after if changed else source, str(path), "exec"), space)  # noqa: S102
        return space


def _import_changed(source: str) -> str | None:
    before, after = "from jax import jit\n", "from hlogym import jit\n"
    return source.replace(before, after) if source.count(before) == 1 else None


def _jax_arrays(results: Any) -> list[NDArray[Any]]:
    jax: Any = importlib.import_module("jax")

    def data(leaf: Any) -> Any:
        return jax.random.key_data(leaf) if jax.numpy.issubdtype(leaf.dtype, jax.dtypes.prng_key) else leaf

    return [np.asarray(data(leaf)) for leaf in jax.tree.leaves(results)]


def _backend_named(source: str) -> str | None:
    found, count = re.subn(r"= torch\.compile\((\w+)\)\n", r'= torch.compile(\1, backend="hlogym")' + "\n", source)
    return found if count == 1 else None


def _forget_graphs() -> None:
    torch: Any = importlib.import_module("torch")
    importlib.import_module("compiler.torch_backend").register()
    torch._dynamo.reset()


def _torch_continued(own: Any, given: Any) -> Any:
    """Copy what modules and optimizers hold; a compiled module is the module of one script."""
    pytree: Any = importlib.import_module("torch.utils._pytree")
    for to, source in zip(pytree.tree_leaves(own), pytree.tree_leaves(given), strict=True):
        if hasattr(source, "load_state_dict"):
            to.load_state_dict(copy.deepcopy(source.state_dict()))  # an optimizer keeps the tensors that it is given
    return own


def _torch_arrays(results: Any) -> list[NDArray[Any]]:
    """Return tensors, arrays, and the parameters and buffers of modules."""
    torch: Any = importlib.import_module("torch")
    leaves: Any = importlib.import_module("torch.utils._pytree").tree_leaves(results)
    found = []
    for leaf in leaves:
        values = leaf.state_dict().values() if isinstance(leaf, torch.nn.Module) else [leaf]
        found += [np.array(v.detach()) for v in values if isinstance(v, torch.Tensor)]
        found += [v for v in values if isinstance(v, np.ndarray)]
    return found


JAX = Framework(
    compiler="jax.jit",
    folder=_HERE / "jax_scripts",
    changed=_import_changed,
    prepare=lambda: None,
    arrays=_jax_arrays,
    wait=lambda results: importlib.import_module("jax").block_until_ready(results),
    continued=lambda _own, given: given,
)
TORCH = Framework(
    compiler="torch.compile",
    folder=_HERE / "torch_scripts",
    changed=_backend_named,
    prepare=_forget_graphs,
    arrays=_torch_arrays,
    wait=lambda results: None,
    continued=_torch_continued,
)
FRAMEWORKS = (JAX, TORCH)


def framework_of(name: str) -> Framework:
    """Return the framework of a script.

    Raises:
        KeyError: there is no such script.
    """
    for framework in FRAMEWORKS:
        if name in framework.names():
            return framework
    raise KeyError(name)
