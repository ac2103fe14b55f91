"""The pair of products of a gated layer in one launch: when that is what runs, and what the kernel computes."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import cases
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P
from meshes import mesh, put
from oracle import dtype_of, poison
from pairs import check_result, operands

import jaxgemm
from jaxgemm import precision as prec
from jaxgemm.choice.resolve import Choice, candidates, check
from jaxgemm.choice.select import select_gated
from jaxgemm.kernels import H200, device_for, find_kernel
from jaxgemm.problem import Matrix
from jaxgemm.products import gated
from jaxgemm.products.kind import Decision

ROW = find_kernel("sm90")
built = pytest.mark.skipif(not ROW.built, reason="this build has no such kernel")
# Planes and 8 bits are of single products.
TYPES = [types[0::2] for types in ROW.types if jnp.dtype(types[0]).itemsize == 2]


def values(**options):
    """A configuration with these options, and the model's choice of the others."""
    return tuple(options.get(name, 0) for name in ROW.options)


def params(activation, out):
    out = dtype_of(out)
    return {"activation": activation, "preferred_element_type": out, "precision": prec.canonical(None)}


def problem_of(m, n, k, dtype="bfloat16", out=None, activation="silu", platform="cuda"):
    shapes = [jax.ShapeDtypeStruct(s, dtype_of(dtype)) for s in ((m, k), (k, n), (k, n))]
    given = params(activation, out or dtype)
    if platform == "cuda":
        return gated.decide(platform, shapes, {**given, "kernel": "sm90", "batch_invariant": False}).problem
    return gated.problem_of(*shapes[:2], given)


def configured(problem, config):
    reason, workspace = check(ROW, config, problem, device_for("cuda"))
    assert not reason
    return Choice(ROW, config, workspace, "")


def run(choice, args, activation="silu", out=None):
    """The kernel's result, of a program whose memory held something else."""
    arrays = [jnp.asarray(v) for v in args]
    out = out or arrays[0].dtype.name
    decision = Decision(choice, gated.problem_of(*arrays[:2], params(activation, out)))
    program = jax.jit(partial(gated.launch, decision)).lower(*arrays).compile()
    poison([(args[0].shape[0], args[1].shape[1])], out)
    return np.asarray(program(*arrays))


# --- What the kernel computes ---------------------------------------------------------------------------------

#: Rows by which side they ride on, around the tiles' edges; columns and k: aligned, ragged, and unaligned.
ROWS = (1, 2, 7, 16, 17, 31, 33, 64, 65, 100, 128, 129, 200, 256, 257, 300)
SIDES = ((264, 136), (520, 64), (255, 200), (72, 131), (129, 71))


@pytest.mark.gpu
@pytest.mark.parametrize(("dtype", "out"), TYPES)
def test_shapes_and_types(dtype, out, rng):
    given = [operands(rng, m, *SIDES[i % len(SIDES)], dtype) for i, m in enumerate(ROWS)]
    given += [operands(rng, 5, n, k, dtype) for n, k in SIDES] + [operands(rng, 140, n, k, dtype) for n, k in SIDES]
    given += [operands(rng, *s, dtype) for s in ((1, 1, 1), (3, 5, 7), (130, 1, 9), (1, 300, 1))]
    program = jax.jit(lambda given: [jaxgemm.gated_gemm(*x, out_dtype=out, kernel="sm90") for x in given])
    arrays = [[jnp.asarray(v) for v in args] for args in given]
    compiled = program.lower(arrays).compile()
    poison([(args[0].shape[0], args[1].shape[1]) for args in given], out)
    for got, args in zip(compiled(arrays), given, strict=True):
        assert got.dtype == dtype_of(out)
        check_result(np.asarray(got), args)


@pytest.mark.gpu
@pytest.mark.parametrize("shape", [(300, 520, 328), (20, 1000, 200), (129, 201, 77)])
def test_configurations(shape, rng):
    """All that the cost model ever chooses from, on whole, ragged and unaligned tiles, with blocks of no tile."""
    args = operands(rng, *shape, "bfloat16")
    problem = problem_of(*shape)
    found = candidates(ROW, (), problem, device_for("cuda"))
    assert len({candidate.config[:3] + candidate.config[6:7] for candidate in found}) == 7
    for config in [candidate.config for candidate in found] + [
        values(cluster_m=2, cluster_n=2, swap=swap, walk_height=1) for swap in (1, 2)
    ]:
        check_result(run(configured(problem, config), args), args)


@pytest.mark.gpu
@pytest.mark.parametrize("m", [16, 700])
def test_more_units_than_blocks(m, rng):
    """Rings and buffers go round, and groups of warps take turns."""
    args = operands(rng, m, 20000, 200, "bfloat16")
    problem = problem_of(m, 20000, 200)
    for candidate in candidates(ROW, (), problem, device_for("cuda")):
        check_result(run(configured(problem, candidate.config), args), args)


@pytest.mark.gpu
@pytest.mark.parametrize("activation", [None, *cases.ACTIVATIONS])
def test_activations(activation, rng):
    for shape in ((8, 136, 96), (150, 136, 96), (9, 135, 95)):
        for out in ("bfloat16", "float32"):
            args = operands(rng, *shape, "bfloat16")
            got = jaxgemm.gated_gemm(*args, activation=activation, out_dtype=out, kernel="sm90")
            check_result(np.asarray(got), args, activation)


@pytest.mark.gpu
def test_long_sums(rng):
    for shape in ((16, 128, 20000), (200, 256, 20000)):
        args = operands(rng, *shape, "bfloat16")
        check_result(np.asarray(jaxgemm.gated_gemm(*args, out_dtype="float32", kernel="sm90")), args)


@pytest.mark.gpu
@pytest.mark.parametrize("shape", [(16, 4096, 1024), (1000, 2048, 512), (77, 1001, 333)])
def test_the_same_bits_every_time(shape, rng):
    args = operands(rng, *shape, "bfloat16")
    program = jax.jit(partial(jaxgemm.gated_gemm, kernel="sm90"))
    first = np.asarray(program(*args))
    for _ in range(5):
        assert np.asarray(program(*args)).tobytes() == first.tobytes()


@pytest.mark.gpu
@pytest.mark.parametrize("m", [9, 200])
def test_specials_propagate(m, rng):
    x, gate, up = operands(rng, m, 150, 130, "bfloat16")
    x[2, 3], gate[1, 4], up[5, 6] = np.nan, np.nan, np.inf
    got = np.asarray(jaxgemm.gated_gemm(x, gate, up, kernel="sm90"), np.float64)
    wrong = np.zeros(got.shape, bool)
    wrong[2], wrong[:, 4], wrong[:, 6] = True, True, True
    np.testing.assert_array_equal(np.isfinite(got), ~wrong)


@pytest.mark.gpu
def test_no_elements_and_no_sum():
    for m, n, k in ((0, 8, 8), (8, 0, 8), (8, 8, 0), (200, 40, 0)):
        got = jaxgemm.gated_gemm(
            jnp.ones((m, k), jnp.bfloat16), *2 * [jnp.ones((k, n), jnp.bfloat16)], activation="sigmoid", kernel="sm90"
        )
        np.testing.assert_array_equal(got, np.zeros((m, n)))


@pytest.mark.gpu
def test_gradients_beside_the_kernel(rng):
    """The value may be one launch; its derivatives are those of the products."""
    args = [jnp.asarray(v) for v in operands(rng, 40, 64, 48, "bfloat16")]

    def total(f):
        return jax.jit(jax.value_and_grad(lambda *x: jnp.sum(f(*x).astype(jnp.float32)), (0, 1, 2)))

    got = total(partial(jaxgemm.gated_gemm, kernel="sm90"))(*args)
    wide = [v.astype(jnp.float32) for v in args]
    expected = total(lambda x, g, u: jax.nn.silu(jnp.matmul(x, g)) * jnp.matmul(x, u))(*wide)
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(np.asarray(a, np.float64), b, atol=0.05 * float(jnp.abs(b).max()))


# --- When it is what runs -------------------------------------------------------------------------------------


def lowered(*shapes, spec=None, **keywords):
    f = jax.jit(lambda *x: jaxgemm.gated_gemm(*x, **keywords))
    args = [jax.ShapeDtypeStruct(s, jnp.bfloat16) for s in shapes]
    if spec is not None:
        args = [put(jnp.zeros(v.shape, v.dtype), mesh(), s) for v, s in zip(args, spec, strict=True)]
    return f.trace(*args).lower(lowering_platforms=("cuda",)).as_text()


@built
def test_auto_is_one_launch_on_one_hopper():
    text = lowered((16, 256), (256, 512), (256, 512))
    assert text.count("@jaxgemm_gated_gemm") == 1
    assert "dot_general" not in text


@built
def test_auto_on_several_devices():
    """Two products where XLA divides them, each decided for by the device that has a part; else one launch."""
    text = lowered((16, 256), (256, 512), (256, 512), spec=(P("x"), P(), P()))
    assert "@jaxgemm_gated_gemm" not in text
    assert text.count("@CustomSPMDPartitioning") == 2
    f = jax.shard_map(
        jaxgemm.gated_gemm, mesh=mesh(), in_specs=(P("x"), P(None, "y"), P(None, "y")), out_specs=P("x", "y")
    )
    shapes = [jax.ShapeDtypeStruct(s, jnp.bfloat16) for s in ((16, 256), (256, 512), (256, 512))]
    text = jax.jit(f).trace(*shapes).lower(lowering_platforms=("cuda",)).as_text()
    assert text.count("@jaxgemm_gated_gemm") == 1


@built
def test_by_name_it_is_one_launch_inside_of_shard_map():
    f = partial(jaxgemm.gated_gemm, kernel="sm90")
    f = jax.shard_map(f, mesh=mesh(), in_specs=(P("x"), P(None, "y"), P(None, "y")), out_specs=P("x", "y"))
    shapes = [jax.ShapeDtypeStruct(s, jnp.bfloat16) for s in ((16, 256), (256, 512), (256, 512))]
    text = jax.jit(f).trace(*shapes).lower(lowering_platforms=("cuda",)).as_text()
    assert text.count("@jaxgemm_gated_gemm") == 1


@built
def test_by_name_a_divided_program_is_refused():
    with pytest.raises(jaxgemm.UnsupportedError, match="kernel 'sm90': a gated product is one launch on one device"):
        lowered((16, 256), (256, 512), (256, 512), spec=(P("x"), P(), P()), kernel="sm90")


@built
def test_auto_takes_what_should_be_faster():
    for shape in ((4096, 14336, 4096), (4096, 4096, 14336), (512, 14336, 4096), (16, 14336, 4096), (1, 14336, 4096)):
        choice = select_gated(problem_of(*shape, platform="any"), H200, precision=None, kernel="auto")
        assert choice.kernel == ROW, shape
        assert choice.why.startswith("one launch; two products and what follows should take")
    # Few columns and long sums want k divided; with unaligned rows and few of them, copies take longer than XLA does.
    for shape in ((64, 64, 131072), (33, 14335, 4096)):
        choice = select_gated(problem_of(*shape, platform="any"), H200, precision=None, kernel="auto")
        assert choice.kernel is None, shape
        assert "one launch expects" in choice.why


@built
def test_what_the_kernel_cannot_do_is_said():
    sound = problem_of(16, 256, 64, platform="any")
    assert check(ROW, (), sound, H200)[0] == ""
    weights = Matrix(True, 64, (0, 0))
    for problem, config, text in (
        (replace(sound, batch=(1, 2)), (), "a gated product of kernel 'sm90' has no batch"),
        (replace(sound, b=weights), (), "a gated product of kernel 'sm90' takes row-major operands"),
        (sound, values(split_k=2), "a gated product of kernel 'sm90' is not split along k"),
        (sound, values(tile_m=192), "no tile configuration matches the options"),
    ):
        assert text in check(ROW, config, problem, H200)[0]


@built
def test_workspace_holds_what_is_unaligned():
    """Rows of 1001 elements are copied to a pitch of 1024, of both weights."""
    assert check(ROW, (), problem_of(16, 1000, 64, platform="any"), H200)[1] == 0
    assert check(ROW, (), problem_of(16, 1001, 64, platform="any"), H200)[1] == 2 * 64 * 1024 * 2
