"""The split of each family of the suite "corpus".

Families of one subject are in one split. The test families are frozen: `manifest.json` holds a hash over their
programs, and a test compares the two. A new family goes to train or validation.
"""

from __future__ import annotations

from env.suites.suite import Split

__all__ = ["LEFT_OUT", "TEST_FAMILIES", "VALIDATION_FAMILIES", "split_of_family"]

TEST_FAMILIES: frozenset[str] = frozenset(
    {
        "layer_norm", "rms_norm", "batch_norm", "torch_rows",
        "attention", "transformer_blocks", "torch_attention", "drawn_transformers",
        "cartpole", "control_tasks",
        "option_prices", "market_paths",
        "dynamic_programs", "searches",
        "policy_gradients",
        "clustering",
        "image_filters", "colours",
        "fluids",
        "sorting", "top_elements", "drawn_orderings",
        "drawn_mixtures",
    }
)  # fmt: skip
VALIDATION_FAMILIES: frozenset[str] = frozenset(
    {
        "recurrent_cells", "torch_recurrent", "state_spaces", "drawn_scans",
        "signal_filters", "fourier_methods", "drawn_signals",
        "segments", "graph_networks",
        "population_models",
        "divergences",
        "bit_operations", "number_theory",
        "fractals",
        "tree_models",
        "drawn_movement",
    }
)  # fmt: skip
LEFT_OUT: frozenset[str] = frozenset(
    {"drawn_networks-0031", "integer_reductions-cut-14", "integer_reductions-cut-19", "cross_entropy-cut-16"}
)
"""Programs that cannot be checked, because their outputs are zero or NaN whatever is drawn."""


def split_of_family(family: str) -> Split:
    """Return the split of a family."""
    if family in TEST_FAMILIES:
        return "test"
    return "validation" if family in VALIDATION_FAMILIES else "train"
