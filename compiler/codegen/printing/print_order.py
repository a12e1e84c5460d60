"""C text of sorts by key: the functions of `order.c`, with the types and sizes of one sort filled in.

An entry is an integer that holds the key of an element in its high bits and the element's number in its low bits. No
two entries are equal, so that any sort of entries is stable.
"""

from __future__ import annotations

from functools import cache
from importlib import resources
from string import Template

from compiler.codegen.nest import loop_ir as lir
from compiler.codegen.printing.scalar import COMPUTE_TYPES
from compiler.errors import UnsupportedError
from compiler.ir.types import PrimitiveType as T

_ENTRY_TYPES = {32: "uint32_t", 64: "uint64_t", 128: "unsigned __int128"}


def order_functions(s: lir.SortByKey, function: str, attributes: str, read: str, write: str) -> str:
    """Return C functions that sort rows, the last of which is `void FUNCTION_rows(void *arguments, first, last)`.

    Args:
        s: the sort.
        function: prefix of the names of the functions.
        attributes: attributes of the functions.
        read: body of a function that stores the keys of elements `first` to `first + count` of `row` in `keys`.
        write: body of a function that runs for each position of `row`; `order` holds the sorted entries.
    """
    method = s.method
    n, k, key_bits = s.element.extent, s.position.extent, _key_bits(s.type)
    room = method.room * k + method.block
    if k <= min(method.insertion, method.block) and k < n:
        algorithm = "insertion"
    elif room + method.block < n:
        algorithm = "compaction"
    else:
        algorithm = "whole"
    values = {
        "f": function, "attributes": attributes, "read": read, "write": write, "n": n, "k": k,
        "key": f"uint{key_bits}_t", "key_bits": key_bits,
        "entry": _ENTRY_TYPES[_entry_bits(s)], "index_bits": _index_bits(s),
        "capacity": {"insertion": k + 1, "compaction": room + method.block, "whole": n}[algorithm],
        "room": room, "block": method.block, "run": method.run, "merge": method.merge, "digit": method.digit,
        "digits": -(-key_bits // method.digit), "radix": 1 << method.digit,
    }  # fmt: skip
    parts = ("head", "insertion") if algorithm == "insertion" else ("head", "sort", algorithm)
    sections = _sections()
    return Template("\n".join(sections[p] for p in (*parts, "rows"))).substitute(values)


def key_text(s: lir.SortByKey | lir.OrderRow) -> str:
    """Return the C expression for an unsigned integer in the order of the key."""
    t, bits = s.type, _key_bits(s.type)
    c_type, sign = f"uint{bits}_t", f"((uint{bits}_t)1 << {bits - 1})"
    if t.is_float:
        raw = {
            T.F64: "F64_TO_BITS({0})", T.F32: "F32_TO_BITS({0})", T.F16: "F16_TO_BITS({0})",
            T.BF16: "(uint16_t)(F32_TO_BITS({0}) >> 16)",
        }[t].format(s.key)  # fmt: skip
        # The bits of negative floats are in descending order, so all of them are flipped.
        text = f"({raw} & {sign} ? ~{raw} : {raw} | {sign})"
    elif t.is_signed:
        text = f"(({c_type}){s.key} ^ {sign})"
    else:
        text = s.key
    return f"({c_type}){'~' if s.descending else ''}({c_type}){text}"


def index_mask(s: lir.SortByKey) -> str:
    """Return the C constant that selects the element number of an entry."""
    return f"0x{(1 << _index_bits(s)) - 1:x}u"


def check_sortable(n: int) -> None:
    """Raise UnsupportedError unless rows of `n` elements can be sorted by key."""
    if n >= 1 << 31:
        raise UnsupportedError(f"a sort of {n} elements has no kernel, because their numbers need more than 31 bits")


def _key_bits(t: T) -> int:
    if COMPUTE_TYPES[t] == "bool":
        return 8
    return t.bits


def _index_bits(s: lir.SortByKey) -> int:
    return max(1, (s.element.extent - 1).bit_length())


def _entry_bits(s: lir.SortByKey) -> int:
    return next(bits for bits in _ENTRY_TYPES if bits >= _key_bits(s.type) + _index_bits(s))


@cache
def _sections() -> dict[str, str]:
    """Return the sections of `order.c`, which start with lines such as `/* section NAME: ... */`."""
    text = resources.files("compiler.codegen.printing").joinpath("order.c").read_text()
    found = {}
    for part in text.split("/* section ")[1:]:
        name, _, rest = part.partition(":")
        found[name] = rest.partition("*/\n")[2]
    return found
