"""Programs that leave the process or come back to it: export, ahead of time, cached, donated, checked, in threads."""

from __future__ import annotations

import threading
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from arrays import array
from jax import export
from jax.experimental.compilation_cache import compilation_cache
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P
from jaxprs import equations
from meshes import assert_close, mesh
from twins import kernels_for

import jaxgemm

kernels = pytest.mark.parametrize("kernel", ["auto", "host"])
CHECK = export.DisabledSafetyCheck.custom_call("jaxgemm_gemm")


def layer(kernel="host"):
    return lambda x, w, bias: jaxgemm.gemm(x, w, bias=bias, activation="gelu", kernel=kernel)


def operands(rng, m=12):
    return tuple(array(rng.standard_normal(s), np.float32) for s in ((m, 20), (20, 16), (16,)))


def structs(args):
    return [jax.ShapeDtypeStruct(x.shape, x.dtype) for x in args]


# --- Export ---


@kernels
def test_export_round_trip(kernel, rng):
    args = operands(rng)
    exported = export.export(jax.jit(layer(kernel)), disabled_checks=[CHECK])(*structs(args))
    again = export.deserialize(exported.serialize(vjp_order=1))
    np.testing.assert_array_equal(again.call(*args), jax.jit(layer(kernel))(*args))
    loss = jax.grad(lambda f, *x: jnp.sum(jnp.sin(f(*x))), (1, 2, 3))
    assert_close(loss(again.call, *args), loss(layer("auto"), *args))


def test_export_asks_for_the_check_by_name(rng):
    """Custom calls are not promised to be there tomorrow, so the caller says that ours will be."""
    with pytest.raises(ValueError, match=r"(?s)no compatibility guarantees.*jaxgemm_gemm"):
        export.export(jax.jit(layer()))(*structs(operands(rng)))


def test_what_xla_computes_needs_no_check(rng):
    export.export(jax.jit(layer("auto")))(*structs(operands(rng)))


def test_export_for_another_platform(rng):
    exported = export.export(jax.jit(layer("auto")), platforms=["cpu", "cuda"], disabled_checks=[CHECK])
    assert exported(*structs(operands(rng))).platforms == ("cpu", "cuda")


def test_export_of_any_number_of_rows(rng):
    """A dimension that is not known yet has no kernel of ours, but XLA's product has it."""
    x, w, bias = operands(rng)
    rows = jax.ShapeDtypeStruct(export.symbolic_shape("m, 20"), x.dtype)
    exported = export.export(jax.jit(layer("xla")))(rows, *structs((w, bias)))
    np.testing.assert_allclose(exported.call(x, w, bias), layer("xla")(x, w, bias), rtol=1e-6)
    exported = export.export(jax.jit(layer("auto")))(rows, *structs((w, bias)))
    np.testing.assert_allclose(exported.call(x, w, bias), layer("auto")(x, w, bias), rtol=1e-6)


BY_NAME = {
    "gemm": lambda x, **how: jaxgemm.gemm(x, x, **how),
    "matmul": lambda x, **how: jaxgemm.matmul(x, x, **how),
    "gated": lambda x, **how: jaxgemm.gated_gemm(x, x, x, **how),
    "list": lambda x, **how: jaxgemm.grouped_gemm([x], [x], **how),
    "override": lambda x, **how: jaxgemm.override(jnp.dot, **how)(x, x),
}


@pytest.mark.parametrize(
    ("name", "how"),
    [
        *((name, {"kernel": "host"}) for name in BY_NAME),
        *((name, {"batch_invariant": True}) for name in ("gemm", "matmul", "gated")),
    ],
    ids=str,
)
def test_a_sharded_export_by_name_says_why_not(name, how):
    """XLA's partitioner can call no function of ours when the program is divided, in another process."""
    x = jax.ShapeDtypeStruct((4, 4), jnp.float32, sharding=NamedSharding(mesh((2,), ("e",)), P("e")))
    with pytest.raises(jaxgemm.UnsupportedError, match="in a program that is exported: XLA divides this program"):
        export.export(jax.jit(partial(BY_NAME[name], **how)), disabled_checks=[CHECK])(x)


# --- Ahead of time ---


@kernels
def test_ahead_of_time(kernel, rng):
    args = operands(rng)
    compiled = jax.jit(layer(kernel)).lower(*structs(args)).compile()
    np.testing.assert_array_equal(compiled(*args), jax.jit(layer(kernel))(*args))
    with pytest.raises(TypeError, match=r"float32\[12,20\]"):
        compiled(args[0][:3], *args[1:])


@kernels
def test_persistent_cache(kernel, rng, tmp_path):
    args = operands(rng)
    settings = {
        "jax_compilation_cache_dir": str(tmp_path),
        "jax_persistent_cache_min_compile_time_secs": 0.0,
        "jax_persistent_cache_min_entry_size_bytes": -1,
    }
    before = {name: getattr(jax.config, name) for name in settings}
    hits = []
    try:
        for name, value in settings.items():
            jax.config.update(name, value)
        compilation_cache.reset_cache()
        jax.monitoring.register_event_listener(lambda event, **_: hits.append(event))
        expected = jax.jit(lambda *x: layer(kernel)(*x) + 1)(*args)
        assert list(tmp_path.iterdir())
        hits.clear()
        jax.clear_caches()
        got = jax.jit(lambda *x: layer(kernel)(*x) + 1)(*args)
        assert "/jax/compilation_cache/cache_hits" in hits
    finally:
        jax.monitoring.clear_event_listeners()
        for name, value in before.items():
            jax.config.update(name, value)
        compilation_cache.reset_cache()
    np.testing.assert_array_equal(got, expected)


@kernels
def test_donation(kernel, rng):
    """A donated c makes room for the result; its values are read before they are overwritten."""
    a, b, _ = operands(rng)
    c = array(rng.standard_normal((12, 16)), np.float32)
    expected = jaxgemm.gemm(a, b, c, beta=-1.0, kernel=kernel)
    update = jax.jit(lambda a, b, c: jaxgemm.gemm(a, b, c, beta=-1.0, kernel=kernel), donate_argnums=2)
    given = jnp.array(c)
    np.testing.assert_array_equal(update(a, b, given), expected)
    assert given.is_deleted()


# --- Debugging ---


@kernels
def test_debug_nans(kernel, rng):
    a, b, _ = operands(rng)
    with jax.debug_nans(True):
        jaxgemm.matmul(a, b, kernel=kernel)
        jax.jit(lambda a, b: jaxgemm.matmul(a, b, kernel=kernel))(a, b)
        with pytest.raises(FloatingPointError, match="nan"):
            jaxgemm.matmul(a.at[3, 4].set(jnp.inf), jnp.zeros_like(b), kernel=kernel).block_until_ready()


@kernels
@pytest.mark.parametrize("x64", [True, False])
def test_eval_shape(kernel, x64):
    with jax.enable_x64(x64):
        wide = jnp.float64 if x64 else jnp.float32
        a, b = jax.ShapeDtypeStruct((5, 7), wide), jax.ShapeDtypeStruct((7, 2), jnp.float32)
        got = jax.eval_shape(lambda a, b: jaxgemm.gemm(a, b, kernel=kernel), a, b)
        assert (got.shape, got.dtype) == ((5, 2), wide)
        assert jaxgemm.gemm(np.ones((5, 7)), np.ones((7, 2)), kernel=kernel).dtype == wide
        ints = jax.eval_shape(lambda a: jaxgemm.gemm(a, a.T), jax.ShapeDtypeStruct((5, 7), jnp.int8))
        assert ints.dtype == jnp.int32


# --- Devices and threads ---


@kernels_for("float32")
def test_on_a_second_device(kernel, rng):
    first, second, *_ = [*jax.local_devices(backend=jax.config.jax_default_device.platform), None]
    if second is None:
        pytest.skip("there is one device")
    a, b, bias = (jax.device_put(x, second) for x in operands(rng))
    for f in (layer(kernel), jax.jit(layer(kernel))):
        got = f(a, b, bias)
        assert got.devices() == {second}
        assert_close(got, layer("xla")(*(np.asarray(x) for x in (a, b, bias))), rtol=2e-3)
    with pytest.raises(ValueError, match="incompatible devices"):
        jax.jit(layer(kernel))(a, jax.device_put(b, first), bias)


@kernels
def test_threads(kernel, rng):
    """Tracing, compiling and running from many threads at once."""
    cases = [operands(rng, m) for m in range(1, 9)]
    expected = [layer("xla")(*args) for args in cases]
    jitted = jax.jit(layer(kernel))
    start, failures = threading.Barrier(len(cases)), []

    def work(i):
        try:
            start.wait()
            for _ in range(20):
                assert_close(jitted(*cases[i]), expected[i])
                assert_close(layer(kernel)(*cases[i]), expected[i])
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(len(cases))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


# --- Remat ---


def _saved(policy, f, *args):
    """Products that the backward pass computes, those of gradients and those computed again."""
    text = str(jax.make_jaxpr(jax.grad(lambda *x: jnp.sum(jnp.sin(jax.checkpoint(f, policy=policy)(*x)))))(*args))
    return text.count("jaxgemm_gemm[")


def test_policies_see_products(rng):
    policies = jaxgemm.checkpoint_policies
    x, w = (array(rng.standard_normal((8, 8)), np.float32) for _ in range(2))

    def two(x, w):
        return jaxgemm.matmul(jnp.sin(jaxgemm.matmul(jnp.sin(x), w)), w)

    again = _saved(None, two, x, w)
    assert _saved(policies.dots_saveable, two, x, w) < again
    assert _saved(policies.checkpoint_dots, two, x, w) < again
    assert _saved(policies.dots_with_no_batch_dims_saveable, two, x, w) < again
    assert _saved(jax.checkpoint_policies.dots_saveable, two, x, w) == again
    batched = jnp.stack([x, x]), jnp.stack([w, w])
    assert _saved(policies.dots_with_no_batch_dims_saveable, two, *batched) == _saved(None, two, *batched)
    assert _saved(policies.dots_saveable, two, *batched) < _saved(None, two, *batched)


def test_policies_agree_with_jaxs(rng):
    """The same policy saves the same values of the same model, whichever products it is written with."""
    x, w = (array(rng.standard_normal((8, 8)), np.float32) for _ in range(2))

    def residuals(dot, policy):
        def f(x, w):
            return jnp.sum(jnp.sin(dot(jnp.sin(dot(jnp.sin(x), w)), w)))

        vjp = jax.vjp(jax.checkpoint(f, policy=policy), x, w)[1]
        return sorted(leaf.shape for leaf in jax.tree.leaves(vjp) if hasattr(leaf, "shape"))

    for name in ("dots_saveable", "dots_with_no_batch_dims_saveable"):
        ours = residuals(jaxgemm.matmul, getattr(jaxgemm.checkpoint_policies, name))
        assert ours == residuals(jnp.matmul, getattr(jax.checkpoint_policies, name))


def test_offloading_policy(rng):
    """The first product's result, and nothing else, goes to the other memory and comes back."""
    x, w = (array(rng.standard_normal((8, 8)), np.float32) for _ in range(2))

    def moved(dot, policies):
        policy = policies.offload_dot_with_no_batch_dims("device", "pinned_host")
        f = jax.checkpoint(lambda x: jnp.sin(dot(jnp.sin(x), w)), policy=policy)
        found = equations(jax.grad(lambda x: jnp.sum(f(x))), x)
        return [str(eqn.params["devices"]) for eqn in found if eqn.primitive.name == "device_put"]

    ours = moved(jaxgemm.matmul, jaxgemm.checkpoint_policies)
    assert ours == moved(jnp.matmul, jax.checkpoint_policies)
    assert len(ours) == 2


def test_policies_have_the_names_of_jax_s():
    policies = jaxgemm.checkpoint_policies
    assert policies.checkpoint_dots is policies.dots_saveable
    assert policies.checkpoint_dots_with_no_batch_dims is policies.dots_with_no_batch_dims_saveable
