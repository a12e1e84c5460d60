"""Calls of compiled programs with PyTorch tensors, without copies: addresses go in, new tensors come out."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from compiler.frontends.torch_graph import Fixed, FromInput, FromResult, LoweredGraph, Output, TensorLayout
from compiler.runtime.executable import Executable

__all__ = ["CompiledGraph"]


class CompiledGraph:
    """A function of the inputs of a lowered graph that returns its outputs, as PyTorch's AOT autograd calls it.

    Inputs that are dense and lie in memory as they did during tracing are passed by their address; others are copied.
    Results are written to new tensors, and updated inputs in place.
    """

    def __init__(self, lowered: LoweredGraph, executable: Executable) -> None:
        self._boxed_call = True  # PyTorch passes one list of inputs, which a call empties
        self.lowered, self.executable = lowered, executable
        self._torch: Any = importlib.import_module("torch")
        self._inputs = [(n, x) for n, x in enumerate(lowered.inputs) if x is not None]
        self._all_tensors = len(self._inputs) == len(lowered.inputs)
        # What is checked in each call: None for the row-major order, else the strides.
        self._strides = [None if x.is_row_major and not x.has_lazy_bits else x for _, x in self._inputs]
        self._all_row_major = all(x is None for x in self._strides)
        self._new = _allocator(self._torch)
        self._is_contiguous = self._torch.Tensor.is_contiguous
        self._results = [(x.size, x.stride, x.dtype) for x in lowered.results]
        numbers = {position: k for k, (position, _) in enumerate(self._inputs)}
        self._updated = [numbers[position] for position in lowered.mutated]
        self._simple = all(isinstance(o, FromResult) for o in lowered.outputs) and [
            o.number for o in lowered.outputs if isinstance(o, FromResult)
        ] == list(range(len(lowered.results)))
        self._plain = not (self._updated or lowered.draws or lowered.drawn)
        self._call_at: Any = getattr(executable, "call_at", None)
        self._run = self._by_address if self._call_at is not None else self._by_arrays

    def __call__(self, inputs: list[Any]) -> Sequence[Any]:
        """Run the program."""
        given = inputs if self._all_tensors else [inputs[n] for n, _ in self._inputs]
        if self._all_row_major and all(map(self._is_contiguous, given)):
            tensors = list(given)
        else:
            tensors = [self._as_traced(t, x) for t, x in zip(given, self._strides, strict=True)]
        results = self._run(tensors)
        if self._updated:
            self._write_back(given, tensors)
        outputs = results if self._simple else [self._output(o, inputs, results) for o in self.lowered.outputs]
        inputs.clear()
        return outputs

    def _as_traced(self, tensor: Any, layout: TensorLayout | None) -> Any:
        """Return a tensor itself if it lies in memory as it did during tracing, else a copy that does."""
        if layout is None:
            return tensor if tensor.is_contiguous() else tensor.contiguous()
        if tensor.stride() == layout.stride and not layout.has_lazy_bits and layout.is_dense:
            return tensor
        return self._copied(tensor, layout)

    def _copied(self, tensor: Any, layout: TensorLayout) -> Any:
        """Return a dense copy of a tensor in the order of a layout, or in row-major order if that has gaps."""
        if layout.is_dense:
            return self._new(layout.size, layout.stride, layout.dtype).copy_(tensor)
        copy = tensor.clone(memory_format=self._torch.contiguous_format)
        return copy.resolve_conj().resolve_neg() if layout.has_lazy_bits else copy

    def _write_back(self, given: Sequence[Any], tensors: Sequence[Any]) -> None:
        """Copy new values to inputs that were passed as copies; tell autograd about those updated by the program."""
        in_place = []
        for k in self._updated:
            if tensors[k] is given[k]:
                in_place.append(given[k])
            else:
                given[k].copy_(tensors[k])
        if in_place:
            self._torch.autograd.graph.increment_version(in_place)

    def _output(self, output: Output, inputs: Sequence[Any], results: Sequence[Any]) -> Any:
        if isinstance(output, FromResult):
            return results[output.number]
        if isinstance(output, FromInput):
            return inputs[output.position]
        if isinstance(output, Fixed):
            return output.value
        if isinstance(output.base, FromResult):
            base = results[output.base.number]
        else:
            base = inputs[output.base.position]
            layout = self.lowered.inputs[output.base.position]
            if layout is not None and base.stride() != layout.stride:
                base = self._torch.empty_strided(layout.size, layout.stride, dtype=layout.dtype).copy_(base)
        return base.as_strided(output.size, output.stride, base.storage_offset() + output.offset)

    def _state(self) -> Any:
        """Return a state of the program's random numbers, drawn from PyTorch's default generator."""
        return self._torch.empty(2, dtype=self._torch.int64).random_()

    # ---- how the program runs

    def _by_address(self, tensors: list[Any]) -> list[Any]:
        new = self._new
        results = [new(*spec) for spec in self._results]
        addresses = [t.data_ptr() for t in tensors]
        if self._plain:
            self._call_at(addresses, [r.data_ptr() for r in results])
            return results
        for k in self._updated:
            if addresses.count(addresses[k]) > 1:  # the program may update an array only if no other input shares it
                tensors[k] = tensors[k].clone()
                addresses[k] = tensors[k].data_ptr()
        written = [r.data_ptr() for r in results]
        written += [addresses[k] for k in self._updated]
        drawn = [draw() for draw in self.lowered.drawn]
        addresses += [t.data_ptr() for t in drawn]
        if self.lowered.draws:
            state = self._state()
            addresses.append(state.data_ptr())
            after = self._torch.empty(2, dtype=self._torch.int64)
            written.append(after.data_ptr())
        self._call_at(addresses, written)
        return results

    def _by_arrays(self, tensors: list[Any]) -> list[Any]:
        """Run a program whose backend takes arrays."""
        layouts = [x for _, x in self._inputs]
        arrays = [self._to_array(t, x) for t, x in zip(tensors, layouts, strict=True)]
        for k in self._updated:  # a view does not own its memory, so it is not overwritten
            arrays[k] = arrays[k][...]
        arrays += [draw().numpy() for draw in self.lowered.drawn]
        if self.lowered.draws:
            arrays.append(self._state().numpy().view(np.uint64))
        found = self.executable(*arrays)
        results = []
        for array, layout in zip(found, self.lowered.results, strict=False):
            results.append(self._from_array(array, layout))
        for k, array in zip(self._updated, found[len(results) :], strict=False):
            tensors[k].copy_(self._from_array(array, layouts[k]))
        return results

    def _to_array(self, tensor: Any, layout: TensorLayout) -> Any:
        tensor = tensor.detach().permute(layout.order)
        if tensor.device.type != "cpu":
            return tensor
        dtype = layout.in_memory.dtype
        if dtype.isbuiltin == 1:
            return tensor.numpy()
        return tensor.view(self._bits(dtype.itemsize)).numpy().view(dtype)

    def _from_array(self, array: Any, layout: TensorLayout) -> Any:
        if not isinstance(array, np.ndarray):
            tensor = self._torch.from_dlpack(array)
        elif array.dtype.isbuiltin == 1:
            tensor = self._torch.from_numpy(array)
        else:
            whole = array.view(f"i{array.dtype.itemsize}")
            tensor = self._torch.from_numpy(whole).view(layout.dtype)
        inverse = sorted(range(len(layout.order)), key=layout.order.__getitem__)
        return tensor.permute(inverse)

    def _bits(self, size: int) -> Any:
        return {1: self._torch.int8, 2: self._torch.int16}[size]


def _allocator(torch: Any) -> Callable[[Any, Any, Any], Any]:
    """Return a function that allocates a tensor of a size, stride and dtype on the CPU."""
    guards = getattr(torch._C._dynamo, "guards", None)
    fast: Callable[[Any, Any, Any], Any] | None = getattr(guards, "_empty_strided_cpu", None)
    return fast or (lambda size, stride, dtype: torch.empty_strided(size, stride, dtype=dtype))
