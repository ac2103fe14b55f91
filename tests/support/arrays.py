"""Arrays on a device, made without a program: ``jnp.asarray`` compiles one for every shape and type."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np


def array(x: Any, dtype: Any = None) -> jax.Array:
    """As ``jnp.asarray`` of what NumPy holds: on the default device, and of another type if it says so."""
    return jax.device_put(np.asarray(x, None if dtype is None else np.dtype(dtype)))
