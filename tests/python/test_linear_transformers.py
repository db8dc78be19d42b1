# SPDX-License-Identifier: Apache-2.0
"""Small models of Transformers with linear attention, on the names in python/shim/linear: logits,
gradients and generation as by their own PyTorch functions."""

import functools
import inspect
import os
import sys

import plain
import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
transformers = pytest.importorskip("transformers", minversion="5.16",
                                   reason="no Transformers that looks for fla by itself")
for name in ("fla", "causal_conv1d", "mamba_ssm"):
    if "flashtile" not in getattr(sys.modules.get(name), "__version__", "flashtile"):
        pytest.skip(f"another {name} is imported", allow_module_level=True)
sys.path.insert(0, str(plain.ROOT / "python" / "shim" / "linear"))
from transformers.models.mamba import modeling_mamba  # noqa: E402
from transformers.models.mamba2 import modeling_mamba2  # noqa: E402
from transformers.models.qwen3_next import modeling_qwen3_next  # noqa: E402

MODULES = {"qwen3_next": modeling_qwen3_next, "mamba2": modeling_mamba2, "mamba": modeling_mamba}


def model(kind):
    torch.manual_seed(0)
    if kind == "qwen3_next":
        config = transformers.Qwen3NextConfig(
            vocab_size=99, hidden_size=32, intermediate_size=48, num_hidden_layers=4,
            num_attention_heads=4, num_key_value_heads=2, head_dim=8, linear_num_key_heads=2,
            linear_num_value_heads=4, linear_key_head_dim=8, linear_value_head_dim=8,
            num_experts=4, num_experts_per_tok=2, moe_intermediate_size=16,
            shared_expert_intermediate_size=16, attn_implementation="eager")
    elif kind == "mamba2":
        config = transformers.Mamba2Config(
            vocab_size=99, hidden_size=32, num_heads=8, head_dim=8, state_size=16, n_groups=2,
            num_hidden_layers=2, chunk_size=8)
    else:
        config = transformers.MambaConfig(vocab_size=99, hidden_size=32, state_size=8,
                                          num_hidden_layers=2)
    # Products of experts by groups have no double.
    made = transformers.AutoModelForCausalLM.from_config(config, experts_implementation="eager")
    with torch.no_grad():  # so that layers matter
        for parameter in made.parameters():
            if parameter.dim() > 1:
                parameter.mul_(3)
    return made.eval()


def wrapped_functions(module):
    """Functions that Transformers takes from packages where it finds them, by name."""
    found = {}
    for name, function in vars(module).items():
        if inspect.isfunction(function) and hasattr(function, "__wrapped__"):
            nonlocals = inspect.getclosurevars(function).nonlocals
            if "torch_function" in nonlocals:
                found[name] = nonlocals["implementation"], nonlocals["torch_function"]
    return found


@pytest.fixture
def in_plain_pytorch(monkeypatch):
    """Puts Transformers' own functions in the place of flashtile's."""
    def change(kind):
        functions = wrapped_functions(MODULES[kind])
        assert functions
        for name, (implementation, torch_function) in functions.items():
            assert implementation.__module__.partition(".")[0] in (
                "fla", "causal_conv1d", "mamba_ssm"), f"{name} is {implementation}"
            monkeypatch.setattr(MODULES[kind], name, torch_function)
    return change


def tokens(batch_size=2, seqlen=13):
    return torch.randint(0, 99, (batch_size, seqlen), generator=torch.Generator().manual_seed(3))


def results(made, mask=None):
    """Logits, and gradients of all parameters."""
    made.zero_grad()
    logits = made(tokens(), attention_mask=mask, use_cache=False).logits
    seen = logits if mask is None else logits[mask.bool()]
    seen.double().square().sum().backward()
    return {"logits": seen.detach().double(),
            **{name: parameter.grad.double().clone() for name, parameter in
               made.named_parameters() if parameter.grad is not None}}


# Row by row. Transformers' functions take float32 for models of doubles too, and give gradients of
# strong decays with 1e-7 of what q and k of the same row have to do with each other.
def gated_delta_rule_in_double(q, k, v, g, beta, use_qk_l2norm_in_kernel=False, **_):
    assert use_qk_l2norm_in_kernel
    q, k, v, g, beta = (x.double() for x in (q, k, v, g, beta))
    q, k = (x * (x.square().sum(-1, keepdim=True) + 1e-6).rsqrt() for x in (q, k))
    q, k = (x.repeat_interleave(v.shape[2] // x.shape[2], 2)[..., None] for x in (q, k))
    state, out = 0, []
    for t in range(v.shape[1]):
        state = state * g[:, t, :, None, None].exp()
        left = v[:, t] - (k[:, t] * state).sum(2)
        state = state + k[:, t] * (beta[:, t, :, None] * left)[:, :, None]
        out.append((q[:, t] * state).sum(2) * k.shape[3] ** -0.5)
    return torch.stack(out, 1), None


def mamba2_in_double(x, dt, A, B, C, chunk_size, D, dt_bias, dt_softplus, **_):
    assert dt_softplus
    dt = torch.nn.functional.softplus(dt.double() + dt_bias.double())[..., None]
    B, C = (y.double().repeat_interleave(x.shape[2] // y.shape[2], 2) for y in (B, C))
    state, out = 0, []
    for t in range(x.shape[1]):
        added = (dt[:, t] * x[:, t])[..., None] * B[:, t, :, None]
        state = state * (A[:, None] * dt[:, t]).exp()[..., None] + added
        out.append((state * C[:, t, :, None]).sum(3) + D[:, None] * x[:, t])
    return torch.stack(out, 1)


IN_DOUBLE = {"qwen3_next": ("torch_chunk_gated_delta_rule", gated_delta_rule_in_double),
             "mamba2": ("mamba2_chunk_scan", mamba2_in_double)}


@pytest.mark.parametrize("is_training", [False, True])
@pytest.mark.parametrize("kind", MODULES)
def test_logits_and_gradients(kind, is_training, in_plain_pytorch, monkeypatch):
    """As near to double as Transformers' own way is, by twice its error and float's step."""
    made = model(kind).train(is_training)
    found = results(made)
    in_plain_pytorch(kind)
    expected = results(made)
    if kind in IN_DOUBLE:
        monkeypatch.setattr(MODULES[kind], *IN_DOUBLE[kind])
    exact = results(made.double())
    assert found.keys() == expected.keys() and len(found) > 10
    for name in found:
        error = (expected[name] - exact[name]).abs().max()
        # Of Mamba-2's A a sum over rows of running sums, whose rounding adds up.
        floor = (2e-5 if name.endswith("A_log") else 2e-6) * exact[name].abs().max()
        assert (found[name] - exact[name]).abs().max() <= 2 * error + floor, name


@pytest.mark.parametrize("kind", ["qwen3_next", "mamba2"])
def test_padding(kind, in_plain_pytorch):
    mask = torch.ones(2, 13, dtype=torch.long)
    mask[0, :4] = 0
    made = model(kind)
    found = results(made, mask)
    in_plain_pytorch(kind)
    expected = results(made, mask)
    for name in found:
        torch.testing.assert_close(found[name], expected[name], rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("kind", MODULES)
def test_generation_token_by_token(kind, in_plain_pytorch):
    made = model(kind)
    generate = functools.partial(made.generate, max_new_tokens=12, do_sample=False,
                                 output_scores=True, return_dict_in_generate=True,
                                 pad_token_id=0, eos_token_id=None)
    found = generate(tokens(seqlen=7))
    in_plain_pytorch(kind)
    expected = generate(tokens(seqlen=7))
    assert torch.equal(found.sequences, expected.sequences)
    torch.testing.assert_close(found.scores, expected.scores, rtol=1e-3, atol=1e-3)


def test_layer_loads_the_parameters_of_transformers():
    """Mamba2 of flashtile.torch.layers, whose names are the same ones there."""
    from flashtile.torch.layers import LayerCache, Mamba2
    mixer = model("mamba2").backbone.layers[0].mixer
    layer = Mamba2(hidden_size=32, head_dim=8, state_size=16, n_groups=2, layer_idx=0)
    layer.load_state_dict(mixer.state_dict())
    hidden = torch.randn(2, 9, 32)
    expected = mixer(hidden)
    torch.testing.assert_close(layer(hidden)[0], expected, rtol=1e-4, atol=1e-4)
    cache = LayerCache()
    with torch.no_grad():
        out = [layer(hidden[:, part], past_key_values=cache, use_cache=True)[0]
               for part in (slice(0, 6), *(slice(t, t + 1) for t in range(6, 9)))]
    torch.testing.assert_close(torch.cat(out, 1), expected, rtol=1e-4, atol=1e-4)
