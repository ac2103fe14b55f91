"""torch's products of JAX's arrays, of groups and of 8 bits, as programs that take turns with JAX's own."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from collections.abc import Sequence
from functools import cache
from typing import Any

import jax
import numpy as np

from jaxgemm.measure.timing import Program

#: Whether a process that has JAX and torch may record what torch runs.
_PROBE = """
import jax
jax.numpy.ones(8).block_until_ready()
from jaxgemm.measure.timing import device_recorder
recorder, how = device_recorder("gpu")
assert recorder is not None, how
import torch
x = torch.ones(8, device="cuda")
recorder.start()
x + x
torch.cuda.synchronize()
assert recorder.stop(), "CUPTI recorded nothing of torch"
recorder.detach()
"""


def installed() -> bool:
    """Whether there is a torch."""
    return importlib.util.find_spec("torch") is not None


@cache
def _wrong() -> str:
    """Why torch cannot be timed beside JAX, or "".

    A process has one CUPTI, and times nothing any more if torch's attempt loses it. So another process tries.
    """
    environment = {**os.environ, "XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
    done = subprocess.run([sys.executable, "-P", "-c", _PROBE], env=environment, capture_output=True, text=True)
    return "" if done.returncode == 0 else done.stderr.strip()[-500:] or f"exit status {done.returncode}"


def _check() -> None:
    if wrong := _wrong():
        raise RuntimeError(f"torch beside JAX: {wrong}")


class Result:
    """A tensor with the methods by which JAX's arrays are waited for and sampled."""

    def __init__(self, tensor: Any) -> None:
        self._tensor = tensor

    @property
    def shape(self) -> tuple[int, ...]:
        """The extents."""
        return tuple(self._tensor.shape)

    def block_until_ready(self) -> Result:
        """Wait for everything that torch runs."""
        import torch

        torch.cuda.synchronize()
        return self

    def __getitem__(self, index: tuple[np.ndarray, ...]) -> np.ndarray:
        import torch

        places = tuple(torch.as_tensor(i, device=self._tensor.device) for i in index)
        found: np.ndarray = self._tensor[places].float().cpu().numpy()
        return found


def grouped(form: str, inputs: Sequence[Sequence[jax.Array]]) -> Program:
    """``torch._grouped_mm`` of these sets of operands: two arrays and the groups' sizes each.

    Args:
        form: "forward", "d lhs" or "d rhs", as ``grouped_products.Layer`` has it.
        inputs: all sets that the program will be called with.

    Raises:
        RuntimeError: what torch runs cannot be recorded here.
        Exception: whatever torch raises.
    """
    _check()
    import torch

    def prepared(a: jax.Array, b: jax.Array, sizes: jax.Array) -> tuple[Any, Any, Any]:
        ends = torch.tensor(np.cumsum(np.asarray(sizes)), device="cuda", dtype=torch.int32)
        x, y = torch.from_dlpack(a), torch.from_dlpack(b)
        if form == "d rhs":
            return x.t(), y, ends
        return x, y.transpose(-2, -1) if form == "d lhs" else y, ends

    # Views of the same memory, made before anything is timed.
    tensors = {id(operands[0]): prepared(*operands[:3]) for operands in inputs}
    torch.cuda.synchronize()

    def program(*operands: jax.Array) -> Result:
        x, y, ends = tensors[id(operands[0])]
        return Result(torch._grouped_mm(x, y, offs=ends))

    return program


def narrow(inputs: Sequence[Sequence[jax.Array]]) -> Program:
    """``torch._int_mm`` or ``torch._scaled_mm`` of these sets of two row-major matrices of 8 bits.

    Both functions want the second matrix along k. They get a copy of it that lies so, which no time counts. Scales are
    1, and products of floats have results in bfloat16.

    Args:
        inputs: all sets that the program will be called with.

    Raises:
        RuntimeError: what torch runs cannot be recorded here.
        Exception: whatever torch raises.
    """
    _check()
    import torch

    kind = getattr(torch, inputs[0][0].dtype.name)
    one = torch.ones((), device="cuda")

    def bytes_of(x: jax.Array) -> Any:
        return torch.from_dlpack(jax.block_until_ready(jax.lax.bitcast_convert_type(x, np.uint8)))

    # Views and copies, made before anything is timed.
    tensors = {id(a): (bytes_of(a).view(kind), bytes_of(b).t().contiguous().view(kind).t()) for a, b, *_ in inputs}
    torch.cuda.synchronize()

    def program(*operands: jax.Array) -> Result:
        x, y = tensors[id(operands[0])]
        if kind is torch.int8:
            return Result(torch._int_mm(x, y))
        scaled = torch._scaled_mm(x, y, scale_a=one, scale_b=one, out_dtype=torch.bfloat16, use_fast_accum=True)
        return Result(scaled)

    return program
