# SPDX-License-Identifier: Apache-2.0
"""flashtile.torch.linear: golden cases with autograd, gradcheck, compilation, autocast, steps."""

import linear_cases
import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
import flashtile.torch.linear as linear  # noqa: E402
from flashtile._linear import operators  # noqa: E402

OPS = operators()
NAMES = sorted(OPS)


def tensor(array):
    if array.dtype.name == "bfloat16":
        return torch.from_numpy(array.view("uint16")).view(torch.bfloat16)
    return torch.from_numpy(array)


def arguments(name, **options):
    """Tensors of an op by linear_cases.arrays."""
    return {key: tensor(array) for key, array in linear_cases.arrays(name, **options).items()}


def leaves(name, given):
    """The tensors that want a gradient."""
    wanted = [key for key in given if key in OPS[name].differentiable]
    for key in wanted:
        given[key] = given[key].detach().clone().requires_grad_()
    return wanted


@pytest.mark.parametrize("path", linear_cases.PATHS, ids=lambda path: path.stem)
def test_golden(path):
    case = linear_cases.Case(path)
    given = {name: tensor(array) for name, array in case.inputs.items()}
    for name in case.gradients():
        given[name].requires_grad_()
    results = getattr(linear, case.op)(**given, **case.options, return_final_state=True)
    named = dict(zip(["out", *(f"final_{name}" for name in OPS[case.op].states)], results))
    torch.autograd.backward([named[name] for name in case.incoming],
                            [tensor(array) for array in case.incoming.values()])
    found = {name: result.detach().double().numpy() for name, result in named.items()}
    found.update({f"d{name}": given[name].grad.double().numpy() for name in case.gradients()})
    case.check(found)


@pytest.mark.parametrize("name", NAMES)
def test_gradcheck(name):
    given = arguments(name, dtype="float64", seqlen=3)
    options = linear_cases.OPTIONS.get(name, {})
    wanted = leaves(name, given)
    # States that are relative to a running maximum have gradients with that held constant, which
    # makes no difference for out (but for mlstm_exp's 1e-6 in the divisor).
    asked = {"return_final_state": True} if OPS[name].states and "max" not in \
        OPS[name].states else {}

    def run(*values):
        return getattr(linear, name)(**{**given, **dict(zip(wanted, values))}, **options, **asked)

    assert torch.autograd.gradcheck(run, [given[key] for key in wanted], eps=1e-6,
                                    atol=1e-5 if name == "mlstm_exp" else 1e-6)


def results_of(name, given, **more):
    """Of a call with all final states, as a tuple."""
    asked = {"return_final_state": True} if OPS[name].states else {}
    found = getattr(linear, name)(**given, **linear_cases.OPTIONS.get(name, {}), **asked, **more)
    return found if isinstance(found, tuple) else (found,)


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("name", NAMES)
def test_fake_kernels(name, packed):
    """Shapes and dtypes of results and gradients before anything is computed."""
    given = arguments(name, dtype="bfloat16", packed=packed)
    for key in given:
        if OPS[name].forward.tensor(key).dtypes.startswith("f32 f64"):
            given[key] = given[key].float()
    wanted = leaves(name, given)
    found = results_of(name, given)
    gradients = torch.autograd.grad(sum(result.float().sum() for result in found),
                                    [given[key] for key in wanted])
    with torch._subclasses.FakeTensorMode() as mode:
        fakes = {key: mode.from_tensor(value) for key, value in given.items()}
        fake_found = results_of(name, fakes)
        fake_gradients = torch.autograd.grad(sum(result.float().sum() for result in fake_found),
                                             [fakes[key] for key in wanted])
    for real, fake in zip([*found, *gradients], [*fake_found, *fake_gradients]):
        assert (real.shape, real.dtype) == (fake.shape, fake.dtype)


@pytest.mark.parametrize("name", ["linear_attention", "mamba2", "gsa", "gated_delta_rule", "slstm",
                                  "short_conv", "gated_norm"])
def test_compiled_is_the_same(name):
    given = arguments(name)
    wanted = leaves(name, given)

    function, options = getattr(linear, name), linear_cases.OPTIONS.get(name, {})
    if OPS[name].states:
        options = {**options, "return_final_state": True}

    def loss(values):
        found = function(**values, **options)
        return sum(result.square().sum() for result in found)

    torch.compiler.reset()
    expected = torch.autograd.grad(loss(given), [given[key] for key in wanted])
    compiled = torch.compile(loss, fullgraph=True, backend="aot_eager")
    found = torch.autograd.grad(compiled(given), [given[key] for key in wanted])
    for key, one, other in zip(wanted, found, expected):
        assert torch.equal(one, other), key


def row(name, given, t):
    """Of the inputs of a forward call those of a step, at row t."""
    timed = {entry.name for entry in OPS[name].inputs if "seqlen" in entry.shape}
    return {key: value[:, t] if key in timed else value for key, value in given.items()
            if not key.startswith("initial_")}


@pytest.mark.parametrize("name", [name for name in NAMES if OPS[name].states])
def test_steps_are_the_whole(name):
    given = arguments(name)
    options = linear_cases.OPTIONS.get(name, {})
    expected, *finals = results_of(name, given)
    states = {key: given[f"initial_{key}"].clone() for key in OPS[name].states}
    for t in range(expected.shape[1]):
        out = getattr(linear, f"{name}_step")(**row(name, given, t), **states, **options)
        torch.testing.assert_close(out, expected[:, t], rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(list(states.values()), finals, rtol=1e-4, atol=1e-4)


def test_compiled_steps_in_slots():
    given = arguments("gated_delta_rule")
    rows = [row("gated_delta_rule", given, t) for t in range(3)]
    slots = torch.tensor([3, 1], dtype=torch.int32)

    def run(state):
        for values in rows:
            out = linear.gated_delta_rule_step(**values, state=state, state_slots=slots)
        return out

    pool, compiled_pool = (torch.full((4, 4, 6, 5), 0.5) for _ in range(2))
    torch.compiler.reset()
    assert torch.equal(torch.compile(run, fullgraph=True, backend="aot_eager")(compiled_pool),
                       run(pool))
    assert torch.equal(pool, compiled_pool)
    assert (pool[[0, 2]] == 0.5).all() and (pool[[1, 3]] != 0.5).all()


def test_torch_checks_the_ops():
    """PyTorch's own checks: schema, autograd, fake kernels, and all of it under a compiler."""
    given = arguments("gated_delta_rule")
    leaves("gated_delta_rule", given)
    tensors = [given.get(row.name) for row in OPS["gated_delta_rule"].inputs]
    torch.library.opcheck(torch.ops.flashtile.gated_delta_rule_fwd,
                          (*tensors, None, True, True, None, None))
    step = {key: value.detach() for key, value in row("gated_delta_rule", given, 0).items()}
    tensors = [step.get(entry.name) for entry in OPS["gated_delta_rule"].step.tensors
               if entry.direction == "in"]
    states = given["initial_state"].detach().clone()
    torch.library.opcheck(torch.ops.flashtile.gated_delta_rule_step,
                          (*tensors, states, None, True, None, None))


@pytest.mark.parametrize("name", ["gsa", "gated_norm"])
def test_vmap_is_one_after_the_other(name):
    given = arguments(name)
    stacked = {key: torch.stack([value, 0.5 * value]) for key, value in given.items()}
    wanted = leaves(name, stacked)
    shared = next(iter(given))  # the same for both

    def run(values):
        return results_of(name, {**values, shared: given[shared]})

    dims = {key: 0 for key in stacked if key != shared}
    found = torch.func.vmap(run, in_dims=(dims,))({key: stacked[key] for key in dims})
    gradients = torch.autograd.grad(sum(result.square().sum() for result in found),
                                    [stacked[key] for key in wanted if key != shared])
    for n in range(2):
        alone = {key: stacked[key][n].detach().requires_grad_() for key in dims}
        expected = run(alone)
        for one, other in zip(found, expected):
            assert torch.equal(one[n], other)
        expected = torch.autograd.grad(sum(result.square().sum() for result in expected),
                                       [alone[key] for key in wanted if key != shared])
        for one, other in zip(gradients, expected):
            assert torch.equal(one[n], other)


def test_autocast_casts_operands_and_leaves_gates():
    given = arguments("gated_delta_rule")
    wanted = leaves("gated_delta_rule", given)
    with torch.autocast("cpu", torch.bfloat16):
        out, final = results_of("gated_delta_rule", given)
        half = {**given, "g": given["g"].half(), "initial_state": given["initial_state"].half()}
        assert results_of("gated_delta_rule", half)[0].dtype == torch.bfloat16
    assert (out.dtype, final.dtype) == (torch.bfloat16, torch.float32)
    (out.float().sum() + final.sum()).backward()
    cast = {key: value.detach().bfloat16() if key in ("q", "k", "v") else
            value.detach() for key, value in given.items()}
    assert torch.equal(results_of("gated_delta_rule", cast)[0], out)
    assert all(given[key].grad.dtype == torch.float32 for key in wanted)


def test_functions_for_all_libraries_take_tensors():
    import flashtile
    given = arguments("kda")
    out, state = flashtile.linear.kda(**given, return_final_state=True)
    assert isinstance(out, torch.Tensor)
    assert torch.equal(state, results_of("kda", given)[1])
    pool = given["initial_state"].clone()
    for t in range(out.shape[1]):
        flashtile.linear.kda_step(**row("kda", given, t), state=pool)
    torch.testing.assert_close(pool, state, rtol=1e-4, atol=1e-4)
    leaves("kda", given)
    with pytest.raises(ValueError, match="requires a gradient, .*: flashtile.torch has the"):
        flashtile.linear.kda(**given)


def test_gradients_through_the_final_state_alone():
    given = arguments("kda")
    leaves("kda", given)
    _, final = results_of("kda", given)
    final.sum().backward()
    assert given["initial_state"].grad.abs().sum() > 0
    assert not given["q"].grad.any()


def test_refused():
    given = arguments("gla")
    leaves("gla", given)
    (gradient,) = torch.autograd.grad(linear.gla(**given).square().sum(), given["q"],
                                      create_graph=True)
    with pytest.raises(NotImplementedError, match="gla has no second derivatives"):
        gradient.sum().backward()
    with pytest.raises(ValueError, match="gla_fwd: g is not given"):
        linear.gla(given["q"], given["k"], given["v"], None)
    with pytest.raises(TypeError, match="unexpected keyword argument 'beta'"):
        linear.gla(**given, beta=1)
    with pytest.raises(ValueError, match="requires a gradient"):
        linear.gla_step(**row("gla", given, 0), state=torch.zeros(2, 4, 6, 5))
