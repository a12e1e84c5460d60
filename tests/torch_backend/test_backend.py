"""The hlogym backend of torch.compile: its entry point, options, fallback and cache."""

import importlib.metadata
import tomllib
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch

from compiler import api, program_cache, torch_backend
from compiler.torch_backend import backend, calling
from tests.torch_backend.compiled import assert_close, compiled

ROOT = Path(__file__).parents[2]


def test_the_entry_point_names_the_backend() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    value = project["entry-points"]["torch_dynamo_backends"]["hlogym"]
    point = importlib.metadata.EntryPoint("hlogym", value, "torch_dynamo_backends")
    assert point.load() is torch_backend.hlogym


def factored(x: Any) -> Any:
    return torch.linalg.ldl_factor(x)[0]


def test_a_small_graph_with_an_unsupported_op_runs_by_pytorch_with_a_warning() -> None:
    x = torch.randn(3, 3)
    with pytest.warns(UserWarning, match=r"PyTorch runs this graph op by op.*aten\.linalg_ldl_factor"):
        found = compiled(factored, fallback=True)(x)
    assert_close(found, factored(x))


def test_a_graph_with_an_unsupported_op_is_not_decomposed() -> None:
    def f(x: Any) -> Any:
        return torch.linalg.ldl_factor(torch.nn.functional.silu(x))[0]

    x = torch.randn(3, 3)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        run = compiled(f, fallback=True)
        run(x)
    with torch.autograd.profiler.profile() as profile:
        found = run(x)
    assert "aten::silu" in [event.name for event in profile.function_events]
    assert_close(found, f(x))


def test_without_fallback_an_unsupported_op_is_an_error() -> None:
    with pytest.raises(torch._dynamo.exc.BackendCompilerFailed, match=r"UnsupportedError.*aten\.linalg_ldl_factor"):
        compiled(factored)(torch.randn(3, 3))


def test_lstms_that_pytorch_would_leave_to_onednn_are_compiled() -> None:
    network, x = torch.nn.LSTM(3, 4, batch_first=True), torch.randn(2, 5, 3)
    with torch._dynamo.config.patch(allow_rnn=True):
        run = compiled(lambda v: network(v)[0])
        found = run(x)
        found.sum().backward()
        gradient, network.weight_hh_l0.grad = network.weight_hh_l0.grad, None
        assert_close(run(x).detach(), found.detach())
        with torch.no_grad():
            assert_close(run(x), found.detach())
    wanted = network(x)[0]
    wanted.sum().backward()
    assert_close(found, wanted)
    assert_close(gradient, network.weight_hh_l0.grad)
    assert torch._C._get_mkldnn_enabled()


def test_graph_breaks_and_results_of_unknown_size() -> None:
    def f(x: Any) -> Any:
        x = x * 2
        torch._dynamo.graph_break()
        if x.sum() > 0:
            return x[x > 1] + 1
        return x - 1

    call = compiled(f)
    for x in (torch.ones(3), -torch.ones(3)):
        assert_close(call(x), f(x))


@pytest.mark.parametrize(
    ("options", "message"),
    [({"polcy": "none"}, "no option 'polcy'"), ({"cache": "yes"}, "option 'cache' of the hlogym backend is a bool")],
)
def test_wrong_options_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(torch._dynamo.exc.BackendCompilerFailed, match=message):
        compiled(lambda x: x + 1, **options)(torch.ones(2))


def test_the_policy_decides_fusion(monkeypatch: pytest.MonkeyPatch) -> None:
    kernels: list[int] = []
    original = calling.CompiledGraph

    def seen(lowered: Any, executable: Any) -> Any:
        kernels.append(len(executable.kernels))
        return original(lowered, executable)

    monkeypatch.setattr(backend, "CompiledGraph", seen)
    for policy in ("none", "priority"):
        compiled(lambda x: (x.exp() * 2).sum(0), policy=policy)(torch.ones(4, 5))
    assert kernels[0] > kernels[1]


def test_programs_are_found_in_memory_and_on_disk(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HLOGYM_CACHE", str(tmp_path))
    program_cache.forget_programs()
    builds: list[int] = []
    original = api.compile

    def counted(*args: Any, **kwargs: Any) -> Any:
        builds.append(1)
        return original(*args, **kwargs)

    monkeypatch.setattr(program_cache, "compile_program", counted)

    def run() -> None:
        assert_close(compiled(lambda x: x.sin() + 1)(torch.ones(5)), torch.ones(5).sin() + 1)

    run()
    run()  # in memory
    program_cache.forget_programs()
    run()  # on disk
    assert len(builds) == 1
    (folder,) = (tmp_path / "programs").iterdir()
    for file in [p for p in folder.rglob("*") if p.is_file()]:
        file.write_text("damaged")
    program_cache.forget_programs()
    run()
    assert len(builds) == 2
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        compiled(lambda x: x.cos() + 1, cache=False)(torch.ones(5))
    assert len(list((tmp_path / "programs").iterdir())) == 1
    program_cache.forget_programs()
