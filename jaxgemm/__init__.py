"""Hand-written CUDA matrix products for JAX, called through XLA's typed FFI."""

from importlib.metadata import version as _version

from jaxgemm import batching as _batching  # noqa: F401  (JAX has the rules in it once it is imported)
from jaxgemm import checkpoint_policies
from jaxgemm import taylor as _taylor  # noqa: F401  (as for batching)
from jaxgemm.api import dot_general, gemm, matmul
from jaxgemm.explain import explain
from jaxgemm.gated import gated_gemm
from jaxgemm.grouped.api import ragged_dot, ragged_dot_general
from jaxgemm.grouped.gated import ragged_gated
from jaxgemm.kernels import Kernel, UnsupportedError, kernels
from jaxgemm.many import grouped_gemm
from jaxgemm.overlap import all_gather_matmul, matmul_reduce_scatter
from jaxgemm.override import override

__version__ = _version("jaxgemm")
__all__ = [
    "Kernel",
    "UnsupportedError",
    "all_gather_matmul",
    "checkpoint_policies",
    "dot_general",
    "explain",
    "gated_gemm",
    "gemm",
    "grouped_gemm",
    "kernels",
    "matmul",
    "matmul_reduce_scatter",
    "override",
    "ragged_dot",
    "ragged_dot_general",
    "ragged_gated",
]
