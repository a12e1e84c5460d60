"""Options of the whole test suite."""

import signal
from pathlib import Path

import pytest
from hypothesis import settings

# Use the same examples in each run, so that failures are reproducible; --hypothesis-profile=default samples new ones.
settings.register_profile("steady", derandomize=True)
settings.load_profile("steady")

TESTS = Path(__file__).parent
THOROUGH = (
    "agents/test_searches.py",
    "agents/test_vectors.py",
    "backends/test_object_cache.py",
    "backends/test_pool_stress.py",
    "backends/test_xla_backend.py",
    "codegen/test_cuda_attention_gradients.py",
    "docs/test_examples.py",
    "docs/test_quickstart.py",
    "docs/test_recipes.py",
    "docs/test_site.py",
    "env/test_cheating.py",
    "env/test_isolated.py",
    "env/test_measurement.py",
    "env/test_ray_measurer.py",
    "env/test_service.py",
    "env/test_states.py",
    "env/test_worker_process.py",
    "experiments/test_cli.py",
    "experiments/test_emulated_gpu.py",
    "experiments/test_endings.py",
    "experiments/test_failed_measurements.py",
    "experiments/test_hyperparameter_search.py",
    "experiments/test_interrupted_commands.py",
    "experiments/test_leaderboard.py",
    "experiments/test_module_command.py",
    "experiments/test_natives.py",
    "experiments/test_pass_orders.py",
    "experiments/test_plots.py",
    "experiments/test_registry.py",
    "experiments/test_safe_training.py",
    "experiments/test_tools.py",
    "experiments/test_tracking.py",
    "experiments/test_training.py",
    "experiments/test_training_failures.py",
    "experiments/test_vector_training.py",
    "experiments/test_without_gpu.py",
    "experiments/test_workers.py",
    "frontends/test_torch.py",
    "frontends/test_torch_export.py",
    "frontends/test_torch_gradients.py",
    "frontends/test_torch_numbers.py",
    "frontends/test_torch_quantization.py",
    "frontends/test_torch_table.py",
    "frontends/test_torch_training.py",
    "fusion/test_incremental.py",
    "fusion/test_searches.py",
    "fuzz/test_fuzz.py",
    "fuzz/test_jax_programs.py",
    "idioms/test_jax.py",
    "idioms/test_torch.py",
    "interpreter/test_lapack.py",
    "interpreter/test_quickstart.py",
    "interpreter/test_real_programs.py",
    "ir/test_callgraph.py",
    "torch_backend/test_ops.py",
    "torch_backend/test_parts.py",
    "torch_backend/test_resampling.py",
)
"""Files whose tests take more than about ten seconds together, which `make test` leaves out."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--update-golden", action="store_true", help="rewrite the expected parts of golden files; review the diff"
    )


@pytest.fixture
def update_golden(request: pytest.FixtureRequest) -> bool:
    """Whether golden files are rewritten instead of compared."""
    return bool(request.config.getoption("--update-golden"))


def pytest_configure() -> None:
    """Take SIGINT and SIGHUP as usual: shells and nohup ignore them in the background, and processes inherit that."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
        signal.signal(signal.SIGHUP, signal.SIG_DFL)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests in files that take long."""
    thorough = {TESTS / name for name in THOROUGH}
    for item in items:
        if item.path in thorough:
            item.add_marker(pytest.mark.thorough)
