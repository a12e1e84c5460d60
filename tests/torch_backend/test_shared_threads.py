"""Programs on the threads of PyTorch's OpenMP: same results, also from several threads and in forked children."""

import os
import threading
import warnings
from collections.abc import Iterator

import pytest
import torch
from torch import nn

from compiler.backends.cpu.native_runtime import OPENMP_FUNCTIONS, RUNTIME
from compiler.torch_backend.threads import openmp_functions
from tests.torch_backend.compiled import compiled

if len(openmp_functions()) != len(OPENMP_FUNCTIONS):
    pytest.skip("this PyTorch does not use GNU OpenMP", allow_module_level=True)


@pytest.fixture(autouse=True)
def two_threads() -> Iterator[None]:
    ours, theirs = RUNTIME.num_threads, torch.get_num_threads()
    RUNTIME.set_num_threads(2)
    torch.set_num_threads(2)
    RUNTIME.share_openmp(openmp_functions())
    yield
    RUNTIME.set_num_threads(ours)
    torch.set_num_threads(theirs)


def _case() -> tuple[nn.Module, torch.Tensor]:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(128, 512), nn.GELU(), nn.LayerNorm(512), nn.Linear(512, 64)), torch.randn(512, 128)


def test_results_do_not_depend_on_whose_threads_run_a_program() -> None:
    module, x = _case()
    call = compiled(module)
    with torch.no_grad():
        shared = call(x)
        RUNTIME.share_openmp(())
        assert torch.equal(shared, call(x))
        torch.testing.assert_close(shared, module(x), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("count", [1, 3])
def test_other_numbers_of_threads(count: int) -> None:
    module, x = _case()
    call = compiled(module)
    with torch.no_grad():
        wanted = module(x)
        for setter in (torch.set_num_threads, RUNTIME.set_num_threads):
            setter(count)
            torch.testing.assert_close(call(x), wanted, rtol=1e-4, atol=1e-4)


def test_several_threads_call_at_once_between_ops_of_pytorch() -> None:
    module, x = _case()
    call = compiled(module)
    with torch.no_grad():
        wanted = call(x)
    right: list[bool] = []

    def work() -> None:
        with torch.no_grad():
            right.extend(torch.equal(call(x + 0), wanted) for _ in range(20))

    running = [threading.Thread(target=work) for _ in range(4)]
    for t in running:
        t.start()
    for t in running:
        t.join()
    assert right == [True] * 80


def test_a_forked_child_runs_programs_though_openmp_cannot() -> None:
    module, x = _case()
    call = compiled(module)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        wanted = call(x)
        for _ in range(3):
            child = os.fork()
            if child == 0:
                torch.set_num_threads(1)  # PyTorch's own ops would wait forever for threads of the parent
                os._exit(0 if torch.allclose(call(x), wanted, rtol=1e-4, atol=1e-4) else 1)
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert torch.equal(call(x), wanted)
