"""The activations of jaxgemm/epilogue.py beside those of the oracle."""

import cases
import jax
import numpy as np
import oracle
import pytest
from arrays import array

from jaxgemm.epilogue import ACTIVATIONS


def test_the_oracle_has_every_activation():
    assert list(oracle.ACTIVATIONS) == list(ACTIVATIONS)
    assert set(cases.SHORT_ACTIVATIONS) < set(ACTIVATIONS)


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_values_and_slopes(name):
    x = np.linspace(-9, 9, 1800)  # not at 0, where relu has no slope
    ours, theirs = ACTIVATIONS[name], oracle.ACTIVATIONS[name]
    np.testing.assert_allclose(np.asarray(ours(array(x))), theirs(x), rtol=1e-12, atol=1e-14)
    for function in filter(None, (ours, ours.plain)):
        slopes = jax.vmap(jax.grad(function))(array(x))
        np.testing.assert_allclose(slopes, (theirs(x + 1e-6) - theirs(x - 1e-6)) / 2e-6, atol=1e-8)
        assert np.abs(slopes).max() <= oracle.STEEPEST


@pytest.mark.parametrize("name", [name for name in ACTIVATIONS if ACTIVATIONS[name].plain])
def test_plain_forms(name):
    x = np.append(np.linspace(-9, 9, 1801), [np.nan, np.inf])
    np.testing.assert_allclose(ACTIVATIONS[name].plain(x), ACTIVATIONS[name](x), rtol=1e-12)
