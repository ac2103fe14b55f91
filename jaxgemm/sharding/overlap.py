"""Products of tensor parallelism in chunks, so that devices exchange one chunk while they multiply another.

``all_gather_matmul`` multiplies each device's rows as they arrive; ``matmul_reduce_scatter`` sends each device its part
of the sum as soon as that is computed. Every chunk goes straight to where it is needed: devices behind one switch are
all neighbours, and there a ring would only add waiting. They are primitives, each the transpose of the other, so that
derivatives of every order overlap as well.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial, reduce
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.interpreters import ad
from jax.typing import ArrayLike, DTypeLike

from jaxgemm import dtypes
from jaxgemm import precision as prec
from jaxgemm.epilogue import Epilogue
from jaxgemm.problem import DimensionNumbers
from jaxgemm.products import dense
from jaxgemm.products.arguments import asked_dtype, check_kernel
from jaxgemm.products.derivatives import total
from jaxgemm.products.kind import Kind, Params
from jaxgemm.products.register import register
from jaxgemm.sharding.partition import vary_alike

AxisName = str | tuple[str, ...]

# gather_p takes x and w, and gives the product and x as it was gathered, which derivatives need. scatter_p takes any
# number of pairs x, w, and gives their products' sum, of which each device has its rows. Both have the parameters
#   axis_name, size, axis                           the mesh axis, its extent, and the axis of x that lies along it
#   transpose_w                                     w is stored as (n, k)
#   precision, preferred_element_type, kernel, strict    as gemm_p's


def all_gather_matmul(
    x: ArrayLike,
    w: ArrayLike,
    *,
    axis_name: AxisName,
    axis: int = -2,
    precision: prec.Precision = None,
    preferred_element_type: DTypeLike | None = None,
    kernel: str = "auto",
) -> jax.Array:
    """``lax.all_gather(x, axis_name, axis=axis, tiled=True) @ w`` inside of ``shard_map``, overlapped.

    Each device multiplies the rows it has while those of the others arrive. The first product of a tensor-parallel
    pair: activations sharded along rows (sequence or batch), weights along columns.

    Args:
        x: this device's rows, shape (..., k), of at least 2 axes.
        w: this device's columns, shape (k, n).
        axis_name: the mesh axis (or axes) over which ``x`` is gathered.
        axis: the axis of ``x`` that is gathered; not the last one.
        precision: as ``jnp.matmul`` takes it.
        preferred_element_type: type of the result; by default that of the promoted operands.
        kernel: as for :func:`jaxgemm.gemm`; it multiplies each chunk.

    Returns:
        Shape (..., n), with ``axis`` as many times longer as there are devices along ``axis_name``.

    Raises:
        TypeError, ValueError, UnsupportedError: as for :func:`jaxgemm.gemm`.
        NameError: outside of a ``shard_map`` over ``axis_name``.
    """
    x, w, params = _arguments("all_gather_matmul", x, w, axis_name, axis, precision, preferred_element_type, kernel)
    result: jax.Array = gather_p.bind(x, w, **params)[0]
    return result


def matmul_reduce_scatter(
    x: ArrayLike,
    w: ArrayLike,
    *,
    axis_name: AxisName,
    axis: int = -2,
    precision: prec.Precision = None,
    preferred_element_type: DTypeLike | None = None,
    kernel: str = "auto",
) -> jax.Array:
    """``lax.psum_scatter(x @ w, axis_name, scatter_dimension=axis, tiled=True)`` inside of ``shard_map``, overlapped.

    Each device multiplies the rows that one device is to have while the sum of another's travels on. The second
    product of a tensor-parallel pair: the contracted dimension is sharded, the result is sharded along rows.

    Args:
        x: shape (..., k), of at least 2 axes, where k is this device's part of the contracted dimension.
        w: this device's rows, shape (k, n).
        axis_name: the mesh axis (or axes) over which products are added up.
        axis: the axis of ``x`` along which the result is scattered; not the last one. The devices along
            ``axis_name`` must divide its extent.
        precision: as ``jnp.matmul`` takes it.
        preferred_element_type: type of the result, in which the partial sums travel; by default that of the
            promoted operands.
        kernel: as for :func:`jaxgemm.gemm`; it multiplies each chunk.

    Returns:
        Shape (..., n), with ``axis`` as many times shorter as there are devices along ``axis_name``.

    Raises:
        TypeError, ValueError, UnsupportedError: as for :func:`jaxgemm.gemm`.
        ValueError: the devices do not divide ``axis``.
        NameError: outside of a ``shard_map`` over ``axis_name``.
    """
    name = "matmul_reduce_scatter"
    x, w, params = _arguments(name, x, w, axis_name, axis, precision, preferred_element_type, kernel)
    extent = x.shape[params["axis"]]
    if extent % params["size"]:
        raise ValueError(
            f"{name}: axis {axis} of x has {extent} elements, which {params['size']} devices along {axis_name!r} "
            "do not divide into equal chunks; pad it"
        )
    result: jax.Array = scatter_p.bind(x, w, **params)
    return result


def _arguments(
    function: str,
    x: ArrayLike,
    w: ArrayLike,
    axis_name: AxisName,
    axis: int,
    precision: prec.Precision,
    preferred_element_type: DTypeLike | None,
    kernel: str,
) -> tuple[jax.Array, jax.Array, dict[str, Any]]:
    x, w = jnp.asarray(x), jnp.asarray(w)
    if x.ndim < 2 or w.ndim != 2:
        raise ValueError(f"{function}: x needs at least 2 axes and w exactly 2, got shapes {x.shape} and {w.shape}")
    if x.shape[-1] != w.shape[0]:
        raise ValueError(f"{function}: x of shape {x.shape} has k = {x.shape[-1]}, w of shape {w.shape} {w.shape[0]}")
    if not -x.ndim <= axis < x.ndim or axis % x.ndim == x.ndim - 1:
        raise ValueError(f"{function}: axis must be one of x's {x.ndim} axes and not the last, got {axis}")
    dtype = np.dtype(jnp.result_type(x, w))
    out = asked_dtype(preferred_element_type, dtype)
    if not jnp.issubdtype(dtype, jnp.floating):
        raise TypeError(f"{function}: x and w must be of floating types, got {x.dtype} and {w.dtype}")
    check_kernel(kernel)
    # Where types say along which mesh axes a value varies, all operands must vary along this one, as the index does.
    _, x, w = vary_alike(lax.axis_index(axis_name), x.astype(dtype), w.astype(dtype))
    return (
        x,
        w,
        {
            "axis_name": axis_name,
            "size": int(lax.axis_size(axis_name)),
            "axis": axis % x.ndim,
            "transpose_w": False,
            "precision": prec.canonical(precision),
            "preferred_element_type": out,
            "kernel": kernel,
            "strict": True,
        },
    )


# --- The exchange ------------------------------------------------------------------------------------------------


def _product(x: Any, y: Any, contract: tuple[Sequence[int], Sequence[int]], params: Params) -> jax.Array:
    """A product of one device; x and y may differ in type, as cotangents do."""
    wanted = out = np.dtype(params["preferred_element_type"])
    common = dtypes.common(x.dtype, y.dtype)
    if common is None or (prec.is_algorithm(params["precision"]) and x.dtype != y.dtype):
        out = dtypes.product(x.dtype, y.dtype)  # as in lax: an algorithm decides how such operands are rounded
    else:
        x, y = lax.convert_element_type(x, common), lax.convert_element_type(y, common)
    dims = ((tuple(contract[0]), tuple(contract[1])), ((), ()))
    how = {name: params[name] for name in ("kernel", "strict")}
    result = dense.bind(x, y, (), dims, params["precision"], out, Epilogue(), **how)
    return lax.convert_element_type(result, wanted)


def _matmul(x: Any, w: Any, params: Params) -> jax.Array:
    return _product(x, w, ((x.ndim - 1,), (int(params["transpose_w"]),)), params)


def _shift(x: jax.Array, by: int, params: Params) -> jax.Array:
    """What the device ``by`` places further on has."""
    if by == 0:
        return x
    size = params["size"]
    out: jax.Array = lax.ppermute(x, params["axis_name"], [((i + by) % size, i) for i in range(size)])
    return out


def _in_place(chunks: dict[int, jax.Array], params: Params) -> jax.Array:
    """Chunks by the distance to the device that they belong to, as one array in the devices' order."""
    size, axis = params["size"], params["axis"]
    ordered = [chunks[i] for i in range(size)]
    if size == 1:
        return ordered[0]
    rows = ordered[0].shape[axis]
    start = (-lax.axis_index(params["axis_name"])) % size * rows
    twice = lax.concatenate(ordered + ordered, axis)
    return lax.dynamic_slice_in_dim(twice, start, size * rows, axis)


def _gather(x: jax.Array, w: jax.Array, **params: Any) -> list[jax.Array]:
    # Every transfer starts from what this device has, so that none waits for another one, or for a product.
    inputs = {distance: _shift(x, distance, params) for distance in range(params["size"])}
    products = {distance: _matmul(chunk, w, params) for distance, chunk in inputs.items()}
    return [_in_place(products, params), _in_place(inputs, params)]


def _scatter(*operands: jax.Array, **params: Any) -> jax.Array:
    size, axis = params["size"], params["axis"]
    me = lax.axis_index(params["axis_name"])
    rows = operands[0].shape[axis] // size

    def part(distance: int) -> jax.Array:
        """This device's part of the sum for the device so far ahead."""
        start = (me + distance) % size * rows
        found = None
        for x, w in zip(operands[::2], operands[1::2], strict=True):
            chunk = x if size == 1 else lax.dynamic_slice_in_dim(x, start, rows, axis)
            product = _matmul(chunk, w, params)
            found = product if found is None else found + product
        assert found is not None
        return found

    # The device's own part comes last: meanwhile the others' arrive. They are added up at once, and rounded once.
    arrived = [_shift(part(distance), -distance, params) for distance in range(1, size)]
    mine = part(0)
    whole = mine.astype(dtypes.accumulator(mine.dtype))
    for x in arrived:
        whole = whole + x.astype(whole.dtype)
    return whole.astype(mine.dtype)


# --- Rules ----------------------------------------------------------------------------------------------------


def _resized(x: Any, params: Params, up: int = 1, down: int = 1) -> Any:
    axis = params["axis"]
    return x.update(shape=(*x.shape[:axis], x.shape[axis] * up // down, *x.shape[axis + 1 :]), weak_type=False)


def _product_aval(x: Any, w: Any, params: Params) -> Any:
    dims = (((x.ndim - 1,), (int(params["transpose_w"]),)), ((), ()))
    return dense.DENSE.abstract(x, w, **dict(params, dimension_numbers=dims, out_sharding=None))


def _gather_aval(x: Any, w: Any, **params: Any) -> tuple[list[Any], Any]:
    gathered = _resized(x, params, up=params["size"])
    out, effects = _product_aval(gathered, w, params)
    return [out, gathered], effects


def _scatter_aval(*operands: Any, **params: Any) -> tuple[Any, Any]:
    out, effects = _product_aval(operands[0], operands[1], params)
    return _resized(out, params, down=params["size"]), effects


def _gather_jvp(primals: Any, tangents: Any, **params: Any) -> tuple[Any, Any]:
    x, w = primals
    dx, dw = tangents
    out, gathered = gather_p.bind(x, w, **params)
    derived = dict(params, strict=False)
    dout, dgathered = [], total([], gathered)
    if type(dx) is not ad.Zero:
        term, dgathered = gather_p.bind(dx, w, **derived)
        dout.append(term)
    if type(dw) is not ad.Zero:
        # One product of what is already here, and so one product for the gradient of w, rounded once.
        dout.append(_matmul(gathered, dw, derived))
    return [out, gathered], [total(dout, out), dgathered]


def _scatter_jvp(primals: Any, tangents: Any, **params: Any) -> tuple[Any, Any]:
    out = scatter_p.bind(*primals, **params)
    terms: list[Any] = []
    for i in range(0, len(primals), 2):
        (x, w), (dx, dw) = primals[i : i + 2], tangents[i : i + 2]
        terms += [] if type(dx) is ad.Zero else [dx, w]
        terms += [] if type(dw) is ad.Zero else [x, dw]
    if not terms:
        return out, total([], out)
    # All terms in one exchange, so that the cotangent is sent once for all of them.
    return out, scatter_p.bind(*terms, **dict(params, strict=False))


def _weight_cotangent(x: Any, ct: Any, w: Any, params: Params) -> jax.Array:
    rows = tuple(range(np.ndim(x) - 1))
    derived = dict(params, preferred_element_type=w.aval.dtype, strict=False)
    first, second = (ct, x) if params["transpose_w"] else (x, ct)
    return _product(first, second, (rows, rows), derived)


def _dual(params: Params, dtype: Any) -> Params:
    transposed = not params["transpose_w"]
    return dict(params, transpose_w=transposed, preferred_element_type=np.dtype(dtype), strict=False)


def _all_gather(x: Any, params: Params) -> jax.Array:
    out: jax.Array = lax.all_gather(x, params["axis_name"], axis=params["axis"], tiled=True)
    return out


def _gather_transpose(cts: Any, x: Any, w: Any, **params: Any) -> list[Any]:
    ct, ct_gathered = cts
    if not ad.is_undefined_primal(x):
        # The gathered x does not depend on w.
        return [None, None if type(ct) is ad.Zero else _weight_cotangent(_all_gather(x, params), ct, w, params)]
    terms = []
    if type(ct) is not ad.Zero:
        terms.append(scatter_p.bind(ct, w, **_dual(params, x.aval.dtype)))
    if type(ct_gathered) is not ad.Zero:
        name, axis = params["axis_name"], params["axis"]
        terms.append(lax.psum_scatter(ct_gathered, name, scatter_dimension=axis, tiled=True))
    return [reduce(ad.add_tangents, terms) if terms else ad.Zero(x.aval), None]


def _scatter_transpose(ct: Any, *operands: Any, **params: Any) -> list[Any]:
    if type(ct) is ad.Zero:
        return [ad.Zero(x.aval) if ad.is_undefined_primal(x) else None for x in operands]
    out: list[Any] = [None] * len(operands)
    gathered = None
    for i, (x, w) in enumerate(zip(operands[::2], operands[1::2], strict=True)):
        if ad.is_undefined_primal(x):
            out[2 * i], gathered = gather_p.bind(ct, w, **_dual(params, x.aval.dtype))
    for i, (x, w) in enumerate(zip(operands[::2], operands[1::2], strict=True)):
        if ad.is_undefined_primal(w):
            gathered = _all_gather(ct, params) if gathered is None else gathered
            out[2 * i + 1] = _weight_cotangent(x, gathered, w, params)
    return out


def _batch(kind: str, _: Any, args: Any, bdims: Any, params: Params) -> tuple[Any, Any] | None:
    if any(d is not None for d in bdims[1::2]) or any(d is None for d in bdims[::2]):
        # Several weights: batches of products are exchanged. Each of them is differentiated by itself from here on.
        return None
    args = [x if d is None else jnp.moveaxis(x, d, 0) for x, d in zip(args, bdims, strict=True)]
    params = dict(params, axis=params["axis"] + 1)
    return (gather_p.bind(*args, **params), [0, 0]) if kind == "gather" else (scatter_p.bind(*args, **params), 0)


def _without_batch(*_: Any) -> DimensionNumbers:
    return ((), ()), ((), ())


gather_p = register(
    Kind(
        name="jaxgemm_all_gather_matmul",
        several=True,
        abstract=_gather_aval,
        jvp=_gather_jvp,
        transpose=_gather_transpose,
        batch=partial(_batch, "gather"),
        compose=_gather,
        dimensions=_without_batch,
    )
)
scatter_p = register(
    Kind(
        name="jaxgemm_matmul_reduce_scatter",
        abstract=_scatter_aval,
        jvp=_scatter_jvp,
        transpose=_scatter_transpose,
        batch=partial(_batch, "scatter"),
        compose=_scatter,
        dimensions=_without_batch,
    )
)
