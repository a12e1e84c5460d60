"""Parser of the module header, and of aliases, which instructions may have too."""

from __future__ import annotations

import difflib

from compiler.ir.attributes import Raw
from compiler.ir.header import Alias, Aliases, Donor, Donors, EntryLayout, Index
from compiler.ir.module import HeaderValue, HloModule
from compiler.ir.shape import Shape
from compiler.text.raw import parse_raw
from compiler.text.scanner import Scanner
from compiler.text.shapes import parse_shape

_FLAGS = ("is_scheduled", "alias_passthrough_params")
_NUMBERS = ("replica_count", "num_partitions")
HEADER_ATTRIBUTES = (
    *_FLAGS,
    *_NUMBERS,
    "input_output_alias",
    "buffer_donor",
    "entry_computation_layout",
    "frontend_attributes",
    "allow_spmd_sharding_propagation_to_parameters",
    "allow_spmd_sharding_propagation_to_output",
    "origin_recovery_table",
    "debug_attributes",
)


def parse_header(s: Scanner, module: HloModule) -> None:
    """Parse the header, from the module's name to the last attribute."""
    module.name = s.name("the module's name")
    s.accept(":")
    while s.accept(","):
        s.skip()
        at = s.pos
        name = s.name("a header attribute")
        s.expect("=", f"after header attribute '{name}'")
        if name in module.header:
            s.fail(f"header attribute '{name}' is given twice", at)
        if name not in HEADER_ATTRIBUTES:
            near = difflib.get_close_matches(name, HEADER_ATTRIBUTES, n=1)
            s.fail(f"no header attribute '{name}'" + (f"; did you mean '{near[0]}'?" if near else ""), at)
        module.header[name] = _value(s, name)


def _value(s: Scanner, name: str) -> HeaderValue:
    if name in _FLAGS:
        if not (s.peek("true") or s.peek("false")):
            s.fail(f"{name} takes true or false, found {s.next_token()}")
        return Raw(s.name())
    if name in _NUMBERS:
        return Raw(str(s.integer()))
    if name == "entry_computation_layout":
        return _entry_layout(s)
    if name == "input_output_alias":
        return parse_aliases(s, in_header=True)
    if name == "buffer_donor":
        return _donors(s)
    return parse_raw(s)


def _entry_layout(s: Scanner) -> EntryLayout:
    s.expect("{", "at the start of the entry computation's layout")
    s.expect("(", "before the parameters' shapes")
    parameters: list[Shape] = []
    while not s.accept(")"):
        if parameters:
            s.expect(",", "or ')' after a parameter's shape")
            if s.accept(")"):
                break
        parameters.append(parse_shape(s))
    s.expect("->", "before the result's shape")
    result = parse_shape(s)
    s.expect("}", "at the end of the entry computation's layout")
    return EntryLayout(tuple(parameters), result)


def _index(s: Scanner) -> Index:
    found: list[int] = []
    s.expect("{", "at the start of a path into a tuple")
    while not s.accept("}"):
        if found:
            s.expect(",", "or '}' in a path into a tuple")
        found.append(s.integer())
    return tuple(found)


def parse_aliases(s: Scanner, in_header: bool = False) -> Aliases:
    """Parse aliases `{{0}: (1, {}), ...}`; those of a header have a kind, which is may-alias by default."""
    found: list[Alias] = []
    s.expect("{", "at the start of a list of aliases")
    while not s.accept("}"):
        if found:
            s.expect(",", "or '}' in a list of aliases")
            if s.accept("}"):
                break
        output = _index(s)
        s.expect(":", "after the path of an aliased result")
        s.expect("(", "before the number of what is aliased")
        source = s.integer("a number")
        s.expect(",", "after the number of what is aliased")
        index = _index(s)
        kind = "may-alias" if in_header else None
        if in_header and s.accept(","):
            if not (s.peek("may-alias") or s.peek("must-alias")):
                s.fail(f"expected may-alias or must-alias, found {s.next_token()}")
            kind = s.name()
        s.expect(")", "at the end of an alias")
        found.append(Alias(output, source, index, kind))
    return Aliases(tuple(found))


def _donors(s: Scanner) -> Donors:
    found: list[Donor] = []
    s.expect("{", "at the start of a list of donated buffers")
    while not s.accept("}"):
        if found:
            s.expect(",", "or '}' in a list of donated buffers")
            if s.accept("}"):
                break
        s.expect("(", "before a donated parameter's number")
        parameter = s.integer("a parameter's number")
        s.expect(",", "after a donated parameter's number")
        index = _index(s)
        s.expect(")", "at the end of a donated buffer")
        found.append(Donor(parameter, index))
    return Donors(tuple(found))
