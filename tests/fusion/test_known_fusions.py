"""Fusions of sequences that are remembered: they are those of the policy, and what is remembered is bounded."""

import itertools

import pytest

from compiler.default_fusion import default_completion, fuse_by_default
from compiler.fusion.actions import FusionAction
from compiler.fusion.known_fusions import KnownFusions
from compiler.fusion.policies import make_policy
from compiler.fusion.protocol import FusionPolicy, run_policy
from compiler.fusion.state import FusionState
from compiler.session import CompilationSession
from compiler.text import parse

_LOOP = """
body{0} {{
  p = (s32[], f32[256], f32[256]) parameter(0)
  i = s32[] get-tuple-element(p), index=0
  x = f32[256] get-tuple-element(p), index=1
  y = f32[256] get-tuple-element(p), index=2
  one = s32[] constant(1)
  next = s32[] add(i, one)
  r = f32[256] reverse(x), dimensions={{0}}
  c = f32[256] {1}(r)
  m = f32[256] multiply(c, y)
  a = f32[256] add(m, x)
  n = f32[256] negate(a)
  ROOT t = (s32[], f32[256], f32[256]) tuple(next, a, n)
}}
condition{0} {{
  p = (s32[], f32[256], f32[256]) parameter(0)
  i = s32[] get-tuple-element(p), index=0
  n = s32[] constant({2})
  ROOT r = pred[] compare(i, n), direction=LT
}}
"""
_OPS = ("cosine", "tanh", "exponential")
LOOPS = (
    "HloModule loops\n"
    + "".join(_LOOP.format(n, op, 48 + 2 * n) for n, op in enumerate(_OPS))
    + "ENTRY e {\n  x0 = f32[256] parameter(0)\n  y0 = f32[256] parameter(1)\n  zero = s32[] constant(0)\n"
    + "".join(
        f"""
  s{n} = (s32[], f32[256], f32[256]) tuple(zero, x{n}, y{n})
  w{n} = (s32[], f32[256], f32[256]) while(s{n}), condition=condition{n}, body=body{n}
  x{n + 1} = f32[256] get-tuple-element(w{n}), index=1
  z{n} = f32[256] get-tuple-element(w{n}), index=2
  h{n} = f32[256] sine(z{n})
  y{n + 1} = f32[256] add(h{n}, x{n + 1})
"""
        for n in range(len(_OPS))
    )
    + f"  ROOT r = f32[256] add(x{len(_OPS)}, y{len(_OPS)})\n}}\n"
)
"""Three loops that may be unrolled and are no kernels, with ops between them."""
CHOICES = ("keep", "unroll-2", "unroll-4")


def _started(backend: str = "cpu") -> CompilationSession:
    session = CompilationSession(parse(LOOPS), backend=backend)
    session.run_passes()
    return session


def _decided(start: CompilationSession, choices: tuple[str, ...]) -> CompilationSession:
    session = start.fork()
    for choice, site in zip(choices, session.loops(), strict=True):
        session.set_loop(site, choice)
    return session


@pytest.mark.parametrize("backend", ["cpu", "cuda"])
def test_known_fusions_are_those_of_the_policy(backend: str) -> None:
    start = _started(backend)
    for choices in itertools.islice(itertools.product(CHOICES, repeat=3), 0, None, 4):
        session = _decided(start, choices)
        completion = default_completion(session)
        fused, replayed, asked = session.fork(), CompilationSession(parse(LOOPS), backend=backend), session.fork()
        fuse_by_default(fused)
        replayed.replay(completion.plan)
        asked.run_fusion_policy()
        assert completion.seconds == asked.cost().seconds
        for other in (fused, replayed):
            assert other.fusion.fingerprint == asked.fusion.fingerprint
            assert other.cost().seconds == asked.cost().seconds


def test_loops_that_were_decided_before_are_not_fused_again(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def run(state: FusionState, policy: FusionPolicy) -> list[FusionAction]:
        asked.extend(state.sequences)
        return run_policy(state, policy)

    monkeypatch.setattr("compiler.fusion.known_fusions.run_policy", run)
    start = _started()
    for n in range(3):  # each body with each choice
        default_completion(_decided(start, (CHOICES[n],) * 3))
    assert asked
    asked.clear()
    combination = default_completion(_decided(start, ("keep", "unroll-4", "unroll-2")))
    assert len(asked) <= 1  # at most the entry, in which passes may have named something otherwise
    assert combination == default_completion(_decided(_started(), ("keep", "unroll-4", "unroll-2")))


def test_what_is_known_is_bounded() -> None:
    session = _decided(_started(), ("keep",) * 3)
    assert session.fusion_base.sequences
    known = KnownFusions(session.device, session.target, most=1)
    first = known.of(session.module, lambda: make_policy("default"))
    assert len(known._known) == 1  # the last one is kept whatever its size
    assert known.of(session.module, lambda: make_policy("default")) == first


def test_a_session_whose_fusion_has_begun_goes_on_by_the_policy() -> None:
    session = _started()
    session.apply(session.actions()[0])
    asked, fused, completion = session.fork(), session.fork(), default_completion(session)
    asked.run_fusion_policy()
    fuse_by_default(fused)
    assert completion.plan == fused.plan == asked.plan
    assert completion.seconds == asked.cost().seconds


def test_kernel_loops_are_priced_as_by_the_policy() -> None:
    text = LOOPS.replace("reverse(x), dimensions={0}", "negate(x)")  # now iterations are independent by element
    start = CompilationSession(parse(text))
    start.run_passes()
    session = _decided(start, ("kernel", "keep", "kernel"))
    asked = session.fork()
    asked.run_fusion_policy()
    completion = default_completion(session)
    assert completion.seconds == asked.cost().seconds
    assert len(completion.plan.steps) == len(asked.plan.steps)
