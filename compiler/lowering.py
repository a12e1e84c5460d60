"""What a backend needs before fusion: what has neither kernel nor library is expanded, library ops are grouped."""

from __future__ import annotations

from compiler.analysis.convolutions import suits_windows
from compiler.backends.backend import Backend
from compiler.codegen.build_target import BuildTarget
from compiler.codegen.languages import C, find_language
from compiler.expansions import is_kept
from compiler.fusion.library_fusions import wrap_library_ops
from compiler.ir import HloInstruction, HloModule, Opcode
from compiler.loop_packing import inside_kernel_loops, pack_loops
from compiler.loops import KnownLoops
from compiler.passes.dots.convolution_patches import is_gathered, suits_direct
from compiler.passes.dots.dot_strength_reduction import suits_tiles
from compiler.passes.dots.features_last import FeaturesLast
from compiler.passes.dots.sliding_windows import LongFilterPadding, WindowPadding
from compiler.passes.expanders.complex_expander import ComplexExpander
from compiler.passes.pipelines.default import (
    divide_integer_products,
    expand_products,
    expand_transforms,
    group_products,
    group_tile_products,
    halve_products,
    lower,
    select_updates,
    stage_reductions,
)
from compiler.passes.reductions.windows import has_scan
from compiler.runtime.implementations import implementations_of
from compiler.runtime.instruction_kernels import has_kernel

__all__ = ["lower_for"]

LAUNCH_BYTES = 3_000_000
"""Bytes that a GPU transposes in the time that a kernel takes longer than its work."""


def lower_for(module: HloModule, backend: Backend, target: BuildTarget, known: KnownLoops) -> None:
    """Expand what was not decided and has neither a kernel nor a library on a backend; plans do not record it.

    Args:
        module: the module before fusion, which is changed; for a backend that compiles no kernels it stays as it is.
        backend: the backend.
        target: what its kernels are built for.
        known: which loops are known to have kernels; what is found is added.
    """
    if backend.language is None:
        return
    language = find_language(backend.language)

    def library_computes(i: HloInstruction) -> bool:
        return backend.library_refusal(i) is None

    inside = inside_kernel_loops(module)  # their kernels have no products of tiles

    def sums_windows(i: HloInstruction) -> bool:
        return backend.language == C.name and suits_windows(i) and not library_computes(i)

    def keeps(i: HloInstruction) -> bool:
        if backend.language == C.name and suits_tiles(i) and i.parent not in inside:
            return True
        if sums_windows(i) or (backend.language == C.name and suits_direct(i)):
            return True
        sorts = language.sorts and i.opcode in (Opcode.SORT, Opcode.TOPK) and has_kernel(i, language.name)
        return sorts or (language.scans and has_scan(i)) or is_kept(i) or library_computes(i)

    def is_left_to_library(i: HloInstruction) -> bool:
        # A window that was decided to stay is computed by a library that can, also where that is not the default.
        return is_kept(i) and not has_scan(i) and bool(implementations_of(i, backend.name))

    def stays(i: HloInstruction) -> bool:
        return is_kept(i) or i.parent in inside

    WindowPadding(sums_windows).run(module)
    if backend.language == C.name:
        LongFilterPadding(library_computes).run(module)
        ComplexExpander(wide=True, wide_products=True).run(module)
        divide_integer_products(module, lambda i: stays(i) or library_computes(i))
    if language.staged:
        expand_transforms(module, keeps)
        select_updates(module)
    if language.tiles:
        expand_products(module, stays)
    # Patches of activations whose features are last are rows of memory: no kernel transposes them.
    gathered = FeaturesLast(lambda i: keeps(i) or is_gathered(i), LAUNCH_BYTES)
    lower(module, keeps, gathered if language.tiles else FeaturesLast(lambda i: keeps(i) and not sums_windows(i)))

    if language.tiles:
        halve_products(module, stays)
    if language.staged:
        stage_reductions(module, stays)
    wrap_library_ops(module, lambda i: library_computes(i) or is_left_to_library(i))
    if backend.language == C.name:
        group_products(module, library_computes)
    elif language.tiles:
        group_tile_products(module, stays, inside)
    pack_loops(module, target, known)
