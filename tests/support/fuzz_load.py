"""Another stream's products, for tests/fuzz.py to run beside: as a script this is the one of a process.

Kernels of two streams of one process share the multiprocessors, those of two processes take turns on them. So on a GPU
PyTorch, where it is installed, gives the products, on a stream of its own; JAX has one stream for a device's products,
so that without PyTorch a second process gives them. On the CPU it is NumPy, in a thread.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

#: Extents of the products: some that fill a device, and some that leave room.
SIZES = (4096, 512, 2048, 1024)


class Load:
    """Products from entry to exit. ``str()`` says what gave them, and how many there were."""

    def __init__(self, platform: str) -> None:
        self._platform, self._name, self._count = platform, "", 0
        self._stop, self._ready = threading.Event(), threading.Event()
        self._thread: threading.Thread | None = None
        self._process: subprocess.Popen[str] | None = None

    def __enter__(self) -> Load:
        step = _torch() if self._platform == "cuda" else None
        if self._platform == "cuda" and step is None:
            self._name = "a second process"
            settings = {"XLA_PYTHON_CLIENT_PREALLOCATE": "false", "XLA_PYTHON_CLIENT_MEM_FRACTION": "0.2"}
            command = [sys.executable, "-P", str(Path(__file__).resolve())]
            self._process = subprocess.Popen(
                command, env={**os.environ, **settings}, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True
            )
            self._thread = threading.Thread(target=self._follow, daemon=True)
        else:
            self._name = "numpy in a thread" if step is None else "torch on a stream of its own"
            self._thread = threading.Thread(target=self._repeat, args=(step or _numpy(),), daemon=True)
        self._thread.start()
        if not self._ready.wait(120):
            self.__exit__()
            raise RuntimeError(f"load: {self._name} did not begin within two minutes")
        return self

    def __exit__(self, *_: Any) -> None:
        self._stop.set()
        if self._process:
            self._process.kill()
            self._process.wait()
        if self._thread:
            self._thread.join(60)
        if self._process and self._process.stdout:
            self._process.stdout.close()

    def __str__(self) -> str:
        return f"{self._name}, {self._count} products"

    @property
    def ended(self) -> bool:
        """Whether there are no more products, as their thread or process has failed."""
        return self._thread is not None and not self._thread.is_alive()

    def _count_up(self, products: int) -> None:
        self._count += products
        self._ready.set()

    def _repeat(self, step: Callable[[], int]) -> None:
        while not self._stop.is_set():
            self._count_up(step())

    def _follow(self) -> None:
        assert self._process
        assert self._process.stdout
        for line in self._process.stdout:
            self._count_up(int(line))


def _numpy() -> Callable[[], int]:
    x = np.random.default_rng(0).standard_normal((512, 512)).astype(np.float32) / 512**0.5

    def step() -> int:
        x @ x
        return 1

    return step


def _torch() -> Callable[[], int] | None:
    """A few products in a stream of their own, waited for; None without PyTorch for CUDA."""
    try:
        import torch

        if not torch.cuda.is_available():
            return None
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            arrays = [torch.randn(n, n, device="cuda", dtype=torch.bfloat16) for n in SIZES]
        stream.synchronize()
    except Exception as error:  # an installation that does not fit this one's CUDA, too
        print(f"load: no torch here ({error})", file=sys.stderr)
        return None

    def step() -> int:
        with torch.cuda.stream(stream):
            for x in arrays * 4:
                torch.mm(x, x)
        stream.synchronize()
        return 4 * len(arrays)

    return step


def main() -> None:
    """Products on JAX's default device, until the parent is gone; prints how many, now and then."""
    import jax
    import jax.numpy as jnp

    shrink = 16 if jax.default_backend() == "cpu" else 1
    arrays = [jnp.ones((n // shrink, n // shrink), jnp.bfloat16) for n in SIZES]
    products = jax.jit(lambda arrays: [x @ x for x in arrays * 4])
    parent = os.getppid()
    while os.getppid() == parent:
        jax.block_until_ready(products(arrays))
        print(4 * len(arrays), flush=True)


if __name__ == "__main__":
    main()
