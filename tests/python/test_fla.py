# SPDX-License-Identifier: Apache-2.0
"""The names of flash-linear-attention, causal-conv1d and mamba-ssm in python/shim/linear, by loops
in double; by flash-linear-attention's own loops where fla-core is installed."""

import ast
import importlib.metadata
import importlib.util
import inspect
import sys

import plain
import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
SHIM = str(plain.ROOT / "python" / "shim" / "linear")


def is_ours(name):
    """Whether the package of that name is flashtile's, which is put in front of others."""
    loaded = sys.modules.get(name)
    return loaded is None or "flashtile" in getattr(loaded, "__version__", "")


if not all(map(is_ours, ("fla", "causal_conv1d", "mamba_ssm"))):
    pytest.skip("another fla is imported", allow_module_level=True)
sys.path.insert(0, SHIM)
import causal_conv1d  # noqa: E402
import fla  # noqa: E402
from fla.ops.gated_delta_rule.gate import fused_gdn_gate  # noqa: E402
from fla.ops.kda.gate import fused_kda_gate  # noqa: E402
from linear_loops import delta, loop, normalised, same  # noqa: E402
from mamba_ssm.ops import selective_scan_interface  # noqa: E402
from mamba_ssm.ops.triton import ssd_combined  # noqa: E402
from mamba_ssm.ops.triton.selective_state_update import selective_state_update  # noqa: E402
from torch.nn import functional  # noqa: E402

B, T, H, K, V = 2, 11, 3, 4, 5


def random(*shape, seed=0):
    generator = torch.Generator().manual_seed(seed + sum(shape))
    return torch.randn(shape, generator=generator)


def qkv():
    return random(B, T, H, K, seed=1), random(B, T, H, K, seed=2), random(B, T, H, V, seed=3)


def log_decays(*shape, seed=4):
    return functional.logsigmoid(random(*shape, seed=seed))


def check(function, arguments, expected, final, **more):
    """Results with and without a final state, and after a first part."""
    out, state = function(**arguments, **more, output_final_state=False)
    same(out, expected)
    assert state is None
    out, state = function(**arguments, **more, output_final_state=True)
    same(out, expected)
    same(state, final)
    timed = {key: x for key, x in arguments.items() if torch.is_tensor(x) and x.dim() > 2
             and x.shape[:2] == (B, T)}
    outs, state = [], None
    for part in (slice(0, 4), slice(4, T)):
        given = {**arguments, **{key: x[:, part] for key, x in timed.items()}}
        out, state = function(**given, **more, initial_state=state, output_final_state=True)
        outs.append(out)
    same(torch.cat(outs, 1), expected)
    same(state, final)


@pytest.mark.parametrize("name", ["chunk", "fused_recurrent"])
def test_scalar_decays(name):
    q, k, v = qkv()
    of = {"q": q, "k": k, "v": v}
    heads = torch.arange(H)
    retention = torch.log(1 - 2.0 ** (-5 - heads)).expand(B, T, H)[..., None]
    lightning = (-8 / H * (1 - 2 / 5) * heads).expand(B, T, H)[..., None]
    g = log_decays(B, T, H)
    check(getattr(fla.ops, f"{name}_linear_attn"), of, *loop(q, k, v), normalize=False)
    check(getattr(fla.ops, f"{name}_retention"), of, *loop(q, k, v, retention))
    check(getattr(fla.ops, f"{name}_lightning_attn"), of, *loop(q, k, v, lightning), layer_idx=2,
          num_layers=5)
    check(getattr(fla.ops, f"{name}_simple_gla"), {**of, "g": g}, *loop(q, k, v, g[..., None]))
    gamma = torch.tensor([-0.1, -0.2, -0.3])
    out, _ = getattr(fla.ops, f"{name}_simple_gla")(**of, g=g, g_gamma=gamma, scale=1.0)
    same(out, loop(q, k, v, (g + gamma)[..., None], scale=1)[0])


def test_normalised_linear_attention():
    q, k, v = qkv()
    q, k = q.abs(), k.abs()
    out, state = loop(q, k, v)
    norm = k.double().cumsum(1)
    expected = out / ((q * norm).sum(-1, keepdim=True) * K ** -0.5 + 1e-10)
    found, (s, z) = fla.ops.chunk_linear_attn(q, k, v, output_final_state=True)
    same(found, expected)
    same(s, state)
    same(z, norm[:, -1:].transpose(1, 2)[:, :, 0].unsqueeze(1))
    _, half = fla.ops.fused_recurrent_linear_attn(
        q[:, :6], k[:, :6], v[:, :6], normalize=True, output_final_state=True)
    found, _ = fla.ops.fused_recurrent_linear_attn(q[:, 6:], k[:, 6:], v[:, 6:], normalize=True,
                                                   initial_state=half)
    same(found, expected[:, 6:])


@pytest.mark.parametrize("name", ["chunk", "fused_recurrent"])
def test_vector_decays(name):
    q, k, v = qkv()
    g, u = log_decays(B, T, H, K), random(H, K)
    gate = "g" if name == "chunk" else "gk"
    check(getattr(fla.ops, f"{name}_gla"), {"q": q, "k": k, "v": v, gate: g}, *loop(q, k, v, g))
    check(getattr(fla.ops, f"{name}_rwkv6"), {"r": q, "k": k, "v": v, "w": g, "u": u},
          *loop(q, k, v, g, bonus=u))


@pytest.mark.parametrize("name", ["chunk", "fused_recurrent"])
def test_delta_rules(name):
    q, k, v = qkv()
    q, k = normalised(q), normalised(k)
    beta, g, gk = random(B, T, H).sigmoid(), log_decays(B, T, H), log_decays(B, T, H, K)
    of = {"q": 3 * q, "k": 2 * k, "v": v, "beta": beta}
    l2 = {"use_qk_l2norm_in_kernel": True}
    check(getattr(fla.ops, f"{name}_delta_rule"), of, *delta(q, k, v, beta), **l2)
    gated = getattr(fla.ops, f"{name}_gated_delta_rule")
    check(gated, {**of, "g": g}, *delta(q, k, v, beta, g), **l2)
    check(getattr(fla.ops, f"{name}_kda"), {**of, "g": gk}, *delta(q, k, v, beta, gk), **l2)
    logits, A_log, bias = random(B, T, H), random(H), random(H, seed=7)
    raw = -A_log.exp() * functional.softplus(logits + bias)
    same(fused_gdn_gate(logits, A_log, bias), raw)
    expected, final = delta(q, k, v, 2 * beta, raw)
    out, state = gated(3 * q, 2 * k, v, g=logits, beta=beta.logit(), use_gate_in_kernel=True,
                       A_log=A_log, dt_bias=bias, use_beta_sigmoid_in_kernel=True,
                       allow_neg_eigval=True, state_v_first=True, output_final_state=True, **l2)
    same(out, expected)
    same(state, final.transpose(-1, -2))


def test_kda_gates():
    q, k, v = (normalised(x) for x in qkv())
    beta, logits, A_log, bias = random(B, T, H).sigmoid(), random(B, T, H, K), random(H), random(
        H * K)
    wide = logits + bias.view(H, K)
    for lower, gate in ((None, -A_log.exp()[:, None] * functional.softplus(wide)),
                        (-5.0, -5 * torch.sigmoid(A_log.exp()[:, None] * wide))):
        out, _ = fla.ops.chunk_kda(q, k, v, logits, beta, use_gate_in_kernel=True, A_log=A_log,
                                   dt_bias=bias, lower_bound=lower, safe_gate=lower is not None)
        same(out, delta(q, k, v, beta, gate)[0])
        same(fused_kda_gate(logits[0], A_log.view(1, 1, H, 1), bias, lower), gate[0])
    out, _ = fla.ops.fused_recurrent_kda(q, k, v, logits, beta, use_gate_in_kernel=True,
                                         lower_bound=-5.0, dt_bias=bias)
    same(out, delta(q, k, v, beta, -5 * torch.sigmoid(wide))[0])


def test_grouped_values_and_gates_of_both_kinds():
    q, k = normalised(random(B, T, H, K)), normalised(random(B, T, H, K, seed=2))
    v, beta = random(B, T, 2 * H, V), random(B, T, 2 * H).sigmoid()
    g, gk = log_decays(B, T, 2 * H), log_decays(B, T, 2 * H, K)
    wide = (x.repeat_interleave(2, 2) for x in (q, k))
    expected, _ = delta(*wide, v, beta, g[..., None] + gk)
    same(fla.ops.fused_recurrent_gated_delta_rule(q, k, v, g=g, gk=gk, beta=beta)[0], expected)
    out, _ = fla.ops.chunk_gated_delta_rule(q, k, v, None, None)
    wide = (x.repeat_interleave(2, 2) for x in (q, k))
    same(out, delta(*wide, v, torch.ones(B, T, 2 * H))[0])


@pytest.mark.parametrize("name", ["chunk", "fused_recurrent"])
def test_low_rank(name):
    q, k, v = qkv()
    b = normalised(random(B, T, H, K, seed=8))
    a, g = -0.7 * b, log_decays(B, T, H, K)
    check(getattr(fla.ops, f"{name}_dplr_delta_rule"),
          {"q": q, "k": k, "v": v, "a": a, "b": b, "gk": g}, *loop(q, k, v, g, a, b))
    check(getattr(fla.ops, f"{name}_iplr_delta_rule"),
          {"q": q, "k": k, "v": v, "a": a, "b": b}, *loop(q, k, v, None, a, b))
    check(getattr(fla.ops, f"{name}_rwkv7"),
          {"r": q, "w": g, "k": k, "v": v, "a": a, "b": b}, *loop(q, k, v, g, a, b, scale=1),
          scale=1.0)
    kk, strength = -a, random(B, T, H, K).sigmoid()
    out, _ = fla.ops.fused_mul_recurrent_rwkv7(q, g, k, v, kk, strength)
    same(out, loop(q, k, v, g, -kk, kk * strength, scale=1)[0])


@pytest.mark.parametrize("name", ["chunk", "fused_recurrent"])
def test_slots_and_channels(name):
    q, k, v = qkv()
    s, g = random(B, T, H, 6).sigmoid(), log_decays(B, T, H, 6)
    keys, values = torch.zeros(B, H, K, 6).double(), torch.zeros(B, H, 6, V).double()
    rows = []
    for t in range(T):
        decay = g[:, t].double().exp()
        keys = keys * decay[:, :, None] + k[:, t, :, :, None] * s[:, t, :, None]
        values = values * decay[..., None] + s[:, t, :, :, None] * v[:, t, :, None]
        weights = torch.einsum("bhkm,bhk->bhm", keys, q[:, t].double() * K ** -0.5).softmax(-1)
        rows.append(torch.einsum("bhmv,bhm->bhv", values, weights))
    function = getattr(fla.ops, f"{name}_gsa")
    out, final = function(q, k, v, s, g, output_final_state=True)
    same(out, torch.stack(rows, 1))
    same(final[0], keys)
    same(final[1], values)
    _, half = function(*(x[:, :5] for x in (q, k, v, s, g)), output_final_state=True)
    out, none = function(*(x[:, 5:] for x in (q, k, v, s, g)), initial_state=half)
    same(out, torch.stack(rows, 1)[:, 5:])
    assert none is None
    x, decay = random(B, T, 7), log_decays(B, T, 7)
    state, rows = torch.zeros(B, 7).double(), []
    for t in range(T):
        state = decay[:, t].double().exp() * state + x[:, t]
        rows.append(state)
    check(getattr(fla.ops, f"{name}_hgrn"), {"x": x, "g": decay}, torch.stack(rows, 1), state)


def test_rwkv4():
    w, u, k, v = random(7), random(7, seed=5), random(B, T, 7), random(B, T, 7, seed=6)
    alpha, beta, eps = torch.zeros(B, 7), torch.zeros(B, 7), torch.full((B, 7), -1e30)
    num, den, rows = alpha.double(), beta.double(), []
    for t in range(T):  # without the exponent that keeps it small
        weight, own = k[:, t].double().exp(), (u + k[:, t]).double().exp()
        rows.append((num + own * v[:, t]) / (den + own))
        num, den = ((-w.double().exp()).exp() * x + weight * y for x, y in
                    ((num, v[:, t]), (den, 1)))
    state = torch.stack([alpha, beta, eps], 1).unsqueeze(2)
    out, after = fla.ops.fused_recurrent_rwkv4(w, u, k, v, state)
    same(out, torch.stack(rows, 1))
    same(after[:, 0, 0] * after[:, 2, 0].exp(), num)
    out, after = fla.ops.fused_recurrent_rwkv4(w, u, k[:, :4], v[:, :4], state)
    out, _ = fla.ops.fused_recurrent_rwkv4(w, u, k[:, 4:], v[:, 4:], after)
    same(out, torch.stack(rows, 1)[:, 4:])


def test_packed_with_states_and_reversed():
    q, k, v = (x[:1] for x in qkv())
    g, states = log_decays(1, T, H, K), random(3, H, K, V)
    starts = torch.tensor([0, 4, 4, T])  # int64, as there
    out, final = fla.ops.chunk_gla(q, k, v, g, initial_state=states, cu_seqlens=starts,
                                   output_final_state=True)
    back, back_final = fla.ops.fused_recurrent_gla(
        q, k, v, g, initial_state=states, cu_seqlens=starts, output_final_state=True, reverse=True)
    for n, part in enumerate((slice(0, 4), slice(4, 4), slice(4, T))):
        rows = [x[:, part] for x in (q, k, v, g)]
        if part.start < part.stop:
            expected, state = loop(*rows, state=states[n:n + 1])
            same(out[:, part], expected)
            same(final[n:n + 1], state)
            expected, state = loop(*(x.flip(1) for x in rows), state=states[n:n + 1])
            same(back[:, part], expected.flip(1))
            same(back_final[n:n + 1], state)
    same(final[1], states[1])
    same(back_final[1], states[1])


def test_gradients_reach_initial_states_and_gates():
    q, k, v = qkv()
    given = {"q": q, "k": k, "v": v, "g": log_decays(B, T, H), "beta": random(B, T, H).sigmoid(),
             "initial_state": random(B, H, K, V)}
    given = {name: x.requires_grad_() for name, x in given.items()}
    out, final = fla.ops.chunk_gated_delta_rule(**given, output_final_state=True)
    (out.square().sum() + final.square().sum()).backward()
    found = {name: x.grad.clone() for name, x in given.items()}
    state = given.pop("initial_state")
    out, final = delta(given["q"], given["k"], given["v"], given["beta"], given["g"], state)
    expected = torch.autograd.grad(out.square().sum() + final.square().sum(),
                                   [*given.values(), state])
    for (name, gradient), right in zip(found.items(), expected):
        torch.testing.assert_close(gradient, right, rtol=1e-4, atol=1e-4, msg=name)


def test_dtypes_are_brought_together():
    q, k, v = qkv()
    out, state = fla.ops.chunk_gated_delta_rule(
        q.bfloat16(), k.bfloat16(), v.bfloat16(), log_decays(B, T, H).half(),
        random(B, T, H).sigmoid().bfloat16(), initial_state=random(B, H, K, V).bfloat16(),
        output_final_state=True, chunk_size=32, safe_gate=True)
    assert (out.dtype, state.dtype) == (torch.bfloat16, torch.float32)


def test_old_name_of_state_v_first():
    q, k, v = qkv()
    expected, state = fla.ops.chunk_simple_gla(q, k, v, output_final_state=True)
    with pytest.warns(DeprecationWarning, match="state_v_first"):
        out, turned = fla.ops.chunk_simple_gla(q, k, v, output_final_state=True,
                                               transpose_state_layout=True)
    same(out, expected)
    same(turned.transpose(-1, -2), state)
    with pytest.raises(ValueError, match="are both given"):
        fla.ops.chunk_simple_gla(q, k, v, state_v_first=True, transpose_state_layout=True)


def test_refused():
    q, k, v = qkv()
    with pytest.raises(ValueError, match="chunk_retention: head_first is given, expected"):
        fla.ops.chunk_retention(q, k, v, head_first=True)
    with pytest.raises(TypeError, match="unexpected keyword argument 'decay'"):
        fla.ops.chunk_retention(q, k, v, decay=1)
    with pytest.raises(NotImplementedError, match="fused_recurrent_gla: flashtile has no gv"):
        fla.ops.fused_recurrent_gla(q, k, v, gv=v)
    with pytest.raises(NotImplementedError, match="one beta for a head"):
        fla.ops.fused_recurrent_delta_rule(q, k, v, beta=v)
    with pytest.raises(ValueError, match="batch_size is 2, expected 1 with cu_seqlens"):
        fla.ops.chunk_linear_attn(q, k, v, cu_seqlens=torch.tensor([0, 4]))
    with pytest.raises(ValueError, match="chunk_gla: gla_fwd: seqlen of k is 10, of q 11"):
        fla.ops.chunk_gla(q, k[:, 1:], v, log_decays(B, T, H, K))
    with pytest.raises(ValueError, match="chunk_gsa: g is not given"):
        fla.ops.chunk_gsa(q, k, v, k)


def conv(x, weight, bias, past):
    """Depthwise causal convolution through silu, (batch, channels, seqlen), in double."""
    x = torch.cat([past, x], -1).double()
    return functional.silu(functional.conv1d(x, weight.double().unsqueeze(1), bias.double(),
                                             groups=x.shape[1]))


def test_causal_conv1d():
    x, weight, bias, past = random(B, 6, T), random(6, 4), random(6), random(B, 6, 3)
    out, state = causal_conv1d.causal_conv1d_fn(x, weight, bias, initial_states=past,
                                                return_final_states=True, activation="silu")
    same(out, conv(x, weight, bias, past))
    same(state, x[:, :, -3:])
    zeros = torch.zeros(B, 6, 3)
    seq_idx = torch.tensor([[0] * 4 + [1] * 7, [5] * T], dtype=torch.int32)
    out = causal_conv1d.causal_conv1d_fn(x, weight, bias, seq_idx=seq_idx, activation="silu")
    same(out[:1, :, 4:], conv(x[:1, :, 4:], weight, bias, zeros[:1]))
    same(out[1:], conv(x[1:], weight, bias, zeros[:1]))
    with pytest.raises(ValueError, match="activation is 'relu', expected one of"):
        causal_conv1d.causal_conv1d_fn(x, weight, activation="relu")


@pytest.mark.parametrize("width", [3, 4, 6])
def test_causal_conv1d_update(width):
    """Caches of any width that is enough, in slots, of one token or two."""
    x, weight, bias = random(B, 6, T), random(6, 4), random(6)
    pool = random(4, 6, width)
    before, slots = pool.clone(), torch.tensor([3, 1])
    expected = conv(x, weight, bias, pool[slots][..., -3:])
    for t in range(3):
        out = causal_conv1d.causal_conv1d_update(x[:, :, t], pool, weight, bias, "silu",
                                                 conv_state_indices=slots)
        same(out, expected[:, :, t])
    out = causal_conv1d.causal_conv1d_update(x[:, :, 3:5], pool, weight, bias, "silu",
                                             conv_state_indices=slots)
    same(out, expected[:, :, 3:5])
    same(pool[slots], torch.cat([before[slots], x[:, :, :5]], -1)[..., -width:])
    same(pool[[0, 2]], before[[0, 2]])
    wanted = weight.clone().requires_grad_()
    state = before[slots].clone()
    causal_conv1d.causal_conv1d_update(x[:, :, 0], state, wanted, bias).sum().backward()
    same(wanted.grad, torch.cat([before[slots], x[:, :, :1]], -1)[..., -4:].sum(0))


def selective(u, delta, A, B, C, D, z, bias, state):
    """(out, state) of Mamba's scan, (batch, channels, seqlen), B and C (batch, n, seqlen)."""
    steps = functional.softplus(delta.double() + bias.double()[:, None])
    state, rows = state.double(), []
    for t in range(u.shape[2]):
        step = steps[:, :, t, None]
        state = (step * A).exp() * state + step * u[:, :, t, None] * B[:, None, :, t]
        rows.append((state * C[:, None, :, t]).sum(-1) + D * u[:, :, t])
    return torch.stack(rows, -1) * functional.silu(z.double()), state


def test_selective_scan_and_its_step():
    channels, n = 6, 3
    u, delta, z = (random(B, channels, T, seed=seed) for seed in (1, 2, 3))
    A, D, bias = -random(channels, n).exp(), random(channels), random(channels, seed=5)
    b, c = random(B, n, T), random(B, n, T, seed=6)
    expected, final = selective(u, delta, A, b, c, D, z, bias, torch.zeros(B, channels, n))
    out, state = selective_scan_interface.selective_scan_fn(
        u, delta, A, b, c, D, z, bias, delta_softplus=True, return_last_state=True)
    same(out, expected)
    same(state, final)
    pool, slots = torch.zeros(3, channels, n), torch.tensor([2, 0])
    for t in range(T):
        out = selective_state_update(pool, u[:, :, t], delta[:, :, t], A, b[:, :, t], c[:, :, t],
                                     D, z[:, :, t], bias, dt_softplus=True,
                                     state_batch_indices=slots)
        same(out, expected[:, :, t])
    same(pool[slots], final)
    assert not pool[1].any()
    with pytest.raises(NotImplementedError, match="dt_rms_weight has 6 channels"):
        selective_scan_interface.mamba_inner_fn(
            torch.cat([u, z], 1), random(channels, 1, 4), None, random(2 + 2 * n, channels),
            random(channels, 2), random(5, channels), None, A, dt_rms_weight=torch.ones(channels))
    constant = selective_scan_interface.selective_scan_fn(
        u, delta, A, random(channels, n), c, delta_bias=bias, delta_softplus=True)
    assert constant.shape == u.shape


def ssd(x, dt, A, b, c, D, bias, state):
    """(out, state (batch, heads, head_dim, n)) of Mamba-2, B and C shared by pairs of heads."""
    steps = functional.softplus(dt.double() + bias.double())
    b, c = (y.double().repeat_interleave(2, 2) for y in (b, c))
    state, rows = state.double(), []
    for t in range(x.shape[1]):
        step = steps[:, t, :, None, None]
        state = (step * A[:, None, None]).exp() * state + step * x[:, t, :, :, None] * b[
            :, t, :, None]
        rows.append((state * c[:, t, :, None]).sum(-1) + D[:, None] * x[:, t])
    return torch.stack(rows, 1), state


def mamba2_arguments():
    return {"x": random(B, T, 4, 5), "dt": random(B, T, 4), "A": -random(4).exp(),
            "B": random(B, T, 2, 3), "C": random(B, T, 2, 3, seed=7)}, random(4, seed=8), random(
        4, seed=9)


def test_mamba2_and_its_step():
    given, D, bias = mamba2_arguments()
    states = random(B, 4, 5, 3)
    expected, final = ssd(*given.values(), D, bias, states)
    out, state = ssd_combined.mamba_chunk_scan_combined(
        **given, chunk_size=4, D=D, dt_bias=bias, initial_states=states, dt_softplus=True,
        return_final_states=True)
    same(out, expected)
    same(state, final)
    for dtype, bound in ((torch.float32, 1e-5), (torch.bfloat16, 3e-2)):
        pool, slots = torch.zeros(3, 4, 5, 3, dtype=dtype), torch.tensor([1, 2])
        pool[slots] = states.to(dtype)
        for t in range(T):
            out = selective_state_update(
                pool, given["x"][:, t], given["dt"][:, t, :, None].expand(-1, -1, 5),
                given["A"][:, None, None].expand(-1, 5, 3), given["B"][:, t], given["C"][:, t],
                D[:, None].expand(-1, 5), dt_bias=bias[:, None].expand(-1, 5), dt_softplus=True,
                state_batch_indices=slots)
            same(out, expected[:, t], bound)
        same(pool[slots], final, bound)
    seq_idx = torch.tensor([[0] * 4 + [1] * 7, [5] * T], dtype=torch.int32)
    out = ssd_combined.mamba_chunk_scan_combined(**given, chunk_size=4, D=D, dt_bias=bias,
                                                 seq_idx=seq_idx, dt_softplus=True)
    tail = {name: x[:1, 4:] if x.dim() > 1 else x for name, x in given.items()}
    same(out[:1, 4:], ssd(*tail.values(), D, bias, torch.zeros(1, 4, 5, 3))[0])


def test_steps_whose_channels_differ_in_a_head():
    given, D, bias = mamba2_arguments()
    pool, spread = random(B, 4, 5, 3), torch.rand(4, 5)
    tied, wide = pool.clone(), pool.clone()
    more = {"D": D[:, None].expand(-1, 5), "dt_softplus": True}
    row = [given[name][:, 0] for name in ("B", "C")]
    steps, rates = given["dt"][:, 0, :, None].expand(-1, -1, 5), given["A"][:, None, None]
    out = selective_state_update(tied, given["x"][:, 0], steps, rates.expand(-1, 5, 3), *row,
                                 **more)
    other = selective_state_update(wide, given["x"][:, 0], steps.contiguous(),
                                   rates.expand(-1, 5, 3).contiguous(), *row, **more)
    same(out, other)
    same(tied, wide)
    changed = selective_state_update(wide, given["x"][:, 0], steps + spread,
                                     rates.expand(-1, 5, 3), *row, **more)
    assert (changed != other).any()


def fla_core(path):
    """Text of a file of fla-core, whose package of the same name is not imported."""
    try:
        files = importlib.metadata.files("fla-core") or []
    except importlib.metadata.PackageNotFoundError:
        pytest.skip("fla-core is not installed")
    return next(file for file in files if str(file) == f"fla/{path}").locate()


def loop_of_fla(path, name):
    """A function of one of its files that need PyTorch and einops alone."""
    if importlib.util.find_spec("einops") is None:
        pytest.skip("einops is not installed")
    spec = importlib.util.spec_from_file_location("loops_of_fla", fla_core(path))
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return getattr(module, name)


def test_second_witness():
    """flash-linear-attention's own loops."""
    q, k, v = qkv()
    g, gk, beta = log_decays(B, T, H), log_decays(B, T, H, K), random(B, T, H).sigmoid()
    state = random(B, H, K, V)
    more = {"initial_state": state, "output_final_state": True}
    pairs = [
        (fla.ops.chunk_simple_gla(q, k, v, g, **more),
         loop_of_fla("ops/simple_gla/naive.py", "naive_recurrent_simple_gla")(q, k, v, g, **more)),
        (fla.ops.chunk_gla(q, k, v, gk, **more),
         loop_of_fla("ops/gla/naive.py", "naive_recurrent_gla")(q, k, v, gk, **more)),
        (fla.ops.chunk_gated_delta_rule(q, k, v, g, beta, **more),
         loop_of_fla("ops/gated_delta_rule/naive.py", "naive_recurrent_gated_delta_rule")(
             q, k, v, beta, g, **more)),
        (fla.ops.chunk_kda(q, k, v, gk, beta, **more),
         loop_of_fla("ops/kda/naive.py", "naive_recurrent_kda")(q, k, v, gk, beta, **more)),
        (fla.ops.chunk_linear_attn(q, k, v, normalize=False, **more),
         loop_of_fla("ops/linear_attn/naive.py", "naive_recurrent_linear_attn")(q, k, v, **more)),
        (fla.ops.chunk_retention(q, k, v),
         (loop_of_fla("ops/retention/naive.py", "naive_retention")(
             *(x.transpose(1, 2) for x in (q, k, v))).transpose(1, 2), None)),
    ]
    for found, expected in pairs:
        same(found[0], expected[0], 1e-4)
        if expected[1] is not None:
            same(found[1], expected[1], 1e-4)


@pytest.mark.parametrize("name", [name for name in fla.ops.__all__])
def test_signature_is_that_of_fla(name):
    """Names, order and defaults of arguments, read from its text."""
    function = getattr(fla.ops, name)
    module = inspect.unwrap(function).__module__.partition("fla.ops.")[2]
    folder = fla_core(f"ops/{module}/__init__.py").parent
    wanted = function.__name__
    for path in sorted(folder.rglob("*.py")):
        if "backends" in path.parts:
            continue
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.FunctionDef) and node.name == wanted:
                arguments = node.args
                assert not arguments.kwonlyargs
                found = [(parameter.name, parameter.default) for parameter in
                         inspect.signature(function).parameters.values()
                         if parameter.kind is not parameter.VAR_KEYWORD]
                values = [inspect.Parameter.empty] * (
                    len(arguments.args) - len(arguments.defaults)) + [
                    ast.literal_eval(value) for value in arguments.defaults]
                assert found == list(zip([entry.arg for entry in arguments.args], values))
                return
    pytest.fail(f"fla-core has no {wanted} in {module}")
