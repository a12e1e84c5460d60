"""Expanded convolutions compute the same."""

from collections.abc import Iterator

import numpy as np
import pytest

from compiler import compile
from compiler.interpreter import evaluate
from compiler.ir import HloModule, Opcode
from compiler.ir.verifier import check_module
from compiler.passes.infrastructure.registry import make_pass
from compiler.text import parse
from tests.passes.programs import difference, reference
from tests.sweeps.case import Case
from tests.sweeps.convolution_cases import cases
from tests.sweeps.corner_cases import cases as corner_cases


def convolutions() -> Iterator[Case]:
    for case in (*cases(), *corner_cases()):
        if case.opcode == "convolution" and case.element_type == "f32":
            yield case


def expanded_opcodes(module: HloModule, option: str) -> list[Opcode]:
    """Run the pass, check that it changes the module and no result, and return the opcodes of the entry."""
    rng = np.random.default_rng(0)
    args = [rng.normal(size=s.dimensions).astype(np.float32) for s in module.parameter_shapes]
    want = reference(module, args)
    assert make_pass(f"convolution-to-patches{{{option}}}").run(module)
    assert check_module(module) == []
    assert difference(evaluate(module, args), want) is None
    return [i.opcode for i in module.entry.instructions]


@pytest.mark.parametrize("parts", [1, 128])
@pytest.mark.parametrize("case", list(convolutions()), ids=lambda c: c.name)
def test_every_form(case: Case, parts: int) -> None:
    module = parse(case.text)
    want = reference(module, case.args)
    text = str(module)
    changed = make_pass(f"convolution-to-patches{{max_parts={parts}}}").run(module)
    assert changed == (str(module) != text)
    assert check_module(module) == []
    assert difference(evaluate(module, list(case.args)), want) is None
    left = [i for i in module.entry.instructions if i.opcode is Opcode.CONVOLUTION]
    written_out = all(np.size(a) and a.dtype == np.float32 for a in (*case.args, *want.outputs))
    assert bool(left) == (not written_out) or parts == 1


@pytest.mark.parametrize(
    ("image", "kernel", "result", "attributes"),
    [
        ("2,9,6,3", "4,3,3,5", "2,2,2,5", "window={size=4x3 stride=4x3}, dim_labels=b01f_01io->b01f"),
        ("3,2,9,6", "5,3,4,3", "2,5,2,2", "window={size=4x3 stride=4x3 rhs_reversal=1x0}, dim_labels=fb01_oi01->bf01"),
        ("2,8,6", "4,3,4", "2,2,4", "window={size=4 stride=4}, dim_labels=b0f_0io->b0f, feature_group_count=2"),
    ],
)
def test_windows_that_do_not_overlap_need_no_slices(image: str, kernel: str, result: str, attributes: str) -> None:
    module = parse(f"""
HloModule m
ENTRY main {{
  x = f32[{image}] parameter(0)
  k = f32[{kernel}] parameter(1)
  ROOT c = f32[{result}] convolution(x, k), {attributes}
}}""")
    opcodes = expanded_opcodes(module, "max_parts=1")
    assert Opcode.CONCATENATE not in opcodes and Opcode.CONVOLUTION not in opcodes


@pytest.mark.parametrize(
    ("image", "result", "attributes"),
    [
        ("4,7,6,3", "3,2,1,3", "window={size=5x5 pad=0_0x1_0}, dim_labels=f01b_i01o->01bf"),
        ("4,7,6,3", "2,1,3,2", "window={size=5x5 stride=2x1 rhs_reversal=1x0}, dim_labels=f01b_i01o->0bf1"),
        ("3,6,7,4", "1,3,3,3", "window={size=5x5 lhs_dilate=1x2 pad=2_1x-2_-2 stride=2x1}, dim_labels=b10f_i10o->b10f"),
        ("4,9,9,3", "1,3,3,3", "window={size=5x5 rhs_dilate=2x2 pad=1_1x1_1}, dim_labels=f01b_i01o->b01f"),
    ],
)
def test_gradients_of_depthwise_kernels_are_sums(image: str, result: str, attributes: str) -> None:
    module = parse(f"""
HloModule m
ENTRY main {{
  x = f32[{image}] parameter(0)
  g = f32[4,5,5,3] parameter(1)
  ROOT c = f32[{result}] convolution(x, g), {attributes}, batch_group_count=3
}}""")
    # The limit of elements is one of patches, of which there are none.
    opcodes = expanded_opcodes(module, "max_elements=1")
    assert Opcode.DOT not in opcodes and Opcode.CONVOLUTION not in opcodes


def test_a_large_batch_is_divided() -> None:
    module = parse("""
HloModule m
ENTRY main {
  x = f32[6,3,5,5] parameter(0)
  k = f32[3,3,3,4] parameter(1)
  ROOT c = f32[4,6,5,5] convolution(x, k), window={size=3x3 pad=1_1x1_1}, dim_labels=bf01_01io->fb01
}""")
    # The patches have 6 * 25 * 27 elements, those of three samples 2,025.
    opcodes = expanded_opcodes(module, "max_elements=2025")
    assert opcodes.count(Opcode.DOT) == 2
    assert Opcode.CONVOLUTION not in opcodes


@pytest.mark.parametrize(
    ("image", "kernel", "result", "limit", "parts", "attributes"),
    [
        ("1,3,5,7", "3,3,3,4", "1,4,5,7", 500, 3, "window={size=3x3 pad=1_1x1_1}, dim_labels=bf01_01io->bf01"),
        (
            "1,5,9,3", "4,3,3,2", "8,4,6,1", 220, 4,
            "window={size=3x2 stride=2x1 pad=1_4x-1_2 lhs_dilate=2x1 rhs_dilate=1x2 rhs_reversal=1x0},"
            " dim_labels=b01f_oi01->1f0b",
        ),
        (
            "4,6,5,3", "4,4,3,6", "6,3,3,1", 432, 3,
            "window={size=4x3}, dim_labels=f01b_i01o->f01b, batch_group_count=3",
        ),
    ],
)  # fmt: skip
def test_positions_are_divided_where_the_batch_cannot_be(
    image: str, kernel: str, result: str, limit: int, parts: int, attributes: str
) -> None:
    module = parse(f"""
HloModule m
ENTRY main {{
  x = f32[{image}] parameter(0)
  k = f32[{kernel}] parameter(1)
  ROOT c = f32[{result}] convolution(x, k), {attributes}
}}""")
    opcodes = expanded_opcodes(module, f"max_elements={limit}")
    assert opcodes.count(Opcode.DOT) == parts
    assert Opcode.CONVOLUTION not in opcodes


def test_a_convolution_with_too_many_parts_stays() -> None:
    text = """
HloModule m
ENTRY main {
  x = f32[1,3,5,5] parameter(0)
  k = f32[3,3,3,4] parameter(1)
  ROOT c = f32[1,4,5,5] convolution(x, k), window={size=3x3 pad=1_1x1_1}, dim_labels=bf01_01io->bf01
}"""
    assert not make_pass("convolution-to-patches{max_elements=100}").run(parse(text))


@pytest.mark.parametrize(
    ("window", "size"),
    [
        ("size=6x7 pad=1_1x1_1", "3,3"),
        ("size=3x4 pad=1_0x0_1 rhs_dilate=2x2", "3,2"),
        ("size=6x7 pad=1_1x1_1 rhs_reversal=1x0", "3,3"),
    ],
)
def test_gradients_of_weights_read_activations_with_the_features_last_as_they_are(window: str, size: str) -> None:
    kernel = "3,4" if "3x4" in window else "6,7"
    module = parse(f"""
HloModule m
ENTRY main {{
  x = f32[4,6,7,3] parameter(0)
  k = f32[4,{kernel},5] parameter(1)
  ROOT c = f32[{size},3,5] convolution(x, k), window={{{window}}}, dim_labels=f01b_i01o->01bf
}}""")
    opcodes = expanded_opcodes(module, "")
    assert opcodes.count(Opcode.DOT) == 1
    assert Opcode.TRANSPOSE not in opcodes


@pytest.mark.parametrize(
    ("image", "kernel", "result", "attributes"),
    [
        ("1,3,10,12", "5,3,3,3", "1,5,10,12", "window={size=3x3 pad=1_1x1_1}, dim_labels=bf01_oi01->bf01"),
        ("1,3,11,20", "5,3,3,4", "1,5,5,9", "window={size=3x4 stride=2x2}, dim_labels=bf01_oi01->bf01"),
        ("3,1,9,16", "3,3,2,2", "1,2,7,14",
         "window={size=3x2 rhs_dilate=1x2 rhs_reversal=1x0}, dim_labels=fb01_i01o->bf01"),
        ("1,4,5,6", "4,4,2,3", "4,10,12,1",
         "window={size=2x3 pad=1_1x2_1 lhs_dilate=2x2 rhs_reversal=0x1}, dim_labels=bf01_oi01->f01b"),
        ("1,6,30", "7,6,5", "1,7,30", "window={size=5 pad=2_2}, dim_labels=bf0_oi0->bf0"),
        ("1,2,4,5,9", "3,2,2,2,2", "1,3,3,4,8", "window={size=2x2x2}, dim_labels=bf012_oi012->bf012"),
    ],
)  # fmt: skip
def test_planes_are_copied_by_rows(image: str, kernel: str, result: str, attributes: str) -> None:
    module = parse(f"""
HloModule m
ENTRY main {{
  x = f32[{image}] parameter(0)
  k = f32[{kernel}] parameter(1)
  ROOT c = f32[{result}] convolution(x, k), {attributes}
}}""")
    opcodes = expanded_opcodes(module, "")
    assert opcodes.count(Opcode.DOT) == 1
    assert Opcode.TRANSPOSE not in opcodes or "bf01_oi01->bf01" not in attributes


def test_a_layer_and_the_gradient_of_its_weights_share_their_patches() -> None:
    module = parse("""
HloModule m
ENTRY main {
  x = f32[4,6,7,3] parameter(0)
  w = f32[3,3,3,5] parameter(1)
  d = f32[4,6,7,5] parameter(2)
  y = f32[4,6,7,5] convolution(x, w), window={size=3x3 pad=1_1x1_1}, dim_labels=b01f_01io->b01f
  g = f32[3,3,3,5] convolution(x, d), window={size=6x7 pad=1_1x1_1}, dim_labels=f01b_i01o->01bf
  ROOT t = (f32[4,6,7,5], f32[3,3,3,5]) tuple(y, g)
}""")
    assert Opcode.CONVOLUTION not in expanded_opcodes(module, "")
    make_pass("cse").run(module)
    make_pass("dce").run(module)
    assert [i.opcode for i in module.entry.instructions].count(Opcode.CONCATENATE) == 1


TILES = {  # input, kernel, result, window, labels
    "features first": (
        "2,6,4,5",
        "6,3,2,2",
        "2,3,8,10",
        "2x2 pad=1_1x1_1 lhs_dilate=2x2 rhs_reversal=1x1",
        "bf01_io01->bf01",
    ),
    "features last": (
        "2,4,5,6",
        "2,2,3,6",
        "2,8,10,3",
        "2x2 pad=1_1x1_1 lhs_dilate=2x2 rhs_reversal=1x1",
        "b01f_01oi->b01f",
    ),
    "as it is": ("2,6,4,5", "3,6,2,3", "2,3,8,15", "2x3 pad=1_1x2_2 lhs_dilate=2x3", "bf01_oi01->bf01"),
    "one turned": (
        "2,4,5,6",
        "2,3,6,4",
        "2,8,15,4",
        "2x3 pad=1_1x2_2 lhs_dilate=2x3 rhs_reversal=0x1",
        "b01f_01io->b01f",
    ),
    "with a rest": ("2,6,4,5", "3,6,2,3", "2,3,9,17", "2x3 pad=1_2x2_4 lhs_dilate=2x3", "bf01_oi01->bf01"),
    "one dimension": ("6,2,7", "6,4,3", "4,2,21", "3 pad=2_2 lhs_dilate=3", "fb0_io0->fb0"),
    "one of two": ("2,6,4,5", "3,6,2,1", "2,3,8,5", "2x1 pad=1_1x0_0 lhs_dilate=2x1", "bf01_oi01->bf01"),
    "other order": ("4,2,6,5", "2,6,2,3", "8,10,3,2", "2x2 pad=1_1x1_1 lhs_dilate=2x2", "0bf1_0i1o->01fb"),
}


@pytest.mark.parametrize("case", TILES)
def test_positions_that_fill_tiles_are_a_product(case: str) -> None:
    x, kernel, out, window, labels = TILES[case]
    module = parse(
        f"HloModule m\nENTRY e {{ x = f32[{x}] parameter(0)\n k = f32[{kernel}] parameter(1)\n"
        f" ROOT c = f32[{out}] convolution(x, k), window={{size={window}}}, dim_labels={labels} }}"
    )
    arguments = [
        np.random.default_rng(n).integers(-3, 4, s.dimensions).astype(s.dtype)
        for n, s in enumerate(module.parameter_shapes)
    ]
    (want,) = evaluate(module, arguments)
    changed = parse(str(module))
    assert make_pass("convolution-to-patches").run(changed)
    opcodes = [i.opcode for i in changed.entry.instructions]
    assert opcodes.count(Opcode.DOT) == 1
    assert Opcode.CONVOLUTION not in opcodes
    assert Opcode.CONCATENATE not in opcodes
    np.testing.assert_array_equal(evaluate(changed, arguments)[0], want)
    np.testing.assert_array_equal(compile(module)(*arguments)[0], want)
