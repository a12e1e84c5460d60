"""Attention in two stages on a GPU: parts of the keys, then their sum; in the emulator against the interpreter."""

from __future__ import annotations

import random

import numpy as np
import pytest

from compiler import CompilationSession, compile
from compiler.backends.cuda.emulation import available, stand_in
from compiler.codegen.schedules.kernel_choice import KernelChoice
from compiler.interpreter import evaluate
from compiler.ir import HloModule
from compiler.passes.dots import attention_fusion
from compiler.runtime.kernel_sites import KernelSite
from compiler.text import parse
from tests.codegen.attentions import AttentionForm, random_attention
from tests.codegen.grouped_attention import grouped_attention
from tests.codegen.running import Array, random_args

needs_emulator = pytest.mark.skipif(not available(), reason="the emulator needs g++")


def module_of(form: AttentionForm) -> HloModule:
    """Return the module of a form."""
    module = form.computation().parent
    assert module is not None
    return parse(str(module))


def arguments(form: AttentionForm) -> list[Array]:
    """Return random arguments of a form."""
    return random_args(module_of(form).entry.parameter_shapes, np.random.default_rng(1))


def session_of(module: HloModule) -> tuple[CompilationSession, KernelSite]:
    """Return a session of a module that is one attention, and the site of its kernel."""
    session = CompilationSession(module, backend="cuda")
    (site,) = [s for s in session.kernel_sites() if s.spec is not None and s.spec.kind == "attention"]
    return session, site


def check_in_parts(form: AttentionForm, parts: int, args: list[Array]) -> Array:
    """Assert that attention in parts gives what the interpreter gives; return the result."""
    module = module_of(form)
    (wanted,) = evaluate(module, args)
    session, site = session_of(module)
    session.set_kernel(site, KernelChoice("key-parts", {"parts": parts}))
    executable = session.finish()
    assert len(executable.kernels) == 2
    assert executable.kernels[0].kind == "attention"
    with stand_in.installed():
        found: Array = executable(*args)[0].get()
    check_near(found, wanted, form.type)
    return found


def check_near(found: Array, wanted: Array, t: str) -> None:
    """Assert that results are near those of the interpreter, which rounds products and weights of halves to halves."""
    rtol, atol = (2e-4, 1e-5) if t == "f32" else (0.05, 0.05)
    np.testing.assert_allclose(found.astype(np.float32), wanted.astype(np.float32), rtol, atol)


@needs_emulator
def test_random_attention_in_parts() -> None:
    rng = random.Random(5)
    forms = [f for f in (random_attention(rng) for _ in range(60)) if f.queries >= 16 and f.keys > 64]
    for form in forms[:4]:
        check_in_parts(form, 2, arguments(form))


@needs_emulator
@pytest.mark.parametrize("t", ["f32", "bf16"])
@pytest.mark.parametrize("mask", ["causal -inf", "causal -1e9", "given"])
def test_parts_that_a_mask_excludes_contribute_nothing(t: str, mask: str) -> None:
    """The last part lies above the diagonal, and has fewer tiles than the others."""
    form = AttentionForm([2], 20, 330, 16, 32, mask, t, transposed=True, values_first=t == "f32", shuffle=3)
    check_in_parts(form, 4, arguments(form))


@needs_emulator
@pytest.mark.parametrize("zero_if_masked", [False, True])
def test_masked_rows_in_parts(zero_if_masked: bool) -> None:
    """A row without any visible key is NaN, or 0 where the program asks for it."""
    form = AttentionForm([2], 24, 150, 16, 8, "given", zero_if_masked=zero_if_masked)
    args = arguments(form)
    args[3][:] = True
    args[3][5] = False

    found = check_in_parts(form, 2, args)

    assert (found[:, 5] == 0).all() if zero_if_masked else np.isnan(found[:, 5]).all()
    assert np.isfinite(found[:, 6:]).all()


@needs_emulator
@pytest.mark.parametrize(
    ("queries", "groups", "t"),
    [(5, 4, "f32"), (1, 3, "f32"), (1, 7, "f32"), (3, 8, "bf16"), (16, 1, "f32"), (40, 6, "f32")],
)
def test_heads_of_queries_that_share_keys(queries: int, groups: int, t: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention_fusion, "LEAST_SLOW", 0)
    module = parse(grouped_attention(t, 2, groups, queries, 300, 32, scores="groups first"))
    args = random_args(module.entry.parameter_shapes, np.random.default_rng(2))
    (wanted,) = evaluate(module, args)
    executable = compile(module, backend="cuda")
    assert executable.kernels[0].kind == "attention"
    with stand_in.installed():
        check_near(executable(*args)[0].get(), wanted, t)


@pytest.mark.parametrize("t", ["f32", "bf16"])
def test_few_queries_with_many_keys_are_computed_in_parts(t: str) -> None:
    module = module_of(AttentionForm([16], 16, 4096, 64, 64, "none", t))

    first, second = compile(module, backend="cuda").kernels

    assert first.kind == "attention"
    assert first.grid >= 132
    assert second.kind != "attention"


@pytest.mark.parametrize("form", [([64], 256, 4096), ([16], 16, 64)])
def test_many_queries_or_few_keys_are_one_kernel(form: tuple[list[int], int, int]) -> None:
    heads, queries, keys = form
    module = module_of(AttentionForm(heads, queries, keys, 64, 64, "none"))
    assert [k.kind for k in compile(module, backend="cuda").kernels] == ["attention"]


def test_one_kernel_is_a_choice_for_attention_in_parts() -> None:
    session, site = session_of(module_of(AttentionForm([16], 16, 4096, 64, 64, "none")))
    assert site.default.implementation == "key-parts"
    session.set_kernel(site, KernelChoice("generated"))
    assert [k.kind for k in session.finish().kernels] == ["attention"]


@pytest.mark.parametrize("queries", [1, 16])
def test_caches_that_a_library_cannot_read_are_not_copied(queries: int) -> None:
    program = grouped_attention("f32", 2, 4, queries, 8192, 32, scores="groups first")
    kernels = compile(program, backend="cuda").kernels
    touching = [k.kind for k in kernels if any(s.dimensions == (8192, 2, 32) for s in (*k.inputs, *k.outputs))]
    assert touching == ["attention"]
