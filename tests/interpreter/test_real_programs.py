"""Compares the interpreter with XLA:CPU on programs lowered from JAX."""

from __future__ import annotations

import pytest

from compiler.text import parse
from env.reference import Reference
from tests.jax_programs import PROGRAMS, program_text
from tests.oracle import run_xla

_FAST = frozenset(
    [
        "mlp_gradient_step",
        "conv_net_gradient",
        "batch_norm_gradient",
        "causal_attention_gradient",
        "grouped_query_attention_bf16",
        "lstm_scan_gradient",
        "linear_recurrence_by_associative_scan",
        "greedy_decoding_with_cache",
        "beam_search_step",
        "ragged_experts",
        "embedding_gradient",
        "per_example_gradients",
        "average_pooling_gradient",
        "dilated_and_transposed_convolution",
        "random_normal",
        "random_bits_8",
        "random_split",
        "random_permutation",
        "random_bits_by_rbg",
        "random_poisson",
        "metropolis_chain",
        "sort_with_nan_and_zeros",
        "sort_by_two_keys_with_payload",
        "top_k_and_approximate_top_k",
        "cumulative_operations",
        "scatter_of_every_kind",
        "scatter_out_of_bounds",
        "gather_of_every_mode",
        "graph_network_layer",
        "segment_softmax_and_maximum",
        "switch_and_cond",
        "nested_loops",
        "dynamic_slices_clamped",
        "edit_distance",
        "fft_of_every_kind",
        "cholesky_of_indefinite_matrix",
        "symmetric_eigenvalues_gradient",
        "qr_and_least_squares",
        "lu_solve_determinant_inverse",
        "singular_values_rank_and_pseudo_inverse",
        "special_lgamma",
        "special_erf_inv",
        "special_digamma",
        "binary_functions_of_edges",
        "bit_tricks",
        "hash_and_pack_bits",
        "int8_product",
        "int4_weights_product",
        "quantise_and_dequantise",
        "complex_arithmetic",
        "variadic_reduction",
        "empty_arrays",
    ]
)
_ALL = [name if name in _FAST else pytest.param(name, marks=pytest.mark.slow) for name in PROGRAMS]


@pytest.mark.parametrize("name", _ALL)
def test_the_interpreter_agrees_with_xla(name: str) -> None:
    text, args = program_text(name)
    assert Reference.of(parse(text), args).difference(run_xla(text, args)) is None


def test_there_are_enough_of_them() -> None:
    assert len(PROGRAMS) >= 60
    assert PROGRAMS.keys() >= _FAST
