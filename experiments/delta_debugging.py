"""Delta debugging: reduce a failing module to a small module that still fails.

`reduce_module(module, fails)` tries smaller and smaller variants and keeps those for which `fails` returns True.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import numpy as np

from compiler.errors import HlogymError
from compiler.ir import HloComputation, HloInstruction, HloModule, Literal, Opcode
from compiler.ir.verifier import check_module

Fails = Callable[[HloModule], bool]
Edit = Callable[[HloModule], bool]
"""Changes a module in place; returns False if it does not apply."""

T = TypeVar("T")


def reduce_module(module: HloModule, fails: Fails, max_tests: int = 5000) -> HloModule:
    """Return the smallest variant found for which `fails` returns True; `module` itself is not changed.

    A variant chooses another root, inlines a called computation, or replaces an instruction by a parameter, by one of
    its operands or by a constant; then dead code is removed. `fails` receives clones that pass the verifier.

    Args:
        module: the module to reduce.
        fails: returns whether a module still fails; exceptions it raises propagate to the caller.
        max_tests: the maximum number of calls of `fails`.

    Raises:
        ValueError: `fails` returns False for `module`.
    """
    state = _Reduction(module.clone(), fails, max_tests)
    if not fails(module.clone()):
        raise ValueError("the module does not fail, there is nothing to reduce")
    while state.tests < max_tests:
        before = state.module.instruction_count
        for moves in (_other_roots, _inlines, _cuts, _bypasses, _constants):
            state.try_all(moves)
        state.attempt(lambda m: bool(m.remove_unreachable()))
        if state.module.instruction_count >= before:
            break
    return state.module


def reduce_list(items: Sequence[T], fails: Callable[[Sequence[T]], bool]) -> list[T]:
    """Return a sublist for which `fails` returns True and from which no single item can be removed (ddmin)."""
    found = list(items)
    size = max(1, len(found) // 2)
    while size:
        start = 0
        while start < len(found):
            shorter = found[:start] + found[start + size :]
            if fails(shorter):
                found = shorter
            else:
                start += size
        size //= 2
    return found


@dataclass
class _Reduction:
    """The smallest failing module so far."""

    module: HloModule
    fails: Fails
    max_tests: int
    tests: int = 0
    seen: set[str] = field(default_factory=set)

    def try_all(self, moves: Callable[[HloModule], Iterator[Edit]]) -> None:
        """Try all edits of one kind; skip those that no longer apply after an earlier one was kept."""
        for edit in list(moves(self.module)):
            if self.tests >= self.max_tests:
                return
            self.attempt(edit)

    def attempt(self, edit: Edit) -> bool:
        """Apply an edit and keep it if the module is still valid and still fails; return whether it was kept."""
        candidate = self.module.clone()
        try:
            if not edit(candidate):
                return False
            _tidy(candidate)
            text = str(candidate)
            if text in self.seen or check_module(candidate):
                return False
        except (HlogymError, ValueError, TypeError):
            return False  # the edit does not apply to this module
        self.seen.add(text)
        self.tests += 1
        if not self.fails(candidate.clone()):
            return False
        self.module = candidate
        return True


def _tidy(module: HloModule) -> None:
    for c in module.computations:
        c.remove_dead()
    module.remove_unreachable()
    _drop_parameters(module)
    module.header.clear()  # an explicit entry layout no longer matches


def _drop_parameters(module: HloModule) -> None:
    entry = module.entry
    kept = 0
    for p in entry.parameters:
        if p.users or p.is_root:
            p.parameter_number = kept
            kept += 1
        else:
            entry.remove(p)


def _find(module: HloModule, computation: str, name: str) -> HloInstruction | None:
    c = module.find(computation)
    return None if c is None else c.find(name)


def _others(module: HloModule) -> list[tuple[HloComputation, HloInstruction]]:
    """Return all instructions except parameters, users before operands, each with its computation."""
    return [
        (c, i)
        for c in reversed(module.post_order())
        for i in reversed(c.post_order())
        if i.opcode is not Opcode.PARAMETER
    ]


def _other_roots(module: HloModule) -> Iterator[Edit]:
    """Yield edits that make the entry return one of its other values, the earliest first, or a shorter tuple."""
    for i in module.entry.post_order():
        if i.shape.is_array and not i.is_root and i.opcode is not Opcode.PARAMETER:
            yield _root_edit(i.name)
    root = module.entry.root
    if root.opcode is Opcode.TUPLE:
        for n in reversed(range(len(root.operands))):
            yield _shorter_tuple(n)


def _root_edit(name: str) -> Edit:
    def edit(module: HloModule) -> bool:
        found = module.entry.find(name)
        if found is None or found.is_root:
            return False
        module.entry.root = found
        return True

    return edit


def _shorter_tuple(n: int) -> Edit:
    def edit(module: HloModule) -> bool:
        root = module.entry.root
        if root.opcode is not Opcode.TUPLE or n >= len(root.operands) or len(root.operands) == 1:
            return False
        module.entry.root = module.entry.add(Opcode.TUPLE, [o for k, o in enumerate(root.operands) if k != n])
        return True

    return edit


def _cuts(module: HloModule) -> Iterator[Edit]:
    """Yield edits that replace an instruction of the entry by a new parameter."""
    for i in reversed(module.entry.post_order()):
        if i.opcode not in (Opcode.PARAMETER, Opcode.CONSTANT) and i.shape.is_array and not i.is_root:
            yield _cut(i.name)


def _cut(name: str) -> Edit:
    def edit(module: HloModule) -> bool:
        entry = module.entry
        found = entry.find(name)
        if found is None or found.is_root:
            return False
        entry.replace(found, entry.add_parameter(len(entry.parameters), found.shape, "cut"))
        return True

    return edit


def _inlines(module: HloModule) -> Iterator[Edit]:
    """Yield edits that inline a call or fusion, one iteration of a loop's body, or one branch of a conditional."""
    for c, i in _others(module):
        if i.opcode in (Opcode.CALL, Opcode.FUSION, Opcode.WHILE):
            yield _inline(c.name, i.name, 0)
        elif i.opcode is Opcode.CONDITIONAL:
            yield from (_inline(c.name, i.name, n) for n in range(len(i.called_computations())))


def _inline(computation: str, name: str, n: int) -> Edit:
    def edit(module: HloModule) -> bool:
        found = _find(module, computation, name)
        if found is None or found.parent is None:
            return False
        caller = found.parent
        callee = found.attr("body") if found.opcode is Opcode.WHILE else found.called_computations()[n]
        arguments = found.operands[n + 1 : n + 2] if found.opcode is Opcode.CONDITIONAL else found.operands
        caller.replace(found, caller.inline(callee, arguments))
        _forward_elements(caller)
        return True

    return edit


def _forward_elements(computation: HloComputation) -> None:
    for i in computation.post_order():
        if i.opcode is Opcode.GET_TUPLE_ELEMENT and i.operand(0).opcode is Opcode.TUPLE:
            computation.replace(i, i.operand(0).operand(i.attr("index")))


def _bypasses(module: HloModule) -> Iterator[Edit]:
    """Yield edits that replace an instruction by one of its operands of the same shape."""
    for c, i in _others(module):
        for n, o in enumerate(i.operands):
            if o.shape.compatible(i.shape):
                yield _bypass(c.name, i.name, n)


def _bypass(computation: str, name: str, n: int) -> Edit:
    def edit(module: HloModule) -> bool:
        found = _find(module, computation, name)
        if found is None or found.parent is None or n >= len(found.operands):
            return False
        found.parent.replace(found, found.operands[n])
        return True

    return edit


def _constants(module: HloModule) -> Iterator[Edit]:
    """Yield edits that replace a computed array by zeros or by ones."""
    for c, i in _others(module):
        if i.shape.is_array and i.opcode is not Opcode.CONSTANT and i.shape.num_elements <= 4096:
            yield from (_constant(c.name, i.name, value) for value in (0, 1))


def _constant(computation: str, name: str, value: int) -> Edit:
    def edit(module: HloModule) -> bool:
        found = _find(module, computation, name)
        if found is None or found.parent is None:
            return False
        array = np.full(found.shape.dimensions, value).astype(found.shape.dtype)
        found.parent.replace(found, found.parent.add_constant(Literal.from_array(array, found.shape)))
        return True

    return edit
