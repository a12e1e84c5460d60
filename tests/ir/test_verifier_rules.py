# ruff: noqa: SIM905  # names in one line each read better
"""Each rule of the table finds its violation, accepts the valid twin, and is a rule of XLA too."""

import re
from typing import Any

import pytest

from compiler.errors import HloVerificationError
from compiler.ir.shape import array_shape, tuple_shape
from compiler.ir.types import PrimitiveType
from compiler.ir.verifier import check_module, verify
from compiler.text import parse
from tests.ir.rule_table import RULES
from tests.ir.xla_verdicts import verdicts

_GRAMMAR = "this jaxlib reads an older grammar of asynchronous chains, or loses their tuples on the way to XLA"
_CARRIED = "StableHLO, the form in which jaxlib passes programs to XLA, does not carry it: XLA never sees the breach"
_LAXER = "XLA:CPU takes it all the same, or checks it only where several devices run"

UNASKED: dict[str, str] = {
    **dict.fromkeys(
        """async_used async_other_use async_end async_holds async_thread async_shared async_operand async_operands
        async_result async_unbound async_update_binds async_update_operand async_update_result async_done_result
        async_first_operand async_twice async_open async_loop_update async_loop_computation async_alias
        async_alias_whole async_update_alias async_update_alias_operand permute_buffers permute_offsets
        buffer_update composite_name composite_version""".split(),
        _GRAMMAR,
    ),
    **dict.fromkeys(
        """after_all fusion_unused fusion_root fusion_shared fusion_result fusion_alias fusion_alias_index
        fusion_alias_shape entry_called thread send_kind outfeed_shape infeed constrained origin
        host_copy host_bitcast host_slice host_update pin_alias unpin_alias entry_parameter entry_result donor_part
        donor_aliased replicas compare_type channel sharding_of_tuple window_padding""".split(),
        _CARRIED,
    ),
    **dict.fromkeys(
        """compare_order convert_complex groups_all_replicas groups_all_partitions groups_all_devices target_outside
        partition_outside sharding_device sharding_partitions sharding_while sharding_conditional buffer_writers
        buffer_loop""".split(),
        _LAXER,
    ),
}
"""Rules that jaxlib does not expose or check; they are in XLA's source."""


def line_of_the_breach(text: str) -> int | None:
    return next((n for n, line in enumerate(text.splitlines(), 1) if re.search(r"\bbad =", line)), None)


@pytest.mark.parametrize("name", RULES)
def test_a_breach_is_found_and_named_with_its_line(name: Any) -> None:
    rule = RULES[name]
    with pytest.raises(HloVerificationError) as e:
        verify(parse(rule.broken))
    found = [f for f in e.value.findings if re.search(rule.message, f)]
    assert found, e.value.findings
    line = line_of_the_breach(rule.broken)
    assert line is None or (found[0].startswith(f"line {line}: ") and "%bad" in found[0])


@pytest.mark.parametrize("name", RULES)
def test_its_twin_is_sound(name: Any) -> None:
    assert check_module(parse(RULES[name].sound)) == []


@pytest.mark.parametrize("name", ["s", "r"])
def test_a_transfer_of_another_shape_is_found(name: str) -> None:
    """In parsed text the operands determine the shape, so that only a pass can get it wrong."""
    text = """HloModule m
ENTRY e {
  x = f32[4] parameter(0)
  k = token[] after-all()
  s = (f32[4], u32[], token[]) send(x, k), channel_id=1
  d = token[] send-done(s), channel_id=1
  r = (f32[4], u32[], token[]) recv(d), channel_id=2
  ROOT o = (f32[4], token[]) recv-done(r), channel_id=2
}"""
    module = parse(text)
    assert check_module(module) == []
    transfer = module.entry.find(name)
    assert transfer is not None
    transfer.shape = tuple_shape(array_shape(PrimitiveType.F32, 5), *transfer.shape.tuple_shapes[1:])
    assert any("f32[4]" in f and "f32[5]" in f for f in check_module(module))


def xla_keeps(names: list[str]) -> dict[str, bool]:
    """Check that XLA refuses the violation of a rule and accepts the twin."""
    found = verdicts([text for name in names for text in (RULES[name].broken, RULES[name].sound)])
    return {n: found[2 * k] is not None and found[2 * k + 1] is None for k, n in enumerate(names)}


def test_xla_keeps_the_same_rules() -> None:
    names = [n for n in RULES if n not in UNASKED][::8]
    assert xla_keeps(names) == dict.fromkeys(names, True)


@pytest.mark.slow
def test_xla_keeps_all_rules_but_those_it_cannot_be_asked() -> None:
    assert set(UNASKED) <= set(RULES)
    assert {n for n, kept in xla_keeps(list(RULES)).items() if not kept} == set(UNASKED)
