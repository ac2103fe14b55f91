"""The kinds of product, each stated once, and the one module that tells JAX of them."""
