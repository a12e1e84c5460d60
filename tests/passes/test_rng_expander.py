"""Expanded random number generation, compared with XLA's numbers."""

import numpy as np
import pytest

from compiler.ir import Opcode
from compiler.ir.verifier import check_module
from compiler.passes import make_pass
from compiler.text import parse
from tests.oracle import run_xla
from tests.passes.programs import run

SHAPES = ("u32[5]", "u64[3,5]", "u16[3,4]", "u8[]")


def program(algorithm: str, words: int, shape: str) -> str:
    result = f"(u64[{words}], {shape})"
    return f"""HloModule bits
ENTRY main {{
  state = u64[{words}] parameter(0)
  ROOT bits = {result} rng-bit-generator(state), algorithm={algorithm}
}}"""


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(("algorithm", "words"), [("rng_three_fry", 2), ("rng_philox", 3), ("rng_default", 2)])
def test_numbers_and_state_are_those_of_xla(algorithm: str, words: int, shape: str) -> None:
    text = program(algorithm, words, shape)
    # The counter is about to wrap around, so that a missing carry would be noticed.
    state = np.array([7, 2**64 - 2, 2**64 - 1][:words], np.uint64)
    module = parse(text)

    assert make_pass("rng-expander").run(module)

    assert check_module(module) == []
    assert all(i.opcode is not Opcode.RNG_BIT_GENERATOR for i in module.entry.instructions)
    for got, want in zip(run(module, [state]), run_xla(text, [state]), strict=True):
        np.testing.assert_array_equal(got, want)


def test_threefry_custom_call() -> None:
    # Known answer: test vector of the reference implementation of Threefry-2x32 with 20 rounds (Random123).
    text = """HloModule call
ENTRY main {
  k = u32[3,2] parameter(0)
  c = u32[3,2] parameter(1)
  k0 = u32[3,1] slice(k), slice={[0:3], [0:1]}
  k1 = u32[3,1] slice(k), slice={[0:3], [1:2]}
  c0 = u32[3,1] slice(c), slice={[0:3], [0:1]}
  c1 = u32[3,1] slice(c), slice={[0:3], [1:2]}
  ROOT r = (u32[3,1], u32[3,1]) custom-call(k0, k1, c0, c1), custom_call_target="cu_threefry2x32_ffi"
}"""
    ones = 0xFFFFFFFF
    keys = np.array([[0, 0], [ones, ones], [0x13198A2E, 0x03707344]], np.uint32)
    counters = np.array([[0, 0], [ones, ones], [0x243F6A88, 0x85A308D3]], np.uint32)
    known = np.array([[0x6B200159, 0x99BA4EFE], [0x1CB996FC, 0xBB002BE7], [0xC4923A9C, 0x483DF7A0]], np.uint32)
    module = parse(text)

    assert make_pass("rng-expander").run(module)

    np.testing.assert_array_equal(np.concatenate(run(module, [keys, counters]), axis=1), known)
