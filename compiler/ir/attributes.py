"""Typed values of instruction attributes, and the kind of value that each attribute name takes."""

from __future__ import annotations

import enum
from dataclasses import dataclass


class AttrKind(enum.Enum):
    """How an attribute is written in HLO text, and the Python type of its value."""

    INTS = "ints"  # dimensions={0,1} -> tuple[int, ...]
    INT = "int"  # index=0 -> int
    FLOAT = "float"  # epsilon=0.001 -> float
    BOOL = "bool"  # is_stable=true -> bool
    NAME = "name"  # direction=LT, kind=kLoop -> str
    STRING = "string"  # custom_call_target="x" -> str
    CONFIG = "config"  # backend_config="..." or raw JSON -> Raw
    SHAPE = "shape"  # outfeed_shape=f32[2] -> Shape
    LITERAL = "literal"  # literal=s32[2] {1, 2} -> Literal
    ALIASES = "aliases"  # output_to_operand_aliasing={{}: (0, {})} -> ir.header.Aliases
    GROUPS = "groups"  # replica_groups={{0,1}}, [1,2]<=[2] or mesh[...]{...} -> Raw
    LAYOUTS = "layouts"  # operand_layout_constraints={f32[2]{0}} -> Raw, with explicit layouts
    PRECISION = "precision"  # operand_precision={high,default} -> Raw, in lower case
    RAW = "raw"  # text with balanced brackets, kept verbatim -> Raw
    COMPUTATION = "computation"  # to_apply=%add -> HloComputation
    COMPUTATIONS = "computations"  # branch_computations={%a, %b} -> tuple[HloComputation, ...]
    SLICE = "slice"  # slice={[0:4:1]} -> tuple[SliceDim, ...]
    WINDOW = "window"  # window={size=3x3 pad=1_1x1_1} -> Window
    DIM_LABELS = "dim_labels"  # bf01_oi01->bf01 -> ConvDimLabels
    PADDING = "padding"  # padding=0_0_0x1_1_0 -> tuple[PadDim, ...]
    INSTRUCTIONS = "instructions"  # control-predecessors={%a} -> tuple[HloInstruction, ...]


@dataclass(frozen=True, slots=True)
class Raw:
    """Attribute text kept verbatim, including brackets or quotes."""

    text: str

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True, slots=True)
class SliceDim:
    """One dimension of a slice: the elements start, start + stride, ... below limit."""

    start: int
    limit: int
    stride: int = 1

    @property
    def size(self) -> int:
        """Return the number of elements."""
        return max(0, -(-(self.limit - self.start) // self.stride))


@dataclass(frozen=True, slots=True)
class PadDim:
    """One dimension of a padding config; negative low or high padding crops."""

    low: int
    high: int
    interior: int = 0


@dataclass(frozen=True, slots=True)
class WindowDim:
    """One spatial dimension of a window, in XLA's terms."""

    size: int
    stride: int = 1
    pad_low: int = 0
    pad_high: int = 0
    lhs_dilate: int = 1
    rhs_dilate: int = 1
    reversal: bool = False

    def padded_size(self, input_size: int) -> int:
        """Return the size of the input after base dilation and padding."""
        dilated = 0 if input_size == 0 else (input_size - 1) * self.lhs_dilate + 1
        return dilated + self.pad_low + self.pad_high

    def output_size(self, input_size: int) -> int:
        """Return the number of window positions along an input of this size."""
        padded = self.padded_size(input_size)
        span = 0 if self.size == 0 else (self.size - 1) * self.rhs_dilate + 1
        return 0 if padded <= 0 or span > padded else (padded - span) // self.stride + 1


@dataclass(frozen=True, slots=True)
class Window:
    """A window over the spatial dimensions, with one entry per dimension."""

    dims: tuple[WindowDim, ...] = ()


@dataclass(frozen=True, slots=True)
class ConvDimLabels:
    """`bf01_oi01->bf01`: the positions of batch, feature and spatial dimensions in input, kernel and output."""

    lhs: str
    rhs: str
    out: str

    def __str__(self) -> str:
        return f"{self.lhs}_{self.rhs}->{self.out}"


ATTRIBUTE_KINDS: dict[str, AttrKind] = {
    name: kind
    for kind, names in {
        AttrKind.INTS: """dimensions lhs_contracting_dims rhs_contracting_dims lhs_batch_dims rhs_batch_dims
            offset_dims collapsed_slice_dims start_index_map operand_batching_dims start_indices_batching_dims
            slice_sizes dynamic_slice_sizes update_window_dims inserted_window_dims scatter_dims_to_operand_dims
            input_batching_dims scatter_indices_batching_dims fft_length lhs_ragged_dims rhs_group_dims
            outer_dimension_partitions barrier_ids""",
        AttrKind.INT: """index index_vector_dim iota_dimension feature_group_count batch_group_count feature_index
            dimension exponent_bits mantissa_bits channel_id k delta split_dimension concat_dimension split_count
            size_in_bytes num_carries inferred_dimension cross_program_prefetch_index""",
        AttrKind.FLOAT: "epsilon",
        AttrKind.BOOL: """is_stable indices_are_sorted unique_indices largest constrain_layout use_global_device_ids
            is_host_transfer custom_call_has_side_effect left_side lower unit_diagonal is_cross_program_prefetch
            is_reverse is_associative is_pipelined is_composite has_dynamic_root""",
        AttrKind.NAME: """direction type kind fft_type distribution algorithm transpose_a schedule
            custom_call_schedule api_version comparison_direction padding_type order async_execution_thread_name
            convolution_kind mode""",
        AttrKind.STRING: "custom_call_target infeed_config outfeed_config async_execution_thread opaque "
        "channel_handle async_collective_name",
        AttrKind.CONFIG: "backend_config",
        AttrKind.COMPUTATION: """to_apply calls body condition true_computation false_computation select scatter
            async_wrapped_computation""",
        AttrKind.COMPUTATIONS: "branch_computations called_computations",
        AttrKind.SLICE: "slice",
        AttrKind.WINDOW: "window",
        AttrKind.DIM_LABELS: "dim_labels",
        AttrKind.PADDING: "padding",
        AttrKind.INSTRUCTIONS: "control-predecessors",
        AttrKind.GROUPS: "replica_groups source_target_pairs",
        AttrKind.PRECISION: "operand_precision",
        AttrKind.LAYOUTS: "operand_layout_constraints",
        AttrKind.ALIASES: "output_to_operand_aliasing",
        AttrKind.SHAPE: "outfeed_shape",
        AttrKind.LITERAL: "literal",
        AttrKind.RAW: """metadata sharding frontend_attributes statistics origin parameter_replication
            result_accuracy domain sparsity sparsity_config ragged_dims output_operand_aliasing collective_device_group
            stacktrace""",
    }.items()
    for name in names.split()
}
"""Maps attribute names to kinds. An attribute that is not listed is parsed as Raw."""

NAME_VALUES: dict[str, tuple[str, ...]] = {
    name: tuple(values.split())
    for name, values in {
        "direction": "EQ NE GE GT LE LT",
        "type": "FLOAT TOTALORDER SIGNED UNSIGNED",
        "kind": "kLoop kInput kOutput kCustom",
        "fft_type": "FFT IFFT RFFT IRFFT",
        "distribution": "rng_uniform rng_normal",
        "algorithm": """unset dot_any_f8_any_f8_f32 dot_any_f8_any_f8_f32_fast_accum dot_f16_f16_f16 dot_f16_f16_f32
            dot_bf16_bf16_bf16 dot_bf16_bf16_f32 dot_bf16_bf16_f32_x3 dot_bf16_bf16_f32_x6 dot_bf16_bf16_f32_x9
            dot_tf32_tf32_f32 dot_tf32_tf32_f32_x3 dot_f32_f32_f32 dot_f64_f64_f64""",
        "transpose_a": "NO_TRANSPOSE TRANSPOSE ADJOINT",
        "schedule": "SCHEDULE_NONE SCHEDULE_LATEST SCHEDULE_EARLIEST",
        "padding_type": "PADDING_INVALID PADDING_VALID PADDING_SAME",
        "api_version": """API_VERSION_ORIGINAL API_VERSION_STATUS_RETURNING API_VERSION_STATUS_RETURNING_UNIFIED
            API_VERSION_TYPED_FFI""",
    }.items()
}
"""Allowed values of the NAME attributes that have a closed list of them."""
_RNG_ALGORITHMS = ("rng_default", "rng_three_fry", "rng_philox")
ANY_CASE = frozenset({"distribution", "algorithm", "schedule", "api_version"})
"""NAME attributes whose values are case-insensitive."""
PRECISIONS = ("default", "high", "highest")


def allowed_values(name: str, opcode: str) -> tuple[str, ...] | None:
    """Return the allowed values of a NAME attribute, or None if any is; those of `algorithm` depend on the opcode."""
    return _RNG_ALGORITHMS if (name, opcode) == ("algorithm", "rng-bit-generator") else NAME_VALUES.get(name)
