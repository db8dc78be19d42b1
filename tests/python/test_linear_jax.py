# SPDX-License-Identifier: Apache-2.0
"""flashtile.jax.linear: golden cases with gradients, under jit; vmap; what is refused."""

import linear_cases
import numpy as np
import pytest
from jax_cpu import on_the_cpu  # noqa: F401

jax = pytest.importorskip("jax", reason="JAX is not installed")
import jax.numpy as jnp  # noqa: E402

import flashtile.jax.linear as linear  # noqa: E402
from flashtile._linear import operators  # noqa: E402


@pytest.mark.parametrize("path", linear_cases.PATHS, ids=lambda path: path.stem)
def test_golden(path):
    case = linear_cases.Case(path)
    states = operators()[case.op].states
    asked = {"return_final_state": True} if states else {}

    def run(values, others):
        found = getattr(linear, case.op)(**values, **others, **case.options, **asked)
        return dict(zip(["out", *(f"final_{name}" for name in states)],
                        found if states else (found,)))

    @jax.jit
    def all_of(values, others, incoming):
        found, backward = jax.vjp(lambda values: run(values, others), values)
        zeros = {name: jnp.zeros_like(array) for name, array in found.items()}
        return found, backward({**zeros, **incoming})[0]

    values = {name: case.inputs[name] for name in case.gradients()}
    others = {name: array for name, array in case.inputs.items() if name not in values}
    found, gradients = all_of(values, others, case.incoming)
    case.check({**found, **{f"d{name}": array for name, array in gradients.items()}})


def test_vmap_is_one_after_the_other():
    given = linear_cases.arrays("gla")
    stacked = {name: np.stack([array, 0.5 * array]) for name, array in given.items()}

    def loss(values):
        out, final = linear.gla(**values, return_final_state=True)
        return (out ** 2).sum() + final.sum()

    gradients = jax.vmap(jax.grad(loss))(stacked)
    for n, scale in enumerate((1, 0.5)):
        alone = jax.grad(loss)({name: scale * array for name, array in given.items()})
        for name, gradient in alone.items():
            assert jnp.array_equal(gradients[name][n], gradient), name


def test_what_has_no_gradient_counts_as_constant():
    given = linear_cases.arrays("simple_gla")
    gradients = jax.grad(lambda values: linear.simple_gla(**values).sum())(given)
    assert gradients["q"].any() and not gradients["g_gamma"].any()


def test_functions_for_all_libraries_take_arrays():
    import flashtile
    given = {name: jnp.asarray(array) for name, array in linear_cases.arrays("gla").items()}
    out, state = flashtile.linear.gla(**given, return_final_state=True)
    assert isinstance(out, jax.Array) and isinstance(state, jax.Array)
    expected = linear.gla(**given, return_final_state=True)
    assert jnp.array_equal(out, expected[0]) and jnp.array_equal(state, expected[1])
    row = {name: array[:, 0] for name, array in given.items() if name != "initial_state"}
    with pytest.raises(ValueError, match="state is an array of JAX, which cannot change"):
        flashtile.linear.gla_step(**row, state=given["initial_state"])


def test_refused():
    given = linear_cases.arrays("gla")
    with pytest.raises(ValueError, match="gla_fwd: g is not given"):
        linear.gla(given["q"], given["k"], given["v"], None)
    with pytest.raises(TypeError, match="scale is traced by JAX"):
        jax.jit(lambda scale: linear.gla(**given, scale=scale))(0.1)
    with pytest.raises(ValueError, match="dtype of out is i8"):
        linear.gla(**given, out_dtype="i8")
    with pytest.raises(Exception, match="gla_fwd: seqlen of v is 2, of q 5"):
        jax.block_until_ready(linear.gla(**{**given, "v": given["v"][:, :2]}))
