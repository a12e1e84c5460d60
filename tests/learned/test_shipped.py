"""The policy that ships can be read, says what its card says, and computes what the interpreter computes."""

import json
import tomllib
from fnmatch import fnmatch
from pathlib import Path

import numpy as np
import pytest

from compiler import compile
from compiler.interpreter import evaluate
from compiler.learned.whole_folder import SHIPPED, read_whole
from compiler.policy import load_whole, resolve_policy, shipped_description
from compiler.session import CompilationSession
from compiler.text import parse
from experiments.policies import listed_policies
from tests.learned.test_site_policy import DOT

ROOT = Path(__file__).resolve().parents[2]
LAYER = """ENTRY e {
  x = f32[8,32] parameter(0)
  w = f32[32,16] parameter(1)
  t = f32[8,32] tanh(x)
  d = f32[8,16] dot(t, w), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  ROOT r = f32[8,16] negate(d)
}"""


def test_its_description_its_card_and_the_list_agree() -> None:
    whole = read_whole(SHIPPED)
    assert whole == shipped_description()
    assert list(load_whole(SHIPPED).parts) == list(whole.parts)
    card = (SHIPPED / "README.md").read_text()
    assert f"version {whole.version}" in card
    for rule in str(resolve_policy("learned:rules", "cpu").expansions.chooser.rules).splitlines():  # type: ignore[union-attr]
        assert rule in card
    listed = {p.name: p for p in listed_policies()}
    assert listed["learned"].version == whole.version
    assert listed["learned"].decides == tuple(whole.parts)
    assert set(whole.default_for) <= set(whole.backends)
    if whole.default_for:
        assert whole.provenance["validation"]["passed"] is True


@pytest.mark.parametrize("name", ["learned", "learned:rules"])
@pytest.mark.parametrize("text", [DOT, LAYER])
def test_results_are_those_of_the_interpreter(name: str, text: str) -> None:
    module = parse(text)
    rng = np.random.default_rng(0)
    arrays = [rng.normal(size=p.shape.dimensions).astype(np.float32) for p in module.entry.parameters]
    executable = compile(text, policy=name)
    np.testing.assert_allclose(executable(*arrays)[0], evaluate(module, arrays)[0], rtol=1e-5, atol=1e-6)
    assert executable.plan is not None
    assert executable.plan.decided_by["expansions"].startswith(name)


def test_it_changes_a_decision_and_says_why() -> None:
    session = CompilationSession(parse(LAYER))
    session.run_passes()
    (site,) = session.expansions()
    assert site.default == "loops"
    assert resolve_policy("learned", "cpu").explain(site).startswith("keep: predicted keep")
    assert "elements" in resolve_policy("learned:rules", "cpu").explain(site)


def test_its_files_are_part_of_the_package() -> None:
    patterns = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["package-data"]
    inside = [p.relative_to(SHIPPED.parent) for p in SHIPPED.rglob("*") if p.is_file()]
    assert inside
    for path in inside:
        assert any(fnmatch(str(path), pattern) for pattern in patterns["compiler.learned"]), path
    assert json.loads((SHIPPED / "policy.json").read_text())["format"] == "hlogym-policy"
