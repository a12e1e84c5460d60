"""CUDA C++ text of sorts: calls of the functions of `sorts_cuda.h` around the code that reads the keys."""

from __future__ import annotations

from collections.abc import Callable

from compiler.codegen.nest import loop_ir as lir
from compiler.codegen.printing.print_order import key_text

HEADER = "sorts_cuda.h"
_ENTRIES = {1: "uint32_t", 2: "uint64_t", 3: "wide_entry"}


def print_order_row(s: lir.OrderRow, emit: Callable[[str], None], block: Callable[[lir.Body], None]) -> None:
    """Print the sort of one row.

    Args:
        s: the sort.
        emit: prints a line.
        block: prints statements, one level deeper.
    """
    entry, n, sizes = _ENTRIES[s.words], s.element.extent, f"{s.each}, {s.threads}"
    if n <= s.each * s.threads:
        emit("{")
        _read(s, entry, s.each, "0", emit, block)
        emit(f"sort_entries<{sizes}>(entries_, {s.order});")
        emit(f"store_numbers<{s.each}>(entries_, {s.order});")
        emit("}")
        return
    half = s.each // 2
    emit("{")
    emit(f"{entry} limit_ = last_entry<{entry}>();")
    emit("bool is_limited_ = false;")
    emit("int count_ = 0;")
    emit(f"for (index_t first_ = 0; first_ < {n}; first_ += {half * s.threads}) {{")
    _read(s, entry, half, "first_", emit, block)
    emit(f"count_ = append_entries<{sizes}>(entries_, {s.order}, count_, {s.count}, limit_, is_limited_);")
    emit("}")
    emit(f"keep_first<{sizes}>({s.order}, count_, {s.count}, limit_);")
    if s.words == 1:
        emit(f"for (int n_ = threadIdx.x; n_ < {s.count}; n_ += {s.threads}) {s.order}[n_] &= 0xffff;")
        emit("__syncthreads();")
    emit("}")


def _read(
    s: lir.OrderRow, entry: str, count: int, first: str, emit: Callable[[str], None], block: Callable[[lir.Body], None]
) -> None:
    """Print the reads of `count` entries per thread; those beyond the row come last."""
    element = s.element.name
    emit(f"{entry} entries_[{count}];")
    emit("#pragma unroll")
    emit(f"for (int v_ = 0; v_ < {count}; v_++) {{")
    emit(f"const index_t {element} = {first} + v_ * {s.threads} + (int)threadIdx.x;")
    emit(f"entries_[v_] = last_entry<{entry}>();")
    emit(f"if ({element} < {s.element.extent}) {{")
    block(s.read)
    emit(f"entries_[v_] = make_entry<{entry}>({key_text(s)}, (uint32_t){element});")
    emit("}")
    emit("}")
