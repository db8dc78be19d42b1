# SPDX-License-Identifier: Apache-2.0
"""flashtile.linear with numpy's arrays, and what its text says."""

import importlib.util
import inspect

import linear_cases
import numpy as np
import plain
import pytest

import flashtile.linear
from flashtile._linear import operators


@pytest.mark.parametrize("path", linear_cases.PATHS, ids=lambda path: path.stem)
def test_golden(path):
    case = linear_cases.Case(path)
    run = getattr(flashtile.linear, case.op)
    results = run(**case.inputs, **case.options, return_final_state=True)
    names = ["out", *(f"final_{name}" for name in operators()[case.op].states)]
    found = dict(zip(names, results))
    incoming = {f"d{name}": array for name, array in case.incoming.items()}
    gradients = getattr(flashtile.linear, f"{case.op}_backward")(
        **incoming, **case.inputs, **case.options, gradients=case.gradients())
    found.update({f"d{name}": array for name, array in gradients.items()})
    case.check(found)
    assert (run(**case.inputs, **case.options) == found["out"]).all()


@pytest.mark.parametrize("name", sorted(operators()))
def test_packed_is_each_alone(name):
    op = operators()[name]
    given = linear_cases.arrays(name, packed=True)
    options = linear_cases.OPTIONS.get(name, {})
    asked = {"return_final_state": True} if op.states else {}
    run = getattr(flashtile.linear, name)
    together = run(**given, **options, **asked)
    together = together if op.states else (together,)
    starts = given.pop("cu_seqlens")
    for n, (begin, end) in enumerate(zip(starts, starts[1:])):
        alone = {}
        for row in op.inputs:
            if row.name in given:
                array = given[row.name]
                alone[row.name] = array[None, begin:end] if "seqlen" in row.shape else \
                    array[n:n + 1] if row.name.startswith("initial_") else array
        found = run(**alone, **options, **asked)
        found = found if op.states else (found,)
        assert (found[0][0] == together[0][begin:end]).all()
        for one, other in zip(found[1:], together[1:]):
            assert (one[0] == other[n]).all()


@pytest.mark.parametrize("name", sorted(name for name in operators() if operators()[name].states))
def test_split_with_carried_state_is_whole(name):
    op, given = operators()[name], linear_cases.arrays(name, seqlen=7)
    options = linear_cases.OPTIONS.get(name, {})
    timed = {row.name for row in op.inputs if "seqlen" in row.shape}
    run = getattr(flashtile.linear, name)
    whole, *finals = run(**given, **options, return_final_state=True)
    outs, states = [], {}
    for part in (slice(0, 3), slice(3, 7)):
        half = {key: array[:, part] if key in timed else array for key, array in given.items()}
        out, *after = run(**{**half, **states}, **options, return_final_state=True)
        outs.append(out)
        states = {f"initial_{key}": array for key, array in zip(op.states, after)}
    np.testing.assert_allclose(np.concatenate(outs, 1), whole, rtol=1e-4, atol=1e-4)
    for one, other in zip(states.values(), finals):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-4)


def test_step_changes_only_its_slots():
    given = linear_cases.arrays("gla", seqlen=1, without=("initial_state",))
    row = {name: array[:, 0] for name, array in given.items()}
    pool = plain.random(3, (4, 2, 6, 5))[0]
    before, slots = pool.copy(), np.array([2, 0], np.int32)
    out = np.empty((2, row["q"].shape[1], 5), np.float32)
    assert flashtile.linear.gla_step(**row, state=pool, state_slots=slots, out=out) is out
    expected, state = flashtile.linear.gla(**given, initial_state=before[slots],
                                           return_final_state=True)
    np.testing.assert_allclose(out, expected[:, 0], rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(pool[slots], state, rtol=1e-5, atol=1e-5)
    assert (pool[[1, 3]] == before[[1, 3]]).all()
    pool.setflags(write=False)
    with pytest.raises(ValueError, match="gla_step: state is read-only"):
        flashtile.linear.gla_step(**row, state=pool, state_slots=slots)


def test_results_dtypes_and_forced_implementations():
    given = linear_cases.arrays("kda", dtype="float64")
    out, state = flashtile.linear.kda(**given, return_final_state=True)
    assert out.dtype == state.dtype == np.float64
    gradients = flashtile.linear.kda_backward(out, **given)
    assert set(gradients) == set(given)
    assert all(gradients[name].dtype == np.float64 for name in given)
    single = {name: array.astype(np.float32) for name, array in given.items()}
    halves = {name: array.astype(np.float16) if name in ("q", "k", "v") else array
              for name, array in single.items()}
    assert flashtile.linear.kda(**halves, out_dtype=np.float32).dtype == np.float32
    reference = flashtile.linear.kda(**single, implementation="kda_fwd_reference", max_workers=1)
    np.testing.assert_allclose(reference, out, rtol=1e-5, atol=1e-5)


def test_wrong_arguments_are_named():
    q, k, v, g = (linear_cases.arrays("gla", without=("initial_state",))[name] for name in "qkvg")
    with pytest.raises(ValueError, match="gla_fwd: seqlen of v is 2, of q 5"):
        flashtile.linear.gla(q, k, v[:, :2], g)
    with pytest.raises(ValueError, match="gla_fwd: v is not given"):
        flashtile.linear.gla(q, k, None, g)
    with pytest.raises(ValueError, match="gla_bwd: there is no gradient of 'cu_seqlens'"):
        flashtile.linear.gla_backward(v, q, k, v, g, gradients=["cu_seqlens"])
    with pytest.raises(TypeError, match="beta"):
        flashtile.linear.gla(q, k, v, g, beta=v)
    with pytest.raises(AttributeError, match="flashtile.linear has no 'attention'"):
        flashtile.linear.attention  # noqa: B018


def test_functions_say_what_they_take():
    function = flashtile.linear.gated_delta_rule
    assert str(inspect.signature(function)).startswith(
        "(q: 'Array', k: 'Array', v: 'Array', g: 'Array', beta: 'Array', *, cu_seqlens: 'Array | ")
    assert "state before the first row. (batch_size, num_heads_v," in function.__doc__
    for name in flashtile.linear.__all__:
        doc = getattr(flashtile.linear, name).__doc__
        assert "Args:" in doc and "Raises:" in doc, name
        if not name.endswith("_backward"):
            assert doc.index("\n\n") + 10 < doc.index("Args:"), f"{name} has no formula"


@pytest.mark.parametrize("module", ["linear", "torch.linear", "jax.linear"])
def test_stubs_are_those_of_the_table(module):
    for needed in module.split(".")[:-1]:
        pytest.importorskip(needed, reason=f"{needed} is not installed")
    path = plain.ROOT / "scripts" / "linear_stubs.py"
    spec = importlib.util.spec_from_file_location("linear_stubs", path)
    stubs = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(stubs)
    file = stubs.FOLDER / f"{module.replace('.', '/')}.pyi"
    assert file.read_text(encoding="utf-8") == stubs.text_of(module), f"run {path}"
