"""CUDA C++ text of sorts: calls of the functions of `sorts_cuda.h` around the code that reads the keys."""

from __future__ import annotations

from collections.abc import Callable, Iterator

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
    if s.threads == 1:
        _print_short_row(s, entry, emit, block)
        return
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


def _print_short_row(
    s: lir.OrderRow, entry: str, emit: Callable[[str], None], block: Callable[[lir.Body], None]
) -> None:
    """Print the sort of a row by one thread: a network whose entries have constant places, and so are registers."""
    element, n = s.element.name, s.element.extent
    emit("{")
    emit(f"{entry} entries_[{n}];")
    emit("#pragma unroll")
    emit(f"for (index_t {element} = 0; {element} < {n}; {element}++) {{")
    block(s.read)
    emit(f"entries_[{element}] = make_entry<{entry}>({key_text(s)}, (uint32_t){element});")
    emit("}")
    for low, high in sorting_network(n):
        emit(f"order_entries(entries_[{low}], entries_[{high}]);")
    emit("#pragma unroll")
    emit(f"for (int n_ = 0; n_ < {s.count}; n_++) {s.order}[n_] = (int32_t)entry_number(entries_[n_]);")
    emit("}")


def sorting_network(n: int) -> Iterator[tuple[int, int]]:
    """Yield the places that Batcher's odd-even merge sort of `n` elements compares and exchanges, the lower one first.

    K. E. Batcher, Sorting networks and their applications, 1968; the form for any `n` is Knuth's algorithm 5.2.2M.
    """
    top = 1 << max(0, (n - 1).bit_length() - 1)
    p = top
    while p > 0:
        q, r, d = top, 0, p
        while True:
            yield from ((i, i + d) for i in range(n - d) if i & p == r)
            if q == p:
                break
            d, q, r = q - p, q // 2, p
        p //= 2


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


def print_order_compared(s: lir.OrderCompared, emit: Callable[[str], None], block: Callable[[lir.Body], None]) -> None:
    """Print the sort of one row by a comparator: a bitonic network over element numbers in shared memory.

    The later of two elements comes first only if the comparator says so, which makes the sort stable. Numbers beyond
    the row come last. Each step exchanges or keeps pairs, so that any comparator yields a permutation.

    Args:
        s: the sort.
        emit: prints a line.
        block: prints statements, one level deeper.
    """
    n, size, order = s.left.extent, s.size, s.order
    emit(f"for (int n_ = threadIdx.x; n_ < {size}; n_ += blockDim.x) {order}[n_] = n_;")
    emit("__syncthreads();")
    emit(f"for (int size_ = 2; size_ <= {size}; size_ <<= 1)")
    emit("for (int step_ = size_ >> 1; step_ > 0; step_ >>= 1) {")
    emit(f"for (int pair_ = threadIdx.x; pair_ < {size // 2}; pair_ += blockDim.x) {{")
    emit("const int low_ = 2 * pair_ - (pair_ & (step_ - 1)), high_ = low_ | step_;")
    emit(f"const int first_ = {order}[low_], second_ = {order}[high_];")
    emit(f"const index_t {s.left.name} = first_ < second_ ? first_ : second_;")
    emit(f"const index_t {s.right.name} = first_ < second_ ? second_ : first_;")
    emit("bool is_later_first_ = false;")
    emit(f"if ({s.right.name} < {n}) {{")
    block((*s.compare, lir.Assign("is_later_first_", s.before)))
    emit("}")
    emit("const bool is_second_first_ = (first_ < second_) == is_later_first_;")
    emit(f"if (is_second_first_ == ((low_ & size_) == 0)) {order}[low_] = second_, {order}[high_] = first_;")
    emit("}")
    emit("__syncthreads();")
    emit("}")
