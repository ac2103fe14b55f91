"""Layers for flax: ``jaxgemm.flax.linen`` and ``jaxgemm.flax.nnx``. Needs the extra ``jaxgemm[flax]``."""

try:
    import flax as _flax  # noqa: F401
except ModuleNotFoundError as error:
    if error.name != "flax":
        raise
    raise ImportError("jaxgemm.flax needs flax: pip install 'jaxgemm[flax]'") from error
