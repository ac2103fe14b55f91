"""Hand-written CUDA matrix products for JAX, called through XLA's typed FFI."""

from importlib.metadata import version as _version

from jaxgemm.api import dot_general, gemm, matmul
from jaxgemm.explain import explain
from jaxgemm.kernels import Kernel, UnsupportedError, kernels

__version__ = _version("jaxgemm")
__all__ = ["Kernel", "UnsupportedError", "dot_general", "explain", "gemm", "kernels", "matmul"]
