"""The graph page: its data, that nothing of a program is HTML in it, and what a browser shows."""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from compiler import parse
from compiler.analysis.cost_model import CostModel
from compiler.ir import HloModule
from compiler.session import CompilationSession
from env.suites import find_program
from experiments.benchmarks.headless import Chromium, find_chromium
from experiments.decisions import decided_session
from experiments.view import graph_page
from experiments.view.history import record_history
from experiments.view.scopes import Scopes, scope_path

ATTACK = "</script><img src=x onerror=document.title=1><!--"
HOSTILE = f"""
HloModule hostile

ENTRY main {{
  x = f32[8] parameter(0)
  s = f32[8] sine(x), metadata={{op_name="jit(f)/{ATTACK}/sin" source_file="{ATTACK}"}}
  c = f32[8] cosine(x), metadata={{op_name="jit(f)/{ATTACK}/cos"}}
  e = f32[8] custom-call(s, c), custom_call_target="{ATTACK}", metadata={{op_name="jit(f)/{ATTACK}/call"}}
  r = f32[8] negate(s), metadata={{op_name="jit(f)/other/neg"}}
  ROOT t = (f32[8], f32[8]) tuple(r, e)
}}
"""
HIDDEN = {"constant", "tuple", "get-tuple-element"}


def page_of(module: HloModule, policy: str | None = None, backend: str = "cpu") -> tuple[str, CompilationSession]:
    session = decided_session(module, backend, policy, None)
    return graph_page(module, session.plan, backend), session


def blob(page: str, name: str) -> Any:
    found = re.search(rf"<script type='text/plain' id='{name}'>([^<]*)</script>", page)
    assert found is not None
    return json.loads(gzip.decompress(base64.b64decode(found.group(1))))


def instruction(text: str) -> Any:
    return parse(
        f"HloModule m\nENTRY e {{ x = f32[] parameter(0)  ROOT y = f32[] sine(x), metadata={{{text}}} }}"
    ).entry.root


# ---- data


def test_scopes_are_the_path_without_jit_and_the_op() -> None:
    assert scope_path(instruction('op_name="jit(f)/transpose(jvp(a/b))/layer_0/mul"')) == (
        "transpose(jvp(a/b))",
        "layer_0",
    )
    assert scope_path(instruction('op_name="mul"')) == ()
    assert scope_path(instruction('source_file="x.py"')) == ()
    scopes = Scopes()
    assert [scopes.number(p) for p in (("a", "b"), ("a",), ("a", "c"), ())] == [2, 1, 3, 0]
    assert scopes.rows == [(-1, ""), (0, "a"), (1, "b"), (1, "c")]


def test_passes_list_the_lines_that_they_change() -> None:
    module = parse("HloModule m\nENTRY e { x = f32[4] parameter(0)  n = f32[4] negate(x)  ROOT m = f32[4] negate(n) }")
    session = decided_session(module, "cpu", None, None)
    history = record_history(module, session.plan, "cpu", CostModel())
    change = next(p for p in history.passes if any("negate" in line for _, _, line in p.lines))
    signs = [(sign, computation, line.partition(" = ")[0]) for sign, computation, line in change.lines]
    assert ("-", "e", "%n") in signs
    assert change.removed == sum(sign == "-" for sign, _, _ in signs)
    assert history.hlo["as given"].count("negate") == 2
    assert history.hlo["after fusion"].count("negate") == 0


def test_the_steps_are_the_fusions_with_what_they_save() -> None:
    module = parse(find_program("layer_norm_backward").text())
    page, session = page_of(module)
    data = blob(page, "data")
    assert [(s[1], s[2], tuple(s[3])) for s in data["steps"]] == [
        (s.action.kind, s.action.producer, s.action.consumers) for s in session.plan.steps
    ]
    assert data["baseSeconds"] - sum(s[6] for s in data["steps"]) == pytest.approx(data["finalSeconds"], rel=1e-6)
    assert data["costModel"].startswith("learned")
    assert [b[4] >= 0 for b in data["boundaries"]] == [True]
    assert "different domains" in data["words"][data["boundaries"][0][4]]


def test_long_plans_and_other_backends_have_analytic_times(monkeypatch: pytest.MonkeyPatch) -> None:
    module = parse(find_program("softmax").text())
    assert blob(page_of(module, backend="cuda")[0], "data")["costModel"].startswith("analytic")
    monkeypatch.setattr("experiments.view.MOST_LEARNED", 0)
    data = blob(page_of(module)[0], "data")
    assert data["costModel"].startswith("analytic")
    assert data["baseSeconds"] - sum(s[6] for s in data["steps"]) == pytest.approx(data["finalSeconds"], rel=1e-6)


# ---- security


def test_nothing_of_a_program_is_html() -> None:
    page, _ = page_of(parse(HOSTILE))
    assert "<img" not in page
    assert "onerror=document" not in page
    assert any(ATTACK in word for word in blob(page, "data")["words"])


def test_only_the_scripts_of_the_page_may_run() -> None:
    page, _ = page_of(parse(HOSTILE))
    found = re.search(r"script-src ([^;]*);", page)
    assert found is not None
    allowed = set(re.findall(r"'sha256-([^']*)'", found.group(1)))
    scripts = re.findall(r"<script(?: id='\w+')?>(.*?)</script>", page, re.DOTALL)
    assert len(scripts) == 3
    assert {base64.b64encode(hashlib.sha256(s.encode()).digest()).decode() for s in scripts} == allowed
    assert "default-src 'none'" in page
    assert "'unsafe-inline'" not in found.group(1)


def test_the_page_carries_the_licences_of_its_libraries() -> None:
    page, _ = page_of(parse(HOSTILE))
    assert "The Cytoscape Consortium" in page
    assert "Chris Pettitt" in page
    assert not re.search(r"<(?:script|link|img)[^>]*(?:src|href)=", page)


# ---- the browser


@pytest.fixture(scope="module")
def browser() -> Iterator[Chromium]:
    if find_chromium() is None:
        pytest.skip("there is no Chromium here")
    with Chromium() as found:
        yield found


def test_the_page_fits_a_narrow_window_and_names_measured_times(browser: Chromium, tmp_path: Path) -> None:
    module = parse("HloModule m\nENTRY e { x = f32[4] parameter(0)  ROOT y = f32[4] sine(x) }")
    session = decided_session(module, "cpu", None, None)
    for measured, said in (({}, "estimated"), ({"y": 2e-6}, "2 µs measured")):
        (tmp_path / "page.html").write_text(graph_page(module, session.plan, "cpu", measured))
        browser.open(tmp_path / "page.html")
        assert browser.evaluate("document.getElementById('about').textContent").endswith(said)
    assert "1 node of " in browser.evaluate("document.getElementById('panel').textContent")
    browser.evaluate("document.body.style.width = '420px'")
    assert browser.evaluate("document.querySelector('header').scrollWidth") <= 420


def test_a_hostile_program_is_shown_as_text(browser: Chromium, tmp_path: Path) -> None:
    page, _ = page_of(parse(HOSTILE))
    (tmp_path / "hostile.html").write_text(page)
    browser.messages.clear()
    browser.open(tmp_path / "hostile.html")
    assert browser.evaluate("document.title") == "hostile"
    browser.evaluate("View.app.goTo('e').then(() => 0)")
    assert "%e" in browser.evaluate("document.getElementById('panel').textContent")
    assert browser.evaluate("document.querySelectorAll('img').length") == 0
    assert browser.messages == []


@pytest.mark.parametrize(
    "name", ["mlp_train_step", "layer_norm_backward", "softmax_cross_entropy_grad", "cartpole_naive"]
)
def test_the_slider_shows_the_fusions_of_every_step(browser: Chromium, tmp_path: Path, name: str) -> None:
    module = parse(find_program(name).text())
    page, session = page_of(module)
    (tmp_path / "page.html").write_text(page)
    browser.open(tmp_path / "page.html")
    steps = session.plan.steps
    replayed = decided_session(module, "cpu", "none", None)
    state = replayed.fusion
    for count in range(len(steps) + 1):
        if count:
            state.apply(steps[count - 1].action)
        for sequence in replayed.module.control_flow_computations():
            wanted = {i.name for i in sequence.instructions if i.opcode.text not in HIDDEN and not _is_constant(i)}
            shown = browser.evaluate(
                f"(s => {{ s.moveTo({count}); return [...s.nodes.keys()]; }})"
                f"(View.app.program.sequences.find((s) => s.name === {json.dumps(sequence.name)}))"
            )
            assert set(shown) >= wanted
            left = set(shown) - wanted  # broadcasts that only fusions read are gone from the module, or none
            assert not left, (count, left)


def _is_constant(i: Any) -> bool:
    return bool(i.opcode.text == "broadcast" and i.operands[0].opcode.text == "constant")


def test_search_folding_and_the_other_tabs(browser: Chromium, tmp_path: Path) -> None:
    page, session = page_of(parse(find_program("softmax_cross_entropy_grad").text()))
    (tmp_path / "page.html").write_text(page)
    browser.open(tmp_path / "page.html", "tab=passes&item=0")
    assert browser.evaluate("document.querySelectorAll('#pass-list > div').length") == len(blob(page, "passes"))
    assert browser.evaluate("document.querySelectorAll('#pass-text .added').length") > 0
    found = browser.evaluate("View.search(View.app.program, 'exponential').map((h) => h.node.name)")
    kernels = {i.name for i in session.module.entry.instructions}
    assert found
    assert set(found) <= kernels
    browser.evaluate("View.app.draw().then(() => 0)")
    shown = browser.evaluate("View.app.picture.cy.nodes().length")
    assert shown == browser.evaluate("View.app.things.size + View.app.openGroups.length")


def test_an_empty_program_says_so(browser: Chromium, tmp_path: Path) -> None:
    page, _ = page_of(parse("HloModule m\nENTRY e { ROOT x = f32[4] parameter(0) }"))
    (tmp_path / "page.html").write_text(page)
    browser.open(tmp_path / "page.html")
    message = "document.getElementById('message')"
    assert not browser.evaluate(f"{message}.classList.contains('hidden')")
    assert "Nothing is computed here" in browser.evaluate(f"{message}.textContent")


def test_long_lists_are_folded_into_parts(browser: Chromium, tmp_path: Path) -> None:
    lines = "\n".join(f"  s{n + 1} = f32[4] sine(s{n})" for n in range(300))
    module = parse(f"HloModule long\nENTRY e {{\n  s0 = f32[4] parameter(0)\n{lines}\n  ROOT r = f32[4] abs(s300)\n}}")
    page, _ = page_of(module, "none")
    (tmp_path / "page.html").write_text(page)
    browser.open(tmp_path / "page.html")
    assert browser.evaluate("View.app.things.size") <= 40
    assert browser.evaluate("View.app.tree.count") == 301
    browser.evaluate("View.app.goTo('s150').then(() => 0)")
    assert browser.evaluate("View.app.things.has('s150')")
    browser.evaluate("document.getElementById('fold').click()")
    assert not browser.evaluate("View.app.things.has('s150')")
