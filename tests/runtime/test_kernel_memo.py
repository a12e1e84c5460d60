"""Generated kernels that are kept: they equal those that are generated again."""

from dataclasses import replace

import pytest

from compiler import parse
from compiler.codegen.kernel_spec import lower_instruction
from compiler.codegen.languages import LANGUAGES
from compiler.errors import UnsupportedError
from compiler.ir.instruction import HloInstruction
from compiler.runtime import kernel_memo
from compiler.runtime.instruction_kernels import emit_kernel
from compiler.runtime.kernel_memo import forget_kernels, generated_kernel

TEXT = """HloModule m
body { a = f32[64,64] parameter(0) b = f32[64,64] exponential(a) ROOT c = f32[64,64] multiply(b, a) }
again { s = f32[64,64] parameter(0) t = f32[64,64] exponential(s) ROOT u = f32[64,64] multiply(t, s) }
other { s = f32[64,64] parameter(0) t = f32[64,64] exponential(s) ROOT u = f32[64,64] add(t, s) }
ENTRY main {
  x = f32[64,64] parameter(0)
  one = f32[64,64] fusion(x), kind=kLoop, calls=body
  two = f32[64,64] fusion(one), kind=kLoop, calls=again
  ROOT three = f32[64,64] fusion(two), kind=kLoop, calls=other
}"""


def fusion(name: str) -> HloInstruction:
    found = parse(TEXT).entry.find(name)
    assert found is not None
    return found


@pytest.mark.parametrize("language", ["c", "cuda"])
def test_kept_kernels_equal_generated_ones(language: str) -> None:
    default = LANGUAGES[language].default_schedule
    for schedule in (None, replace(default, unroll=2)):
        for name in ("one", "two", "three", "one"):
            i = fusion(name)
            assert emit_kernel(i, language, schedule) == lower_instruction(i, language).bind(schedule)


def test_an_equal_kernel_is_generated_once(monkeypatch: pytest.MonkeyPatch) -> None:
    forget_kernels()
    lowered = []

    def note(i: HloInstruction, language: str) -> object:
        lowered.append(i.name)
        return lower_instruction(i, language)

    monkeypatch.setattr(kernel_memo, "lower_instruction", note)
    specs = [generated_kernel(fusion(name), "c", None) for name in ("one", "two", "three", "two")]
    assert lowered == ["one", "three"]
    assert [s.name for s in specs] == ["one", "two", "three", "two"]
    assert specs[0].symbol == specs[1].symbol != specs[2].symbol


def test_kernels_for_another_number_of_cores_are_generated_again(monkeypatch: pytest.MonkeyPatch) -> None:
    forget_kernels()
    cores, lowered = [4], []

    def note(i: HloInstruction, language: str) -> object:
        lowered.append(cores[0])
        return lower_instruction(i, language)

    monkeypatch.setattr(kernel_memo, "lower_instruction", note)
    monkeypatch.setitem(LANGUAGES, "c", replace(LANGUAGES["c"], threads=lambda: cores[0]))
    for cores[0] in (4, 8, 4, 8):
        generated_kernel(fusion("one"), "c", None)
    assert lowered == [4, 8]


def test_a_refusal_is_reported_each_time() -> None:
    refused = parse("HloModule m\nENTRY main { x = f32[3,3] parameter(0) ROOT c = f32[3,3] cholesky(x) }").entry.root
    for _ in range(2):
        with pytest.raises(UnsupportedError):
            generated_kernel(refused, "c", None)
