"""Hand-written CUDA matrix products for JAX, called through XLA's typed FFI."""

from importlib.metadata import version as _version

from jaxgemm import _runtime, checkpoint_policies  # noqa: F401  (first: it refuses packages that are too old)
from jaxgemm.api import dot_general, gemm, matmul
from jaxgemm.explain import explain
from jaxgemm.kernels import Kernel, UnsupportedError, kernels
from jaxgemm.override import override
from jaxgemm.precision import error_bound
from jaxgemm.products.gated import gated_gemm
from jaxgemm.products.lists import grouped_gemm
from jaxgemm.products.quantization import quantize
from jaxgemm.ragged.api import ragged_dot, ragged_dot_general, ragged_gated
from jaxgemm.sharding.overlap import all_gather_matmul, matmul_reduce_scatter

__version__ = _version("jaxgemm")
__all__ = [
    "Kernel",
    "UnsupportedError",
    "all_gather_matmul",
    "checkpoint_policies",
    "dot_general",
    "error_bound",
    "explain",
    "gated_gemm",
    "gemm",
    "grouped_gemm",
    "kernels",
    "matmul",
    "matmul_reduce_scatter",
    "override",
    "quantize",
    "ragged_dot",
    "ragged_dot_general",
    "ragged_gated",
]
