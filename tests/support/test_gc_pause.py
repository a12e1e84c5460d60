"""The garbage collector is off inside the block, and as it was before afterwards."""

import gc
import threading
from collections.abc import Iterator

import pytest

from compiler import compile
from compiler.fusion.actions import FusionAction
from compiler.fusion.state import FusionState
from compiler.ir import HloModule
from compiler.passes.infrastructure.pipeline import PassPipeline
from compiler.support.gc_pause import gc_less_often, gc_paused, gc_rarely
from compiler.text import parse


@pytest.fixture(autouse=True)
def _enabled() -> Iterator[None]:
    gc.enable()
    yield
    gc.enable()


def test_it_is_off_within_and_on_again_after() -> None:
    with gc_paused():
        assert not gc.isenabled()
        with gc_paused():
            assert not gc.isenabled()
        assert not gc.isenabled()
    assert gc.isenabled()


def test_it_is_on_again_after_an_error() -> None:
    with pytest.raises(ValueError, match="no"), gc_paused():
        raise ValueError("no")
    assert gc.isenabled()


def test_who_has_switched_it_off_finds_it_off() -> None:
    gc.disable()
    with gc_paused():
        pass
    assert not gc.isenabled()


class Look:
    name = "look"

    def __init__(self) -> None:
        self.seen: list[bool] = []

    def run(self, module: HloModule) -> bool:
        self.seen.append(gc.isenabled())
        return False


def test_pipelines_pause_it() -> None:
    look = Look()
    module = parse("HloModule m\nENTRY e { x = f32[4] parameter(0) ROOT y = f32[4] sine(x) }")
    PassPipeline("p", (look, PassPipeline("q", (look,)))).run(module)
    assert look.seen == [False, False]
    assert gc.isenabled()


def test_it_runs_rarely_within_and_as_before_after() -> None:
    before = gc.get_threshold()
    with pytest.raises(ValueError, match="no"), gc_rarely():
        assert gc.isenabled()
        assert gc.get_threshold()[0] > before[0]
        raise ValueError("no")
    assert gc.get_threshold() == before


def test_blocks_of_several_threads_leave_it_as_it_was() -> None:
    before = gc.get_threshold()
    inside, ended = threading.Event(), threading.Event()

    def block() -> None:
        with gc_rarely():
            inside.set()
            ended.wait(60)

    other = threading.Thread(target=block)
    with gc_rarely():
        other.start()
        assert inside.wait(60)
    assert gc.get_threshold()[0] > before[0]  # the other block runs still
    ended.set()
    other.join()
    assert gc.get_threshold() == before


def test_compilation_slows_it_down() -> None:
    seen: list[int] = []

    def choose(state: FusionState) -> FusionAction | None:
        seen.append(gc.get_threshold()[0])
        return None

    before = gc.get_threshold()
    text = "HloModule m\nENTRY e { x = f32[4] parameter(0) ROOT y = f32[4] sine(x) }"
    compile(text, "interpreter", fusion_policy=choose)
    assert seen
    assert min(seen) > before[0]
    assert gc.get_threshold() == before


@pytest.mark.parametrize("before", [(700, 10, 10), (0, 10, 10), (50_000, 5, 7)])
def test_the_collector_never_runs_more_often_than_before(before: tuple[int, int, int]) -> None:
    former = gc.get_threshold()
    try:
        gc.set_threshold(*before)
        gc_less_often()
        first, *rest = gc.get_threshold()
        assert tuple(rest) == before[1:]
        assert first > before[0] if before[0] == 700 else first == before[0]
    finally:
        gc.set_threshold(*former)
