"""Two processes, each with devices of its own, run one program together."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

PROGRAM = r"""
import sys

import jax

jax.config.update("jax_num_cpu_devices", 2)
jax.distributed.initialize(f"localhost:{sys.argv[1]}", num_processes=2, process_id=int(sys.argv[2]))

import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import jaxgemm

assert len(jax.devices()) == 4
assert len(jax.local_devices()) == 2
mesh = jax.make_mesh((2, 2), ("x", "y"), axis_types=(AxisType.Auto,) * 2)
rng = np.random.default_rng(0)
x, up, down = (rng.standard_normal(s).astype(np.float32) for s in ((16, 12), (12, 8), (8, 12)))


def put(value, spec):
    return jax.make_array_from_callback(value.shape, NamedSharding(mesh, spec), lambda index: value[index])


def loss(product):
    return lambda x, up, down: jnp.sum(jnp.sin(product(jnp.tanh(product(x, up)), down)))


def check(got, expected):
    for g, e in zip(got, expected, strict=True):
        for shard in g.addressable_shards:
            np.testing.assert_allclose(shard.data, np.asarray(e)[shard.index], rtol=1e-4, atol=1e-4)


expected = jax.grad(loss(jnp.matmul), (0, 1, 2))(x, up, down)
# "y" lies within a process and "x" across both; then the other way round.
for a, b in (("x", "y"), ("y", "x")):
    sharded = put(x, P(a)), put(up, P(None, b)), put(down, P(b))
    for kernel in ("auto", "host"):
        step = jax.jit(jax.grad(loss(lambda p, q: jaxgemm.gemm(p, q, kernel=kernel)), (0, 1, 2)))
        check(step(*sharded), expected)

    def block(x, up, down):
        hidden = jnp.tanh(jaxgemm.all_gather_matmul(x, up, axis_name=b))
        return jaxgemm.matmul_reduce_scatter(hidden, down, axis_name=b)

    def overlapped(x, up, down):
        rows = P((a, b))
        body = jax.shard_map(block, mesh=mesh, in_specs=(rows, P(None, b), P(b)), out_specs=rows)
        return jnp.sum(jnp.sin(body(x, up, down)))

    check(jax.jit(jax.grad(overlapped, (0, 1, 2)))(put(x, P((a, b))), *sharded[1:]), expected)
print("agreed")
"""


def test_two_processes(tmp_path: Path):
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = str(free.getsockname()[1])
    script = tmp_path / "program.py"
    script.write_text(PROGRAM)
    environment = {**os.environ, "JAX_PLATFORMS": "cpu"}
    processes = [
        subprocess.Popen(
            [sys.executable, str(script), port, str(i)],
            env=environment,
            cwd=tmp_path,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for i in range(2)
    ]
    try:
        outputs = [p.communicate(timeout=240)[0] for p in processes]
    finally:
        for p in processes:
            p.kill()
    for process, output in zip(processes, outputs, strict=True):
        assert process.returncode == 0, output
        assert "agreed" in output
