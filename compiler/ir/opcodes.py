"""The opcode table: each HLO opcode is declared here once, with the properties that the whole compiler uses.

A row has the text name, the arity, the shape rule (`ir/shape_rules.py`), traits, flops per element and attributes.
Evaluators (`interpreter/`) and emitters (`codegen/`) are registries keyed by opcode. The list of opcodes is that of
XLA's `xla/hlo/ir/hlo_opcode.h`.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import NamedTuple

from compiler.ir import shape_rules as r


class Trait(enum.Flag):
    """Properties shared by all instructions of an opcode."""

    NONE = 0
    ELEMENTWISE = enum.auto()  # output element i depends on the operand elements i only
    COMMUTATIVE = enum.auto()
    ASSOCIATIVE = enum.auto()
    EXPENSIVE = enum.auto()  # cheaper to store and load than to compute twice
    SIDE_EFFECT = enum.auto()  # must not be removed, duplicated or reordered
    MOVEMENT = enum.auto()  # moves or repeats elements, no arithmetic
    LEAF = enum.auto()  # no operands
    REDUCTION = enum.auto()
    CONTROL = enum.auto()  # calls computations as control flow
    TUPLE = enum.auto()  # groups or selects values without moving bytes
    COLLECTIVE = enum.auto()
    ASYNC = enum.auto()
    HOST = enum.auto()
    RANDOM = enum.auto()
    LIBRARY = enum.auto()  # a library call by default (dot, convolution, sort...)
    EXTENSION = enum.auto()  # not an op of XLA: its parser does not know it, and no result can be compared with XLA's


class Arity(NamedTuple):
    """Minimum and maximum number of operands; a maximum of None means any number."""

    least: int
    most: int | None


ANY = Arity(0, None)


@dataclass(frozen=True, slots=True, eq=False)
class OpRow:
    """A row of the opcode table."""

    text: str
    arity: Arity
    rule: r.ShapeRule
    traits: Trait = Trait.NONE
    flops: int = 0  # per output element; analysis/flops.py counts the ops for which it depends on shapes
    required: tuple[str, ...] = ()
    optional: tuple[str, ...] = ()


def _row(
    text: str,
    arity: int | tuple[int, int | None],
    rule: r.ShapeRule,
    traits: Trait = Trait.NONE,
    flops: int = 0,
    required: str = "",
    optional: str = "",
) -> OpRow:
    bounds = Arity(arity, arity) if isinstance(arity, int) else Arity(*arity)
    return OpRow(text, bounds, rule, traits, flops, tuple(required.split()), tuple(optional.split()))


_E = Trait.ELEMENTWISE
_X = _E | Trait.EXPENSIVE
_M = Trait.MOVEMENT
_COMM = _E | Trait.COMMUTATIVE
_ASSOC = _COMM | Trait.ASSOCIATIVE
_COLL = Trait.COLLECTIVE | Trait.SIDE_EFFECT
_ASYNC = Trait.ASYNC | Trait.SIDE_EFFECT
_HOST = Trait.HOST | Trait.SIDE_EFFECT
_GROUPS = "replica_groups channel_id constrain_layout use_global_device_ids"
_DOT = "lhs_contracting_dims rhs_contracting_dims lhs_batch_dims rhs_batch_dims operand_precision algorithm"


class Opcode(enum.Enum):
    """An HLO opcode; the value of each member is its row of the table."""

    # Unary, elementwise
    ABS = _row("abs", 1, r.absolute, _E, 1)
    ACOS = _row("acos", 1, r.unary_smooth, _X, 20, optional="result_accuracy")
    ACOSH = _row("acosh", 1, r.unary_smooth, _X, 20, optional="result_accuracy")
    ASIN = _row("asin", 1, r.unary_smooth, _X, 20, optional="result_accuracy")
    ASINH = _row("asinh", 1, r.unary_smooth, _X, 20, optional="result_accuracy")
    ATANH = _row("atanh", 1, r.unary_smooth, _X, 20, optional="result_accuracy")
    CBRT = _row("cbrt", 1, r.unary_float, _X, 15, optional="result_accuracy")
    CEIL = _row("ceil", 1, r.unary_float, _E, 1)
    COUNT_LEADING_ZEROS = _row("count-leading-zeros", 1, r.unary_integer, _E, 1)
    COSINE = _row("cosine", 1, r.unary_smooth, _X, 15, optional="result_accuracy")
    COSH = _row("cosh", 1, r.unary_smooth, _X, 20, optional="result_accuracy")
    ERF = _row("erf", 1, r.unary_float, _X, 20, optional="result_accuracy")
    EXPONENTIAL = _row("exponential", 1, r.unary_smooth, _X, 12, optional="result_accuracy")
    EXPONENTIAL_MINUS_ONE = _row("exponential-minus-one", 1, r.unary_smooth, _X, 14, optional="result_accuracy")
    FLOOR = _row("floor", 1, r.unary_float, _E, 1)
    IMAG = _row("imag", 1, r.real_part, _E, 0)
    IS_FINITE = _row("is-finite", 1, r.is_finite, _E, 1)
    LOG = _row("log", 1, r.unary_smooth, _X, 12, optional="result_accuracy")
    LOG_PLUS_ONE = _row("log-plus-one", 1, r.unary_smooth, _X, 14, optional="result_accuracy")
    LOGISTIC = _row("logistic", 1, r.unary_smooth, _X, 15, optional="result_accuracy")
    NEGATE = _row("negate", 1, r.unary_numeric, _E, 1)
    NOT = _row("not", 1, r.unary_bits, _E, 1)
    POPULATION_COUNT = _row("popcnt", 1, r.unary_integer, _E, 1)
    REAL = _row("real", 1, r.real_part, _E, 0)
    ROUND_NEAREST_AFZ = _row("round-nearest-afz", 1, r.unary_float, _E, 2)
    ROUND_NEAREST_EVEN = _row("round-nearest-even", 1, r.unary_float, _E, 1)
    RSQRT = _row("rsqrt", 1, r.unary_smooth, _X, 6, optional="result_accuracy")
    SIGN = _row("sign", 1, r.unary_signed, _E, 1)
    SINE = _row("sine", 1, r.unary_smooth, _X, 15, optional="result_accuracy")
    SINH = _row("sinh", 1, r.unary_smooth, _X, 20, optional="result_accuracy")
    SQRT = _row("sqrt", 1, r.unary_smooth, _X, 6, optional="result_accuracy")
    TAN = _row("tan", 1, r.unary_smooth, _X, 20, optional="result_accuracy")
    TANH = _row("tanh", 1, r.unary_smooth, _X, 20, optional="result_accuracy")
    # Type changes
    CONVERT = _row("convert", 1, r.convert, _E, 1)
    BITCAST_CONVERT = _row("bitcast-convert", 1, r.bitcast_convert, Trait.NONE, 0)
    REDUCE_PRECISION = _row("reduce-precision", 1, r.reduce_precision, _E, 4, "exponent_bits mantissa_bits")
    STOCHASTIC_CONVERT = _row("stochastic-convert", 2, r.stochastic_convert, _E, 4)
    # Binary, elementwise
    ADD = _row("add", 2, r.binary, _ASSOC, 1)
    SUBTRACT = _row("subtract", 2, r.binary_numeric, _E, 1)
    MULTIPLY = _row("multiply", 2, r.binary, _ASSOC, 1)
    DIVIDE = _row("divide", 2, r.binary_numeric, _X, 4, optional="result_accuracy")
    REMAINDER = _row("remainder", 2, r.binary_numeric, _X, 8)
    POWER = _row("power", 2, r.binary_numeric, _X, 25)
    MAXIMUM = _row("maximum", 2, r.binary, _ASSOC, 1)
    MINIMUM = _row("minimum", 2, r.binary, _ASSOC, 1)
    AND = _row("and", 2, r.binary_bits, _ASSOC, 1)
    OR = _row("or", 2, r.binary_bits, _ASSOC, 1)
    XOR = _row("xor", 2, r.binary_bits, _ASSOC, 1)
    ATAN2 = _row("atan2", 2, r.binary_smooth, _X, 25, optional="result_accuracy")
    COMPARE = _row("compare", 2, r.compare, _E, 1, "direction", "type")
    COMPLEX = _row("complex", 2, r.complex_, _E, 0)
    MULHI = _row("mulhi", 2, r.binary, _COMM, 2)
    SHIFT_LEFT = _row("shift-left", 2, r.binary_numeric, _E, 1)
    SHIFT_RIGHT_ARITHMETIC = _row("shift-right-arithmetic", 2, r.binary_numeric, _E, 1)
    SHIFT_RIGHT_LOGICAL = _row("shift-right-logical", 2, r.binary_numeric, _E, 1)
    # Ternary, elementwise
    CLAMP = _row("clamp", 3, r.clamp, _E, 2)
    SELECT = _row("select", 3, r.select, _E, 1)
    # Leaves
    CONSTANT = _row("constant", 0, r.declared, Trait.LEAF)
    IOTA = _row("iota", 0, r.iota, Trait.LEAF, 0, "iota_dimension")
    PARAMETER = _row("parameter", 0, r.declared, Trait.LEAF)
    # Data movement
    BITCAST = _row("bitcast", 1, r.bitcast, _M)
    BROADCAST = _row("broadcast", 1, r.broadcast, _M, optional="dimensions")
    CONCATENATE = _row("concatenate", (1, None), r.concatenate, _M, 0, "dimensions")
    COPY = _row("copy", 1, r.copy, _M | Trait.ELEMENTWISE)
    DYNAMIC_RESHAPE = _row("dynamic-reshape", (1, None), r.dynamic_reshape, _M)
    DYNAMIC_SLICE = _row("dynamic-slice", (1, None), r.dynamic_slice, _M, 0, "dynamic_slice_sizes")
    DYNAMIC_UPDATE_SLICE = _row("dynamic-update-slice", (2, None), r.dynamic_update_slice, _M)
    GATHER = _row(
        "gather", 2, r.gather, _M, 0,
        "offset_dims collapsed_slice_dims start_index_map index_vector_dim slice_sizes",
        "operand_batching_dims start_indices_batching_dims indices_are_sorted",
    )  # fmt: skip
    PAD = _row("pad", 2, r.pad, _M, 0, "padding")
    RESHAPE = _row("reshape", 1, r.reshape, _M, optional="inferred_dimension")
    REVERSE = _row("reverse", 1, r.reverse, _M, 0, "dimensions")
    SCATTER = _row(
        "scatter", (3, None), r.scatter, Trait.EXPENSIVE, 1,
        "update_window_dims inserted_window_dims scatter_dims_to_operand_dims index_vector_dim to_apply",
        "input_batching_dims scatter_indices_batching_dims indices_are_sorted unique_indices",
    )  # fmt: skip
    SLICE = _row("slice", 1, r.slice_, _M, 0, "slice")
    TRANSPOSE = _row("transpose", 1, r.transpose, _M, 0, "dimensions")
    # Dynamic sizes
    GET_DIMENSION_SIZE = _row("get-dimension-size", 1, r.get_dimension_size, required="dimensions")
    SET_DIMENSION_SIZE = _row("set-dimension-size", 2, r.set_dimension_size, required="dimensions")
    # Reductions and windows
    MAP = _row("map", (1, None), r.map_, _E, 1, "to_apply", "dimensions")
    REDUCE = _row("reduce", (2, None), r.reduce, Trait.REDUCTION | Trait.EXPENSIVE, 1, "dimensions to_apply")
    REDUCE_WINDOW = _row(
        "reduce-window", (2, None), r.reduce_window, Trait.REDUCTION | Trait.EXPENSIVE, 1, "to_apply", "window"
    )
    SCAN = _row(
        "scan", (1, None), r.scan, Trait.EXPENSIVE, 1, "dimensions to_apply num_carries", "is_reverse is_associative"
    )
    SELECT_AND_SCATTER = _row(
        "select-and-scatter", 3, r.select_and_scatter, Trait.EXPENSIVE, 1, "select scatter", "window"
    )
    # Dot and convolution
    DOT = _row("dot", (2, None), r.dot, Trait.EXPENSIVE | Trait.LIBRARY, 2, optional=_DOT + " sparsity")
    RAGGED_DOT = _row(
        "ragged-dot", 3, r.ragged_dot, Trait.EXPENSIVE | Trait.LIBRARY, 2,
        "lhs_ragged_dims", _DOT + " rhs_group_dims",
    )  # fmt: skip
    SCALED_DOT = _row("scaled-dot", 4, r.scaled_dot, Trait.EXPENSIVE | Trait.LIBRARY, 2, optional=_DOT)
    CONVOLUTION = _row(
        "convolution", 2, r.convolution, Trait.EXPENSIVE | Trait.LIBRARY, 2,
        "dim_labels",
        "window feature_group_count batch_group_count operand_precision algorithm convolution_kind sparsity_config",
    )  # fmt: skip
    # Batch norms
    BATCH_NORM_TRAINING = _row(
        "batch-norm-training", 3, r.batch_norm_training, Trait.EXPENSIVE, 8, "epsilon feature_index"
    )
    BATCH_NORM_INFERENCE = _row(
        "batch-norm-inference", 5, r.batch_norm_inference, Trait.EXPENSIVE, 5, "epsilon feature_index"
    )
    BATCH_NORM_GRAD = _row("batch-norm-grad", 5, r.batch_norm_grad, Trait.EXPENSIVE, 12, "epsilon feature_index")
    # Linear algebra and sorting
    CHOLESKY = _row("cholesky", 1, r.cholesky, Trait.EXPENSIVE | Trait.LIBRARY, 0, optional="lower")
    TRIANGULAR_SOLVE = _row(
        "triangular-solve", 2, r.triangular_solve, Trait.EXPENSIVE | Trait.LIBRARY, 0,
        "", "left_side lower unit_diagonal transpose_a",
    )  # fmt: skip
    FFT = _row("fft", 1, r.fft, Trait.EXPENSIVE | Trait.LIBRARY, 0, "fft_type fft_length")
    SORT = _row("sort", (1, None), r.sort, Trait.EXPENSIVE | Trait.LIBRARY, 0, "dimensions to_apply", "is_stable")
    TOPK = _row("topk", 1, r.topk, Trait.EXPENSIVE | Trait.LIBRARY, 0, "k", "largest is_stable")
    # Random numbers
    RNG = _row("rng", 2, r.rng, Trait.SIDE_EFFECT | Trait.RANDOM, 10, "distribution")
    RNG_BIT_GENERATOR = _row(
        "rng-bit-generator", 1, r.rng_bit_generator, Trait.EXPENSIVE | Trait.RANDOM, 30, "algorithm"
    )
    RNG_GET_AND_UPDATE_STATE = _row(
        "rng-get-and-update-state", 0, r.rng_state, Trait.SIDE_EFFECT | Trait.RANDOM, 0, "delta"
    )
    # Control flow
    CALL = _row("call", ANY, r.call, Trait.CONTROL, 0, "to_apply", "is_composite")
    CONDITIONAL = _row(
        "conditional", (2, None), r.conditional, Trait.CONTROL, 0,
        "", "branch_computations true_computation false_computation",
    )  # fmt: skip
    WHILE = _row("while", 1, r.while_, Trait.CONTROL, 0, "condition body")
    FUSION = _row("fusion", ANY, r.fusion, Trait.NONE, 0, "kind calls", "output_to_operand_aliasing")
    # Tuples and tokens
    TUPLE = _row("tuple", ANY, r.tuple_, Trait.TUPLE)
    GET_TUPLE_ELEMENT = _row("get-tuple-element", 1, r.get_tuple_element, Trait.TUPLE, 0, "index")
    AFTER_ALL = _row("after-all", ANY, r.after_all, Trait.TUPLE)
    ADD_DEPENDENCY = _row("add-dependency", 2, r.add_dependency, Trait.TUPLE)
    OPTIMIZATION_BARRIER = _row("opt-barrier", 1, r.same, Trait.TUPLE)
    DOMAIN = _row("domain", 1, r.same, Trait.TUPLE, 0, "", "domain")
    # Collectives
    ALL_GATHER = _row("all-gather", (1, None), r.all_gather, _COLL, 0, "dimensions", _GROUPS)
    ALL_REDUCE = _row("all-reduce", (1, None), r.all_reduce, _COLL, 1, "to_apply", _GROUPS + " mode")
    ALL_TO_ALL = _row("all-to-all", (1, None), r.all_to_all, _COLL, 0, "", _GROUPS + " dimensions")
    COLLECTIVE_BROADCAST = _row(
        "collective-broadcast", (1, None), r.collective_broadcast, _COLL, 0, "", _GROUPS + " has_dynamic_root"
    )
    COLLECTIVE_PERMUTE = _row(
        "collective-permute", (1, None), r.collective_permute, _COLL, 0, "source_target_pairs", "channel_id slice_sizes"
    )
    RAGGED_ALL_TO_ALL = _row("ragged-all-to-all", 6, r.ragged_all_to_all, _COLL, 0, "", _GROUPS + " dimensions")
    REDUCE_SCATTER = _row(
        "reduce-scatter", (1, None), r.reduce_scatter, _COLL, 1, "to_apply dimensions", _GROUPS + " mode"
    )
    PARTITION_ID = _row("partition-id", 0, r.device_number, Trait.COLLECTIVE)
    REPLICA_ID = _row("replica-id", 0, r.device_number, Trait.COLLECTIVE)
    # Asynchronous forms
    ALL_GATHER_START = _row("all-gather-start", (1, None), r.all_gather_start, _COLL | _ASYNC, 0, "dimensions", _GROUPS)
    ALL_GATHER_DONE = _row("all-gather-done", 1, r.second_of_pair, _COLL | _ASYNC)
    ALL_REDUCE_START = _row(
        "all-reduce-start", (1, None), r.all_reduce, _COLL | _ASYNC, 1, "to_apply", _GROUPS + " mode"
    )
    ALL_REDUCE_DONE = _row("all-reduce-done", 1, r.same, _COLL | _ASYNC)
    COLLECTIVE_PERMUTE_START = _row(
        "collective-permute-start", (1, None), r.collective_permute_start, _COLL | _ASYNC, 0,
        "source_target_pairs", "channel_id slice_sizes",
    )  # fmt: skip
    COLLECTIVE_PERMUTE_DONE = _row("collective-permute-done", 1, r.second_of_pair, _COLL | _ASYNC)
    COPY_START = _row("copy-start", 1, r.copy_start, _ASYNC, 0, "", "cross_program_prefetch_index")
    COPY_DONE = _row("copy-done", 1, r.copy_done, _ASYNC)
    ASYNC_START = _row(
        "async-start", ANY, r.async_start, _ASYNC, 0, "calls", "async_execution_thread output_to_operand_aliasing"
    )
    ASYNC_UPDATE = _row(
        "async-update",
        (1, None),
        r.async_update,
        _ASYNC,
        0,
        "",
        "calls async_execution_thread output_to_operand_aliasing",
    )
    ASYNC_DONE = _row("async-done", (1, None), r.async_done, _ASYNC, 0, "", "calls async_execution_thread")
    # Host transfers
    INFEED = _row("infeed", 1, r.infeed, _HOST, 0, "", "infeed_config")
    OUTFEED = _row("outfeed", 2, r.outfeed, _HOST, 0, "", "outfeed_config outfeed_shape")
    SEND = _row("send", 2, r.send, _HOST, 0, "", "channel_id is_host_transfer")
    SEND_DONE = _row("send-done", 1, r.send_done, _HOST, 0, "", "channel_id is_host_transfer")
    RECV = _row("recv", 1, r.recv, _HOST, 0, "", "channel_id is_host_transfer")
    RECV_DONE = _row("recv-done", 1, r.recv_done, _HOST, 0, "", "channel_id is_host_transfer")
    # Everything else
    CUSTOM_CALL = _row(
        "custom-call", ANY, r.declared, Trait.EXPENSIVE | Trait.LIBRARY, 0, "custom_call_target",
        "window dim_labels feature_group_count batch_group_count operand_layout_constraints to_apply "
        "called_computations custom_call_has_side_effect output_to_operand_aliasing padding_type literal schedule "
        "api_version operand_precision",
    )  # fmt: skip

    __hash__ = object.__hash__

    row: OpRow
    """Row of the opcode table."""

    text: str
    """Name in HLO text."""

    is_elementwise: bool
    """Whether output element i depends on the operand elements i only."""

    traits: int
    """The traits of the row, as bits."""

    def has(self, trait: Trait) -> bool:
        """Check whether the opcode has all of these traits."""
        bits = trait._value_
        return self.traits & bits == bits

    def __repr__(self) -> str:
        return f"Opcode.{self._name_}"


# Plain attributes, not properties: they are read very often.
for _op in Opcode:
    _op.row = _op.value
    _op.traits = _op.value.traits.value
    _op.text = _op.row.text
    _op.is_elementwise = _op.has(Trait.ELEMENTWISE)

BY_TEXT: dict[str, Opcode] = {op.text: op for op in Opcode}
SIDE_EFFECT_OPCODES = frozenset(op for op in Opcode if op.has(Trait.SIDE_EFFECT))
"""Opcodes with effects besides their results; a custom call says so itself, see `computation.has_side_effect`."""
UNIVERSAL_ATTRIBUTES = frozenset(
    {
        "metadata",
        "sharding",
        "frontend_attributes",
        "statistics",
        "origin",
        "control-predecessors",
        "backend_config",
        "parameter_replication",
    }
)
"""Attributes that any instruction may have."""
