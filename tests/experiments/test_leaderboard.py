"""A leaderboard takes data and no code: what is refused, what is measured, and what a page shows."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from compiler import CompilationPlan, compile, parse
from compiler.learned.whole_folder import SHIPPED
from compiler.plan import PHASES
from env.measurement import Measurement, Measurer
from env.statistics import Interval
from env.suites import load_suite
from experiments.leaderboard.entry import EntryError, read_entry
from experiments.leaderboard.page import leaderboard_page
from experiments.leaderboard.result import ProgramRow, Verified, read_result, write_result
from experiments.leaderboard.snapshot import MOST_FILE_BYTES, read_snapshot
from experiments.leaderboard.verification import Measuring, decided_plans, suite_of, verify_entry
from experiments.leaderboard.writing import write_entry
from experiments.results import ResultError
from tests.env.small_programs import CHAIN, LOOP, write_suite
from tests.experiments.shell import Shell

QUICK = Measuring(processes=2, rounds=5, seconds=0.05)
QUICK_OPTIONS = ("--processes", "1", "--rounds", "2", "--seconds", "0")


@pytest.fixture(autouse=True)
def _own_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Give each test a machine with a key of its own, with the compiled code of the real one."""
    monkeypatch.setattr("experiments.leaderboard.result.cache_folder", lambda: tmp_path / "machine")


@pytest.fixture
def suite(tmp_path: Path) -> Path:
    return write_suite(tmp_path / "small")


@pytest.fixture
def hlogym(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Shell:
    monkeypatch.chdir(tmp_path)
    return Shell(capsys, monkeypatch)


def unfused(text: str) -> CompilationPlan:
    return plan_of(text, "none")


def plan_of(text: str, policy: str | None = None) -> CompilationPlan:
    plan = compile(parse(text), policy=policy).plan
    assert plan is not None
    return plan


def plans_entry(folder: Path, **changes: Any) -> Path:
    plans = {"chain": unfused(CHAIN), "loop": unfused(LOOP)}
    write_entry(folder, **{"name": "plans", "author": "A. Name", "suite": "small", "source": plans, **changes})
    return folder


def edit(folder: Path, change: Callable[[dict[str, Any]], object], file: str = "entry.json") -> None:
    data = json.loads((folder / file).read_text())
    change(data)
    (folder / file).write_text(json.dumps(data))


def refused(folder: Path) -> str:
    with pytest.raises(EntryError) as error:
        read_entry(folder)
    assert "\n" not in str(error.value)
    return str(error.value)


# ---- entries


def test_an_entry_is_read_as_it_was_written(tmp_path: Path) -> None:
    entry = read_entry(plans_entry(tmp_path / "e", about="Two plans.", decides=["kernels", "fusion"]))
    assert (entry.name, entry.author, entry.about) == ("plans", "A. Name", "Two plans.")
    assert (entry.suite, entry.backend, entry.source) == ("small", "cpu", "plans")
    assert entry.decides == ("fusion", "kernels")
    assert entry.plans == {"chain": unfused(CHAIN), "loop": unfused(LOOP)}
    assert entry.policy is None


def test_the_policy_that_ships_is_copied_into_its_entry(tmp_path: Path) -> None:
    write_entry(tmp_path / "e", "shipped", "hlogym", "small", "learned")
    entry = read_entry(tmp_path / "e")
    assert entry.source == "policy"
    assert entry.policy is not None
    assert entry.decides == tuple(p for p in PHASES if p in entry.policy.parts)
    assert not list((tmp_path / "e").rglob("*.md"))  # the model card is neither JSON nor weights


def test_the_checksum_changes_with_every_byte_and_name(tmp_path: Path) -> None:
    first = read_entry(plans_entry(tmp_path / "e"))
    shutil.copytree(tmp_path / "e", tmp_path / "same")
    assert read_entry(tmp_path / "same").checksum == first.checksum
    shutil.copytree(tmp_path / "e", tmp_path / "spaced")
    file = tmp_path / "spaced/plans/chain.json"
    file.write_text(file.read_text() + " ")
    assert read_entry(tmp_path / "spaced").checksum != first.checksum
    (tmp_path / "same/plans/chain.json").rename(tmp_path / "same/plans/renamed.json")
    edit(tmp_path / "same", lambda d: d["plans"].update(chain="plans/renamed.json"))
    assert read_entry(tmp_path / "same").checksum != first.checksum


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda d: d.update(format="other"), "format is 'other'"),
        (lambda d: d.update(format_version=2), "format version 2"),
        (lambda d: d.update(format_version=True), "format version True"),
        (lambda d: d.update(run="import os"), "unknown entry 'run'"),
        (lambda d: d.pop("plans"), "exactly one of plans, policy, builtin, and has 0"),
        (lambda d: d.update(builtin="heuristic"), "exactly one of"),
        (lambda d: d.update(name="../x"), "absolute path or has"),
        (lambda d: d.update(name="x" * 61), "at most 60 characters"),
        (lambda d: d.update(author="a\x1b[2J"), "author must be a line"),
        (lambda d: d.update(decides=["everything"]), "decides must be a list of phases"),
        (lambda d: d.update(decides=["fusion", "fusion"]), "decides must be a list of phases"),
        (lambda d: d.update(backend="tpu"), "no backend 'tpu'"),
        (lambda d: d.update(plans={}), "plans must map programs to files"),
        (lambda d: d["plans"].update(chain="plans/none.json"), "must be a file of the entry"),
        (lambda d: d["plans"].update(chain="../../other.json"), "must be a file of the entry"),
        (lambda d: d["plans"].update(chain="entry.json"), "must be a file of the entry"),
        (lambda d: d["plans"].pop("loop"), "'plans/loop.json', which entry.json does not use"),
    ],
)  # fmt: skip
def test_a_wrong_description_is_refused(
    tmp_path: Path, change: Callable[[dict[str, Any]], object], message: str
) -> None:
    edit(plans_entry(tmp_path / "e"), change)
    assert message in refused(tmp_path / "e")


def test_files_that_are_no_data_are_refused(tmp_path: Path) -> None:
    folder = plans_entry(tmp_path / "e")
    for name, data in (("run.py", "import os"), ("kernel.c", "int x;"), ("x.so", "\x7fELF"), ("notes.md", "hello")):
        (folder / name).write_text(data)
        assert f"'{name}'" in refused(folder)
        (folder / name).unlink()
    for name, content in (
        ("x.json", b"print(1)"),
        ("y.json", b"[1]"),
        ("z.json", b'{"a": NaN}'),
        ("w.safetensors", b"x"),
    ):
        (folder / name).write_bytes(content)
        assert name in refused(folder)
        (folder / name).unlink()
    read_entry(folder)


def test_links_pipes_and_large_files_are_refused(tmp_path: Path) -> None:
    folder = plans_entry(tmp_path / "e")
    secret = tmp_path / "secret.json"
    secret.write_text("{}")
    (folder / "linked.json").symlink_to(secret)
    assert "is a link" in refused(folder)
    (folder / "linked.json").unlink()
    (folder / "inner").symlink_to(tmp_path)
    assert "is a link" in refused(folder)
    (folder / "inner").unlink()
    os.mkfifo(folder / "pipe.json")
    assert "no plain file" in refused(folder)
    (folder / "pipe.json").unlink()
    with (folder / "large.json").open("wb") as file:
        file.truncate(MOST_FILE_BYTES + 1)
    assert "too large" in refused(folder)
    (folder / "large.json").unlink()
    (folder / "1/2/3/4/5").mkdir(parents=True)
    assert "levels deep" in refused(folder)
    (tmp_path / "link").symlink_to(folder)
    with pytest.raises(EntryError, match="is a link"):
        read_snapshot(tmp_path / "link")
    with pytest.raises(EntryError, match="is missing"):
        read_snapshot(tmp_path / "nothing")


def test_too_many_files_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = plans_entry(tmp_path / "e")
    monkeypatch.setattr("experiments.leaderboard.snapshot.MOST_FILES", 2)
    assert "more than 2 files" in refused(folder)


def test_policies_of_other_versions_and_edited_ones_are_refused(tmp_path: Path) -> None:
    write_entry(tmp_path / "e", "shipped", "hlogym", "small", SHIPPED)
    original = (tmp_path / "e/policy/policy.json").read_text()
    edit(tmp_path / "e", lambda d: d.update(format_version=99), "policy/policy.json")
    message = refused(tmp_path / "e")
    assert "format version 99" in message
    assert str(tmp_path / "e/policy") in message
    (tmp_path / "e/policy/policy.json").write_text(original)
    edit(tmp_path / "e", lambda d: d.update(feature_version=99), "policy/expansions/policy.json")
    assert "was changed" in refused(tmp_path / "e")
    edit(tmp_path / "e", lambda d: d.update(policy=str(SHIPPED)))
    assert "must be a folder of the entry" in refused(tmp_path / "e")


def test_a_policy_must_decide_what_its_entry_says(tmp_path: Path) -> None:
    write_entry(tmp_path / "e", "shipped", "hlogym", "small", SHIPPED)
    edit(tmp_path / "e", lambda d: d.update(decides=["kernels"]))
    assert "decides is kernels, but the policy decides expansions" in refused(tmp_path / "e")


def test_builtin_policies_are_those_of_the_compiler(tmp_path: Path) -> None:
    write_entry(tmp_path / "e", "rules", "hlogym", "small", "heuristic")
    assert read_entry(tmp_path / "e").source == "builtin"
    for name in ("of.another:distribution", "/etc/policy", "../policy", 7):
        edit(tmp_path / "e", lambda d, name=name: d.update(builtin=name))  # type: ignore[misc]
        assert "builtin must be one of" in refused(tmp_path / "e")


def test_an_entry_replaces_nothing(tmp_path: Path) -> None:
    (tmp_path / "e").mkdir()
    (tmp_path / "e/mine.txt").write_text("kept")
    with pytest.raises(EntryError, match="name a new folder"):
        plans_entry(tmp_path / "e")
    assert (tmp_path / "e/mine.txt").read_text() == "kept"
    with pytest.raises(EntryError, match="at most 60"):
        plans_entry(tmp_path / "f", name="x" * 100)
    assert sorted(p.name for p in tmp_path.iterdir() if not p.name.startswith("machine")) == ["e"]


# ---- entries and suites


def test_a_suite_is_named_and_no_path(tmp_path: Path, suite: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    entry = read_entry(plans_entry(tmp_path / "e"))
    assert [p.name for p in suite_of(entry, suite).programs] == ["chain", "loop"]
    with pytest.raises(EntryError, match="--suite names 'other'"):
        suite_of(entry, write_suite(tmp_path / "other"))
    monkeypatch.chdir(tmp_path)  # where `small` is a folder
    with pytest.raises(EntryError, match="no suite 'small'"):
        suite_of(entry)


def test_a_plan_is_needed_for_every_program_and_for_no_other(tmp_path: Path, suite: Path) -> None:
    programs = load_suite(suite).programs
    entry = read_entry(plans_entry(tmp_path / "e", source={"chain": unfused(CHAIN)}))
    with pytest.raises(EntryError, match="no plan for the program 'loop'"):
        decided_plans(entry, programs)
    entry = read_entry(plans_entry(tmp_path / "f"))
    with pytest.raises(EntryError, match="a plan for 'loop', which is not in small"):
        decided_plans(entry, programs[:1])
    swapped = {"chain": unfused(LOOP), "loop": unfused(CHAIN)}
    entry = read_entry(plans_entry(tmp_path / "g", source=swapped))
    with pytest.raises(EntryError, match="chain: the plan was made for another module"):
        decided_plans(entry, programs)
    plan = plan_of(CHAIN)
    assert plan.steps
    entry = read_entry(plans_entry(tmp_path / "h", source={"chain": replace(plan, steps=plan.steps[::-1])}))
    with pytest.raises(EntryError, match="chain: "):
        decided_plans(entry, programs[:1])


# ---- results


def test_plans_are_measured_beside_the_default_plan(tmp_path: Path, suite: Path) -> None:
    default = plan_of(LOOP)
    folder = plans_entry(tmp_path / "e", source={"chain": unfused(CHAIN), "loop": default})
    result = verify_entry(read_entry(folder), load_suite(suite), QUICK)
    chain, loop = result.rows
    assert (chain.program, loop.program) == ("chain", "loop")
    assert loop.ratio == Interval(1.0, 1.0, 1.0)  # the same code as the default plan
    assert not loop.counts
    assert len(chain.processes) == 2
    assert chain.ratio.low <= chain.ratio.value <= chain.ratio.high
    assert chain.ratio != Interval(1.0, 1.0, 1.0)
    assert chain.noise.low <= chain.noise.value <= chain.noise.high
    assert result.provenance["machine"]
    assert result.measured["gate"].startswith("above 1%")
    write_result(result, tmp_path / "r.json")
    assert read_result(tmp_path / "r.json", read_entry(folder)).rows == result.rows
    data = json.loads((tmp_path / "r.json").read_text())
    assert data["geometric_mean"][0] == pytest.approx((chain.ratio.value * loop.ratio.value) ** 0.5)
    assert data["slower_by_over_3_percent"] == sum(r.ratio.value < 1 / 1.03 for r in result.rows) / 2


def test_an_entry_with_wrong_outputs_has_no_result(
    tmp_path: Path, suite: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def wrong(*_: object, **__: object) -> Measurement:
        return Measurement(None, "wrong", "output 0 differs")

    monkeypatch.setattr(Measurer, "measure", wrong)
    with pytest.raises(EntryError, match="chain: wrong: output 0 differs"):
        verify_entry(read_entry(plans_entry(tmp_path / "e")), load_suite(suite), QUICK)


def made_up(tmp_path: Path, *ratios: float, **facts: Any) -> Verified:
    entry = read_entry(plans_entry(tmp_path / "e")) if not (tmp_path / "e").exists() else read_entry(tmp_path / "e")
    rows = tuple(
        ProgramRow(f"p{n}", "0", 1e-3, (Interval(r, r * 0.99, r * 1.01),) * 2, True, Interval(1.0, 0.99, 1.01))
        for n, r in enumerate(ratios)
    )
    how = {"gate": "g", "processes": 2, "rounds": 5}
    provenance = {"commit": "abc", "machine": "m", "date": "d", "command": "c"}
    return Verified({**entry.facts(), **facts}, how, provenance, rows)


def test_the_summary_follows_from_the_programs(tmp_path: Path) -> None:
    result = made_up(tmp_path, 2.0, 0.5, 0.98, 0.96)
    assert result.summary.mean.value == pytest.approx((2.0 * 0.5 * 0.98 * 0.96) ** 0.25)
    assert result.slower == 0.5  # 0.98 is less than 3% slower


def test_a_noisy_machine_is_named(tmp_path: Path) -> None:
    quiet = made_up(tmp_path, 1.0, 1.0)
    assert quiet.noisy == 0
    assert "Noisy" not in leaderboard_page([quiet])
    loud = replace(quiet, rows=(quiet.rows[0], replace(quiet.rows[1], noise=Interval(1.0, 0.9, 1.01))))
    assert loud.noisy == 1
    assert "Noisy: on 1 of 2 programs" in leaderboard_page([loud])


@pytest.mark.parametrize(
    "change",
    [
        lambda d: d["programs"][0]["processes"][0].__setitem__(0, 9.0),
        lambda d: d["programs"].pop(),
        lambda d: d.update(geometric_mean=[9.0, 8.0, 10.0]),
        lambda d: d["provenance"].update(machine="a faster one"),
        lambda d: d["entry"].update(author="another"),
        lambda d: d.update(signature=""),
        lambda d: d.update(signature=7),
        lambda d: d.pop("signature"),
    ],
)
def test_edited_results_are_refused(tmp_path: Path, change: Callable[[dict[str, Any]], object]) -> None:
    result, file = made_up(tmp_path, 1.0, 1.1), tmp_path / "r.json"
    write_result(result, file)
    entry = read_entry(tmp_path / "e")
    assert read_result(file, entry).rows == result.rows
    data = json.loads(file.read_text())
    change(data)
    file.write_text(json.dumps(data))
    with pytest.raises(ResultError, match="edited afterwards"):
        read_result(file, entry)


def test_results_of_other_machines_and_of_changed_entries_are_refused(tmp_path: Path) -> None:
    result, file = made_up(tmp_path, 1.0, 1.1), tmp_path / "r.json"
    write_result(result, file)
    edit(tmp_path / "e", lambda d: d.update(about="faster now"))
    with pytest.raises(ResultError, match="was changed after it was verified"):
        read_result(file, read_entry(tmp_path / "e"))
    (tmp_path / "machine/leaderboard.key").unlink()  # another machine has another key
    with pytest.raises(ResultError, match="not verified on this machine"):
        read_result(file, read_entry(tmp_path / "e"))
    (tmp_path / "machine/leaderboard.key").write_text("short")
    with pytest.raises(ResultError, match="damaged"):
        read_result(file, read_entry(tmp_path / "e"))


def test_the_key_is_readable_for_its_owner_alone(tmp_path: Path) -> None:
    write_result(made_up(tmp_path, 1.0), tmp_path / "r.json")
    assert (tmp_path / "machine/leaderboard.key").stat().st_mode & 0o777 == 0o600


# ---- the page


class _Parts(HTMLParser):
    """The tags, attributes and text of a page."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.text = ""
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs

    def handle_data(self, data: str) -> None:
        self.text += data


def test_a_page_escapes_everything_and_loads_nothing(tmp_path: Path) -> None:
    hostile = "<script>alert(1)</script><img src=x onerror=alert(1)>"
    result = made_up(tmp_path, 1.0, 1e9, 1e-9, name="n" * 60, author=hostile, about=hostile, suite=hostile)
    result = replace(result, provenance={**result.provenance, "command": hostile, hostile: "x"})
    result = replace(result, rows=(*result.rows, replace(result.rows[0], program=hostile)))
    page = leaderboard_page([result])
    parts = _Parts(page)
    assert not {"script", "img", "link", "iframe", "object"} & set(parts.tags)
    assert not [name for name, _ in parts.attributes if name.startswith("on")]
    loaded = [v for n, v in parts.attributes if n in ("src", "href", "xlink:href") and v and not v.startswith("#")]
    assert loaded == []
    assert parts.text.count(hostile) >= 5


def test_the_fastest_entry_is_first_and_unlike_boards_are_apart(tmp_path: Path) -> None:
    slow, fast = made_up(tmp_path, 0.9, 1.0, name="slow"), made_up(tmp_path, 1.2, 1.3, name="fast")
    other = replace(made_up(tmp_path, 2.0, name="elsewhere"), provenance={"machine": "another", "commit": "abc"})
    page = leaderboard_page([slow, fast, other])
    assert page.index("<b>fast</b>") < page.index("<b>slow</b>")
    assert page.count("<h2 id='board-") == 2
    assert "1. <b>elsewhere</b>" in page


# ---- the commands


def test_from_plans_to_a_page(hlogym: Shell, tmp_path: Path, suite: Path) -> None:
    plans = tmp_path / "plans"
    plans.mkdir()
    unfused(CHAIN).save(plans / "chain.json")
    made = ("leaderboard", "entry", "--suite", suite, "--author", "A. Name", "-o")
    assert "no plan loop.json" in hlogym.fails(*made, "mine", "--name", "mine", "--plans", plans)
    unfused(LOOP).save(plans / "loop.json")
    assert hlogym(*made, "mine", "--name", "mine", "--plans", plans).status == 0
    assert hlogym(*made, "rules", "--name", "rules", "--policy", "heuristic").status == 0
    nowhere = ("leaderboard", "entry", "--suite", "nope", "--author", "A. Name", "-o", "none", "--name", "none")
    assert "unknown suite" in hlogym.fails(*nowhere, "--policy", "heuristic")
    assert "was not verified" in hlogym.fails("leaderboard", "page", "mine", "-o", "page.html")
    verified = hlogym("leaderboard", "verify", "mine", "rules", "--suite", suite, *QUICK_OPTIONS)
    assert verified.status == 0, verified.err
    assert verified.out.count("result ") == 2
    assert hlogym("leaderboard", "page", "mine", "rules", "-o", "page.html").status == 0
    page = (tmp_path / "page.html").read_text()
    assert "<b>mine</b>" in page
    assert "<b>rules</b>" in page
    edit(tmp_path / "mine", lambda d: d.update(about="now with more"))
    assert "changed afterwards" in hlogym.fails("leaderboard", "page", "mine", "-o", "page.html")


def test_interrupted_verification_keeps_whole_entries(
    hlogym: Shell, tmp_path: Path, suite: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plans_entry(tmp_path / "first")
    plans_entry(tmp_path / "second", name="second")
    done = made_up(tmp_path, 1.0)

    def verified(entry: object, *_: object) -> Verified:
        if getattr(entry, "name", "") == "second":
            raise KeyboardInterrupt
        return done

    monkeypatch.setattr("experiments.leaderboard.commands.verify_entry", verified)
    reply = hlogym("leaderboard", "verify", "first", "second", "--suite", suite)
    assert reply.status == 130
    assert "1 of 2 entries were verified; result results/leaderboard/plans-" in " ".join(reply.err.split())


def test_nothing_is_measured_if_one_entry_is_refused(
    hlogym: Shell, tmp_path: Path, suite: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def measured(*_: object, **__: object) -> Measurement:
        raise AssertionError("measured")

    monkeypatch.setattr(Measurer, "measure", measured)
    plans_entry(tmp_path / "good")
    (plans_entry(tmp_path / "bad") / "run.py").write_text("")
    assert "'run.py'" in hlogym.fails("leaderboard", "verify", "good", "bad", "--suite", suite)
