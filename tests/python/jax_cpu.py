# SPDX-License-Identifier: Apache-2.0
"""A fixture of tests that use JAX."""

import pytest


@pytest.fixture(autouse=True)
def on_the_cpu():
    """Also where JAX has a GPU, whose arrays these tests are not about."""
    import jax  # later than the environment that a test sets up for it

    with jax.default_device(jax.devices("cpu")[0]):
        yield
