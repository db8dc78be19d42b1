# SPDX-License-Identifier: Apache-2.0
"""flashtile.torch.layers: each layer by loops in double; caches, padding, packed sequences; names
of parameters, which are those of flash-linear-attention 0.6."""

import math

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
from linear_loops import delta, loop, normalised, same  # noqa: E402
from torch.nn import functional  # noqa: E402

from flashtile.torch import _rows, layers  # noqa: E402

SILU = functional.silu
CONVS = {"q_conv1d.weight", "k_conv1d.weight", "v_conv1d.weight"}
QKVO = {"q_proj.weight", "k_proj.weight", "v_proj.weight", "o_proj.weight"}
CASES = {
    "DeltaNet": ({"num_heads": 2, "use_gate": True},
                 QKVO | CONVS | {"b_proj.weight", "g_proj.weight", "o_norm.weight"}),
    "GatedDeltaNet": ({"head_dim": 8, "num_heads": 2, "num_v_heads": 4, "allow_neg_eigval": True},
                      QKVO | CONVS | {"a_proj.weight", "b_proj.weight", "g_proj.weight", "A_log",
                                      "dt_bias", "o_norm.weight"}),
    "KimiDeltaAttention": ({"head_dim": 8, "num_heads": 2, "num_v_heads": 4},
                           QKVO | CONVS | {"f_proj.0.weight", "f_proj.1.weight", "b_proj.weight",
                                           "A_log", "dt_bias", "g_proj.0.weight",
                                           "g_proj.1.weight", "g_proj.1.bias", "o_norm.weight"}),
    "GatedLinearAttention": ({"num_heads": 4, "num_kv_heads": 2, "use_short_conv": True},
                             QKVO | CONVS | {"gk_proj.0.weight", "gk_proj.1.weight",
                                             "gk_proj.1.bias", "g_proj.weight",
                                             "g_norm_swish_gate.weight"}),
    "MultiScaleRetention": ({"num_heads": 4, "num_kv_heads": 2},
                            QKVO | {"g_proj.weight", "g_norm_swish_gate.weight"}),
    "SimpleGatedLinearAttention": ({"num_heads": 4, "num_kv_heads": 2},
                                   QKVO | CONVS | {"gk_proj.weight", "gk_proj.bias",
                                                   "g_proj.weight", "g_norm_swish_gate.weight"}),
    "LinearAttention": ({"num_heads": 4, "num_kv_heads": 2, "norm_q": True,
                         "tie_feature_map_qk": True},
                        QKVO | {"norm.weight", *(f"feature_map_{side}.layer{n}.{part}"
                                                 for side in "qk" for n in (1, 2)
                                                 for part in ("weight", "bias"))}),
    "GatedSlotAttention": ({"num_heads": 4, "num_kv_heads": 2, "num_slots": 6,
                            "use_short_conv": True, "feature_map": "t2r"},
                           QKVO | CONVS | {"f_proj.weight", "g_norm.weight",
                                           "feature_map.layer.weight"}),
    "HGRNAttention": ({"expand_ratio": 2, "use_short_conv": True},
                      {*(f"{name}_proj.weight" for name in "ifgo"), "g_norm.weight",
                       "i_conv1d.weight", "f_conv1d.weight"}),
    "HGRN2Attention": ({"expand_ratio": 8, "use_short_conv": True},
                       {*(f"{name}_proj.weight" for name in "qfio"), "g_norm.weight",
                        *(f"{name}_conv1d.weight" for name in "qfi")}),
    "Mamba": ({"intermediate_size": 48, "state_size": 6, "dt_rank": 5},
              {"in_proj.weight", "conv1d.weight", "conv1d.bias", "x_proj.weight", "dt_proj.weight",
               "dt_proj.bias", "A_log", "D", "out_proj.weight"}),
    "Mamba2": ({"head_dim": 8, "state_size": 6, "n_groups": 2},
               {"in_proj.weight", "conv1d.weight", "conv1d.bias", "dt_bias", "A_log", "D",
                "norm.weight", "out_proj.weight"}),
    "RWKV6Attention": ({"num_heads": 2, "proj_low_rank_dim": 4, "gate_low_rank_dim": 6}, {
        "x_proj.0.linear.weight", "x_proj.0.mu", "x_proj.2.weight", "x_bias", "bonus",
        *(f"{name}_proj.linear.weight" for name in "rkvg"), "w_proj.linear.lora.0.weight",
        "w_proj.linear.lora.2.weight", "w_proj.linear.lora.2.bias", "g_norm.weight",
        "g_norm.bias", "o_proj.weight"}),
    "RWKV7Attention": ({"head_dim": 8}, {
        *(f"x_{name}" for name in "rwkvag"), "k_k", "k_a", "r_k", "r_proj.weight", "k_proj.weight",
        "v_proj.weight", "o_proj.weight", "g_norm.weight", "g_norm.bias", "g_lora.lora.0.weight",
        "g_lora.lora.2.weight", *(f"{name}_lora.lora.{part}" for name in "wav"
                                  for part in ("0.weight", "2.weight", "2.bias"))}),
}


def make(name, **more):
    torch.manual_seed(1)
    layer = getattr(layers, name)(hidden_size=32, layer_idx=1, **{**CASES[name][0], **more})
    with torch.no_grad():
        for parameter in layer.parameters():  # what begins as 0 is to matter, too
            if parameter.dim() == 3 or not parameter.any():
                parameter.normal_(std=0.3)
    return layer


def hidden(seqlen=9):
    return torch.randn(2, seqlen, 32, generator=torch.Generator().manual_seed(2))


def more_of(name, seqlen=9):
    """What a layer takes besides hidden states, by row."""
    return {"v_first": hidden(seqlen) * 0.5} if name == "RWKV7Attention" else {}


def rows_of(more, *index):
    return {key: value[index] for key, value in more.items()}


@pytest.mark.parametrize("name", CASES)
def test_parameters_have_their_names_and_gradients(name):
    layer = make(name)
    assert set(layer.state_dict()) == CASES[name][1]
    layer(hidden(), **more_of(name))[0].square().sum().backward()
    for key, parameter in layer.named_parameters():
        assert parameter.grad is not None and parameter.grad.any(), key


@pytest.mark.parametrize("name", CASES)
def test_token_by_token_is_the_whole(name):
    layer, more = make(name), more_of(name)
    expected = layer(hidden(), **more)[0]
    cache, outs = layers.LayerCache(), []
    with torch.no_grad():
        for part in (slice(0, 4), *(slice(t, t + 1) for t in range(4, 9))):
            outs.append(layer(hidden()[:, part], past_key_values=cache, use_cache=True,
                              **rows_of(more, slice(None), part))[0])
    same(torch.cat(outs, 1), expected)
    assert cache.get_seq_length(1) == 9


@pytest.mark.parametrize("name", CASES)
def test_padding_and_packed_sequences(name):
    """What stands left of a sequence, or beside it, changes nothing; nor what follows a cache."""
    layer, more = make(name), more_of(name)
    whole = layer(hidden(), **more)[0]
    alone = layer(hidden()[:1, 3:], **rows_of(more, slice(0, 1), slice(3, None)))[0]
    mask = torch.ones(2, 9, dtype=torch.long)
    mask[0, :3] = 0
    out = layer(hidden(), attention_mask=mask, **more)[0]
    same(out[:1, 3:], alone)
    same(out[1:], whole[1:])
    assert not out[0, :3].any()
    cache = layers.LayerCache()
    with torch.no_grad():
        layer(hidden()[:, :7], attention_mask=mask[:, :7], past_key_values=cache, use_cache=True,
              **rows_of(more, slice(None), slice(0, 7)))
        for t in (7, 8):
            out = layer(hidden()[:, t:t + 1], attention_mask=mask[:, :t + 1],
                        past_key_values=cache, use_cache=True,
                        **rows_of(more, slice(None), slice(t, t + 1)))[0]
            same(out[0, 0], alone[0, t - 3])
            same(out[1, 0], whole[1, t])
    packed = torch.cat([hidden()[:1, 3:], hidden()[1:]], 1)
    more = {key: torch.cat([value[:1, 3:], value[1:]], 1) for key, value in more.items()}
    out = layer(packed, cu_seqlens=torch.tensor([0, 6, 15]), **more)[0]
    same(out[:, :6], alone)
    same(out[:, 6:], whole[1:])


def conv(layer, name, x, activation=SILU):
    weight = getattr(layer, f"{name}_conv1d").weight.double()
    x = functional.pad(x.transpose(1, 2), (weight.shape[2] - 1, 0))
    return activation(functional.conv1d(x, weight, groups=weight.shape[0])).transpose(1, 2)


def rms(x, weight, eps=1e-5):
    return x * (x.square().mean(-1, keepdim=True) + eps).rsqrt() * weight


def split(x, size):
    return x.unflatten(-1, (-1, size))


def by_hand(name, layer, x):
    """The layer's output from its parameters, in double."""
    q, k, v = (getattr(layer, f"{part}_proj")(x) for part in "qkv")
    if layer.use_short_conv:
        q, k, v = (conv(layer, part, y) for part, y in zip("qkv", (q, k, v)))
    q, k, v = split(q, layer.head_k_dim), split(k, layer.head_k_dim), split(v, layer.head_v_dim)
    if name in ("DeltaNet", "GatedDeltaNet", "KimiDeltaAttention"):
        q, k = normalised(q), normalised(k)
        q, k = (y.repeat_interleave(v.shape[2] // y.shape[2], 2) for y in (q, k))
        beta = layer.b_proj(x).sigmoid() * (2 if layer.allow_neg_eigval else 1)
        g = None
        if name == "GatedDeltaNet":
            g = -layer.A_log.exp() * functional.softplus(layer.a_proj(x) + layer.dt_bias)
        elif name == "KimiDeltaAttention":
            g = -layer.A_log.exp()[:, None] * functional.softplus(
                split(layer.f_proj(x) + layer.dt_bias, layer.head_k_dim))
        out, _ = delta(q, k, v, beta, g)
        gate = split(layer.g_proj(x), layer.head_v_dim)
        gate = gate.sigmoid() if name == "KimiDeltaAttention" else SILU(gate)
        return layer.o_proj((rms(out, layer.o_norm.weight) * gate).flatten(-2))
    group = q.shape[2] // k.shape[2]
    if name == "GatedLinearAttention":
        g = functional.logsigmoid(split(layer.gk_proj(x), layer.head_k_dim)) / 16
    elif name == "SimpleGatedLinearAttention":
        g = functional.logsigmoid(layer.gk_proj(x))[..., None] / 16
    else:
        g = torch.log(1 - 2.0 ** (-5 - torch.arange(4.0).double())).expand(*x.shape[:2], 4)[
            ..., None]
        half = layer.head_k_dim // 2
        angles = torch.arange(x.shape[1]).double()[:, None] * 10000.0 ** -(
            torch.arange(half).double() / half)
        turn = torch.polar(torch.ones_like(angles), angles)[None, :, None]
        q, k = (torch.complex(y[..., :half], y[..., half:]) * turn for y in (q, k))
        q, k = (torch.cat([y.real, y.imag], -1) for y in (q, k))
    k, v = k.repeat_interleave(group, 2), v.repeat_interleave(group, 2)
    g = g.repeat_interleave(k.shape[2] // g.shape[2], 2)
    out, _ = loop(q, k, v, g)
    gate = SILU(split(layer.g_proj(x), layer.head_v_dim))
    return layer.o_proj((rms(out, layer.g_norm_swish_gate.weight) * gate).flatten(-2))


@pytest.mark.parametrize("name", ["DeltaNet", "GatedDeltaNet", "KimiDeltaAttention",
                                  "GatedLinearAttention", "SimpleGatedLinearAttention",
                                  "MultiScaleRetention"])
def test_by_hand(name):
    layer = make(name)
    found = layer(hidden())[0]
    same(found, by_hand(name, layer.double(), hidden().double()), 2e-5)


@pytest.mark.parametrize("is_normalised", [False, True])
def test_linear_attention_by_hand(is_normalised):
    # Mapped keys that are not positive may leave nothing to divide by.
    more = {"feature_map": "elu"} if is_normalised else {}
    layer = make("LinearAttention", do_feature_map_norm=is_normalised, **more)
    found = layer(hidden())[0]
    layer, x = layer.double(), hidden().double()
    q, k, v = (split(getattr(layer, f"{name}_proj")(x), 8) for name in "qkv")
    if is_normalised:
        q, k = functional.elu(q) + 1, functional.elu(k) + 1
    else:
        one, two = layer.feature_map_q.layer1, layer.feature_map_q.layer2
        q, k = one(q) * two(q), one(k) * two(k)
    q = q / (q.sum(-1, keepdim=True) + 1e-4)
    k, v = k.repeat_interleave(2, 2), v.repeat_interleave(2, 2)
    out, _ = loop(q, k, v)
    if is_normalised:
        out = out / (loop(q, k, torch.ones_like(v[..., :1]))[0] + 1e-10)
    same(found, layer.o_proj(rms(out, layer.norm.weight).flatten(-2)), 2e-5)


def test_slots_by_hand():
    layer = make("GatedSlotAttention")
    found = layer(hidden())[0]
    layer, x = layer.double(), hidden().double()
    q, k, v = (split(conv(layer, name, getattr(layer, f"{name}_proj")(x)), 8) for name in "qkv")
    q, k = (functional.relu(layer.feature_map.layer(y)) for y in (q, k))
    g = functional.logsigmoid(split(layer.f_proj(x), 6)) / 8
    k, v, g = (y.repeat_interleave(2, 2) for y in (k, SILU(v), g))
    keys, values = torch.zeros(2, 4, 8, 6).double(), torch.zeros(2, 4, 6, 8).double()
    outs = []
    for t in range(x.shape[1]):
        decay, s = g[:, t].exp(), 1 - g[:, t].exp()
        keys = keys * decay[:, :, None] + k[:, t, :, :, None] * s[:, :, None]
        values = values * decay[..., None] + s[..., None] * v[:, t, :, None]
        weights = torch.einsum("bhkm,bhk->bhm", keys, q[:, t]).softmax(-1)
        outs.append(torch.einsum("bhmv,bhm->bhv", values, weights).flatten(-2))
    out = rms(SILU(torch.stack(outs, 1)), layer.g_norm.weight)
    same(found, layer.o_proj(out), 2e-5)


@pytest.mark.parametrize("name", ["HGRNAttention", "HGRN2Attention"])
@pytest.mark.parametrize("is_bounded", [False, True])
def test_hgrn_by_hand(name, is_bounded):
    layer = make(name)
    bound = torch.linspace(0.1, 0.8, layer.f_proj.out_features) if is_bounded else None
    found = layer(hidden(), lower_bound=bound)[0]
    layer, x = layer.double(), hidden().double()
    parts = {part: conv(layer, part, getattr(layer, f"{part}_proj")(x), lambda y: y)
             for part in layer.projections}
    kept = parts["f"].sigmoid()
    if is_bounded:
        kept = bound.double() + (1 - bound.double()) * kept
    if name == "HGRN2Attention":
        out, _ = loop(split(SILU(parts["q"]), 8), split(1 - kept, 8), split(parts["i"], 8),
                      split(kept.log(), 8))
        out = rms(out.flatten(-2), layer.g_norm.weight)
    else:
        state, rows = 0, []
        for t in range(x.shape[1]):
            state = kept[:, t] * state + SILU(parts["i"][:, t]) * (1 - kept[:, t])
            rows.append(state)
        out = rms(torch.stack(rows, 1), layer.g_norm.weight) * SILU(layer.g_proj(x))
    same(found, layer.o_proj(out), 2e-5)


def test_mamba_by_hand():
    layer = make("Mamba")
    found = layer(hidden())[0]
    layer, x = layer.double(), hidden().double()
    u, gate = layer.in_proj(x).split(48, -1)
    u = functional.pad(u.transpose(1, 2), (3, 0))
    u = SILU(functional.conv1d(u, layer.conv1d.weight, layer.conv1d.bias,
                               groups=48)).transpose(1, 2)
    steps, B, C = layer.x_proj(u).split([5, 6, 6], -1)
    steps = functional.softplus(layer.dt_proj(steps))
    state, rows = torch.zeros(2, 48, 6).double(), []
    for t in range(x.shape[1]):
        step = steps[:, t, :, None]
        state = (-step * layer.A_log.exp()).exp() * state + step * u[:, t, :, None] * B[:, t, None]
        rows.append((state * C[:, t, None]).sum(-1) + layer.D * u[:, t])
    same(found, layer.out_proj(torch.stack(rows, 1) * SILU(gate)), 2e-5)


def test_new_weights_of_mamba():
    """Step sizes of a row of zeros are between the limits, even in their logarithms."""
    torch.manual_seed(1)
    layer = layers.Mamba(hidden_size=32, intermediate_size=4000, dt_min=0.01, dt_max=0.2)
    steps = functional.softplus(layer.dt_proj.bias)
    assert 0.01 * (1 - 1e-5) <= steps.min() <= 0.0102
    assert 0.196 <= steps.max() <= 0.2 * (1 + 1e-5)
    assert abs(steps.log().mean().exp() / (0.01 * 0.2) ** 0.5 - 1) < 0.05
    assert layer.dt_rank == 2
    same(layer.A_log.exp(), torch.arange(1.0, 17.0).expand(4000, 16))
    fixed = layers.Mamba(hidden_size=32, intermediate_size=8, dt_init="constant", dt_scale=3.0)
    same(fixed.dt_proj.weight, torch.full((8, 2), 3 / 2 ** 0.5))


def test_rwkv6_by_hand():
    layer = make("RWKV6Attention")
    found = layer(hidden())[0]
    layer, x = layer.double(), hidden().double()
    delta_x = functional.pad(x, (0, 0, 1, -1)) - x
    first, _, last = layer.x_proj
    narrow = torch.tanh(first.linear(x + delta_x * first.mu))
    drawn = {}
    for n, name in enumerate("rwkvg"):
        rank = slice(4 * n, 4 * n + 4)
        mixing = narrow[..., rank] @ last.weight[:, rank].T + layer.x_bias[n]
        drawn[name] = x + delta_x * mixing
    r, k, v, g = (drawn[name] @ getattr(layer, f"{name}_proj").linear.weight.T for name in "rkvg")
    down, _, up = layer.w_proj.linear.lora
    w = -(torch.tanh(down(drawn["w"])) @ up.weight.T + up.bias).exp()
    out, _ = loop(split(r, 8), split(k, 8), split(v, 16), split(w, 8), scale=1, bonus=layer.bonus)
    normed = functional.group_norm(out.flatten(0, 1).flatten(-2), 2, layer.g_norm.weight,
                                   layer.g_norm.bias, 1e-5).reshape(x.shape)
    same(found, layer.o_proj(normed * SILU(g)), 2e-5)


def test_rwkv7_by_hand():
    layer, first = make("RWKV7Attention"), more_of("RWKV7Attention")["v_first"]
    found, _, _, returned = layer(hidden(), v_first=first)
    assert returned is first
    layer, x, first = layer.double(), hidden().double(), first.double()
    delta_x = functional.pad(x, (0, 0, 1, -1)) - x
    mixed = {name: x + delta_x * getattr(layer, f"x_{name}") for name in "rwkvag"}
    r, k, v = layer.r_proj(mixed["r"]), layer.k_proj(mixed["k"]), layer.v_proj(mixed["v"])
    w = -torch.exp(torch.tensor(-0.5).double()) * layer.w_lora(mixed["w"]).sigmoid()
    v = v + (first - v) * layer.v_lora(mixed["v"]).sigmoid()
    a = layer.a_lora(mixed["a"]).sigmoid()
    kk = functional.normalize(split(k * layer.k_k, 8), dim=-1)
    k = k * (1 + (a - 1) * layer.k_a)
    r, k, w, a, v = (split(y, 8) for y in (r, k, w, a, v))
    out, _ = loop(r, k, v, w, -kk, kk * a, scale=1)
    normed = functional.group_norm(out.flatten(0, 1).flatten(-2), 4, layer.g_norm.weight,
                                   layer.g_norm.bias, 8e-5).reshape(x.shape)
    own = ((r * k * layer.r_k).sum(-1, keepdim=True) * v).flatten(-2)
    same(found, layer.o_proj((normed + own) * layer.g_lora(mixed["g"])), 2e-5)


@pytest.mark.parametrize("activation", ["relu", "elu", "identity"])
def test_delta_net_options(activation):
    layer = make("DeltaNet", qk_activation=activation, qk_norm="sum", use_gate=False,
                 use_beta=False, use_short_conv=False)
    found = layer(hidden())[0]
    layer, x = layer.double(), hidden().double()
    change = {"relu": functional.relu, "elu": lambda y: functional.elu(y) + 1,
              "identity": lambda y: y}[activation]
    q, k = (change(split(getattr(layer, f"{part}_proj")(x), 16)) for part in "qk")
    q, k = (y / y.sum(-1, keepdim=True) for y in (q, k))
    out, _ = delta(q, k, split(SILU(layer.v_proj(x)), 16), torch.ones(2, 9, 2))
    expected = layer.o_proj(rms(out, layer.o_norm.weight).flatten(-2))
    if activation == "identity":  # sums near 0 make rows that grow
        assert torch.isfinite(found).all() == torch.isfinite(expected).all()
    else:
        same(found, expected, 2e-5)


def test_kda_with_a_bound_and_bf16():
    layer = make("KimiDeltaAttention", lower_bound=-5.0, safe_gate=True)
    expected = layer(hidden())[0]
    found = layer.bfloat16()(hidden().bfloat16())[0]
    assert found.dtype == torch.bfloat16
    same(found, expected, 0.05)
    with torch.autocast("cpu", torch.bfloat16):
        same(layer.float()(hidden())[0], expected, 0.05)


def test_modules():
    x, gate, residual = hidden(), hidden() * 2, hidden() * 3
    norm = layers.FusedRMSNormGated(32, activation="sigmoid")
    out, total = norm(x, gate, residual=residual, prenorm=True, residual_in_fp32=True)
    same(total, x + residual)
    same(out, rms(total.double(), 1) * gate.double().sigmoid())
    same(layers.RMSNorm(32, elementwise_affine=False)(x), rms(x.double(), 1))
    short = layers.ShortConvolution(32, 3, bias=True, activation=None)
    mask = torch.tensor([[1] * 9, [0, 0] + [1] * 7])
    out, cache = short(x, residual=residual, mask=mask, output_final_state=True)
    masked = (x * mask[..., None]).transpose(1, 2)
    expected = functional.conv1d(functional.pad(masked, (2, 0)), short.weight, short.bias,
                                 groups=32).transpose(1, 2) + residual
    same(out, expected)
    same(cache, masked[..., -3:])


def test_refused():
    layer = layers.GatedDeltaNet(hidden_size=32, head_dim=8, num_heads=2)
    with pytest.raises(ValueError, match="past_key_values is given, but layer_idx was not"):
        layer(hidden(), past_key_values=layers.LayerCache())
    with pytest.raises(ValueError, match="attention_mask has 3 dimensions, expected"):
        layer(hidden(), attention_mask=torch.ones(2, 9, 9))
    with pytest.raises(ValueError, match="head_dim \\* expand_v is 10.5, expected a whole number"):
        layers.GatedDeltaNet(hidden_size=32, head_dim=7, expand_v=1.5, num_heads=2)
    with pytest.raises(ValueError, match="gate_fn is 'tan', expected one of"):
        layers.GatedLinearAttention(hidden_size=32, gate_fn="tan")
    with pytest.raises(ValueError, match="gate_fn is 'tan', expected one of"):
        layers.RWKV6Attention(hidden_size=32, gate_fn="tan")
    with pytest.raises(ValueError, match="hidden_act is 'relu', expected 'silu'"):
        layers.Mamba(hidden_size=32, hidden_act="relu")
    with pytest.raises(ValueError, match="dt_init is 'zero', expected 'random' or 'constant'"):
        layers.Mamba(hidden_size=32, dt_init="zero")
    with pytest.raises(ValueError, match="v_first is not given, expected that of layer 0"):
        make("RWKV7Attention")(hidden())


@pytest.mark.parametrize("heads", [(8,), (4, 32)])
@pytest.mark.parametrize("options", [{}, {"divisor": 16.0}, {"lower_bound": -5.0}])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_many_log_decays_are_those_of_few(heads, options, dtype):
    generator = torch.Generator().manual_seed(0)
    make = lambda *shape: torch.randn(shape, generator=generator)
    x = make(2, _rows._GATE_NUMBERS // 2 // math.prod(heads), *heads).to(dtype)
    A_log = None if "divisor" in options else make(heads[0])
    given = {"x": x, "A_log": A_log, "bias": make(math.prod(heads))}
    weights = make(*x.shape)

    def run(to):
        leaves = {name: to(tensor).requires_grad_() for name, tensor in given.items()
                  if tensor is not None}
        out = _rows.log_decay(leaves["x"], leaves.get("A_log"), leaves["bias"], **options)
        return out, torch.autograd.grad((out * weights).sum(), list(leaves.values()))

    out, gradients = run(lambda tensor: tensor.clone())
    exact, exact_gradients = run(lambda tensor: tensor.double())  # plain PyTorch
    assert out.dtype == torch.float32
    torch.testing.assert_close(out.double(), exact, rtol=1e-5, atol=1e-5)
    for found, wanted in zip(gradients, exact_gradients):
        rounding = 1e-5 if found.dtype == torch.float32 else 2**-8
        torch.testing.assert_close(found.double(), wanted, rtol=rounding,
                                   atol=rounding * wanted.abs().max().item())
