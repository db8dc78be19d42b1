# SPDX-License-Identifier: Apache-2.0
"""flashtile on PyTorch's tensors and flashtile.torch, against PyTorch."""

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

import flashtile.torch as ft  # noqa: E402
from torch.nn import functional  # noqa: E402
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402

import flashtile  # noqa: E402

DEVICES = ["cpu"] + (["cuda"] if torch.cuda.is_available() else [])


def qkv(device="cpu", dtype=torch.float32, requires_grad=False):
    torch.manual_seed(1)
    shapes = (2, 33, 4, 16), (2, 40, 2, 16), (2, 40, 2, 16)
    return [torch.randn(shape).to(device, dtype).requires_grad_(requires_grad) for shape in shapes]


def by_torch(q, k, v, **options):
    return functional.scaled_dot_product_attention(
        *(x.transpose(1, 2) for x in (q, k, v)), enable_gqa=True, **options).transpose(1, 2)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype, tolerance", [(torch.float32, 2e-6), (torch.bfloat16, 2e-2)])
def test_without_gradients(device, dtype, tolerance):
    q, k, v = qkv(device, dtype)
    if device == "cuda" and dtype == torch.float32:
        tolerance = 5e-3  # both may round operands to tf32
    out, lse = flashtile.attention(q, k, v, return_lse=True)
    assert isinstance(out, torch.Tensor) and out.dtype == dtype and out.device == q.device
    assert lse.dtype == torch.float32 and lse.shape == (2, 4, 33)
    assert (out - by_torch(q, k, v)).abs().max() < tolerance
    given = torch.empty_like(out)
    assert flashtile.attention(q, k, v, out=given) is given and torch.equal(given, out)


def test_a_gradient_is_never_lost():
    q, k, v = qkv(requires_grad=True)
    with pytest.raises(ValueError, match="flashtile.torch"):
        flashtile.attention(q, k, v)
    with torch.no_grad():
        assert not flashtile.attention(q, k, v).requires_grad


@pytest.mark.parametrize("device", DEVICES)
def test_gradients_are_torchs(device):
    dtype = torch.float32 if device == "cpu" else torch.bfloat16
    q, k, v = qkv(device, dtype, requires_grad=True)
    bias = torch.randn(1, 4, 33, 40, device=device, dtype=dtype, requires_grad=True)
    out = ft.attention(q, k, v, bias=bias)
    expected = by_torch(q, k, v, attn_mask=bias)
    dout = torch.randn_like(out)
    tolerance = 5e-6 if device == "cpu" else 6e-2
    inputs = (q, k, v) if device == "cuda" else (q, k, v, bias)
    for found, right in zip(torch.autograd.grad(out, inputs, dout),
                            torch.autograd.grad(expected, inputs, dout)):
        assert found.shape == right.shape and (found - right).abs().max() < tolerance


def double(*shape):
    return torch.randn(shape, dtype=torch.float64, requires_grad=True)


def test_gradcheck():
    torch.manual_seed(2)
    q, k, v, bias = double(1, 5, 2, 3), double(1, 6, 1, 3), double(1, 6, 1, 4), double(1, 2, 5, 6)
    options = dict(causal=True, softcap=3.0, return_lse=True)
    assert torch.autograd.gradcheck(
        lambda q, k, v, bias: ft.attention(q, k, v, bias=bias, **options), (q, k, v, bias))
    starts = torch.tensor([0, 2, 5], dtype=torch.int32)
    assert torch.autograd.gradcheck(
        lambda q, k, v: ft.attention(q[0], k[0, :5], v[0, :5], cu_seqlens_q=starts,
                                     cu_seqlens_k=starts), (q, k, v))


def test_gradients_of_float32_inputs():
    # Sinks, slopes and aux tensors are float32 also where the rest is double.
    torch.manual_seed(3)
    q, k, v = (x.detach() for x in (double(1, 5, 2, 3), double(1, 6, 1, 3), double(1, 6, 1, 4)))
    inputs = [torch.tensor([0.5, -1.0]), torch.tensor([0.25, 0.5]), torch.randn(2, 6)]
    dout = torch.randn(1, 5, 2, 4, dtype=torch.float64)

    def loss(sink, slopes, table):
        out = ft.attention(q, k, v, sink=sink, alibi_slopes=slopes, aux={"t": table},
                           score="score + t[head, k_idx] * t[head, k_idx]")
        return (out * dout).sum()

    wanted = torch.autograd.grad(loss(*[x.requires_grad_() for x in inputs]), inputs)
    for x, gradient in zip(inputs, wanted):
        assert gradient.shape == x.shape and gradient.dtype == torch.float32
        for place in range(x.numel()):
            values, places = [], []
            for step in (2**-11, -(2**-11)):
                moved = x.detach().clone()
                moved.view(-1)[place] += step
                places.append(moved.view(-1)[place].item())
                values.append(loss(*[moved if y is x else y.detach() for y in inputs]).item())
            slope = (values[0] - values[1]) / (places[0] - places[1])
            assert abs(slope - gradient.view(-1)[place].item()) < 1e-4


class Recorder(TorchDispatchMode):
    """Keeps the arguments of our ops."""

    def __init__(self):
        super().__init__()
        self.calls = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if "flashtile" in str(func):
            self.calls.append((func, args))
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("options", [
    dict(causal=True, window=(5, None)),
    dict(score="score + t[k_idx] * param.x", aux={"t": torch.ones(40)}, params={"x": 0.5}),
    dict(dropout_p=0.5),
])
def test_opcheck(options):
    q, k, v = qkv()
    with Recorder() as recorder:
        ft.attention(q, k, v, **options)
    (func, args), = recorder.calls
    inputs = tuple(x.clone().requires_grad_() if position < 3 else x
                   for position, x in enumerate(args))
    passed = torch.library.opcheck(func, inputs)
    assert set(passed.values()) == {"SUCCESS"}
    with Recorder() as recorder:
        ft.attention(*[x.requires_grad_() for x in (q, k, v)], **options).sum().backward()
    func, args = recorder.calls[-1]
    assert "attention_bwd" in str(func)
    torch.library.opcheck(func, args, test_utils=("test_schema", "test_faketensor"))


@pytest.mark.parametrize("dynamic", [False, True])
def test_compile_in_one_graph(dynamic):
    text, _ = flashtile.trace(lambda s, b, h, i, j: s - 0.125 * abs(i - j))

    def layer(q, k, v, bias):
        return ft.attention(q * 2, k, v, causal=True, score=text, bias=bias).relu()

    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager", dynamic=dynamic)
    q, k, v = qkv(requires_grad=True)
    for length in (40, 31, 22):
        bias = torch.zeros(length, requires_grad=True)
        given = q[:, :length], k[:, :length], v[:, :length], bias.expand(1, 1, 1, length)
        found, right = compiled(*given), layer(*given)
        assert torch.equal(found, right)
        for a, b in zip(torch.autograd.grad(found.sum(), (q, k, v, bias)),
                        torch.autograd.grad(right.sum(), (q, k, v, bias))):
            assert torch.equal(a, b)


def test_export():
    class Layer(torch.nn.Module):
        def forward(self, q, k, v):
            return ft.attention(q, k, v, causal=True)

    q, k, v = qkv()
    exported = torch.export.export(Layer(), (q, k, v))
    assert torch.equal(exported.module()(q, k, v), Layer()(q, k, v))


def test_dropout_seeds():
    q, k, v = qkv()

    def drop(seed=None):
        return ft.attention(q, k, v, dropout_p=0.5, dropout_seed=seed)

    torch.manual_seed(4)
    first, second = drop(), drop()
    torch.manual_seed(4)
    assert torch.equal(drop(), first) and not torch.equal(first, second)
    assert torch.equal(drop(7), drop(torch.tensor([7])))
    compiled = torch.compile(drop, fullgraph=True, backend="aot_eager")
    assert not torch.equal(compiled(), compiled())


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")
@pytest.mark.parametrize("stored", [torch.int8, torch.float8_e4m3fn])
@pytest.mark.parametrize("seqlen_q", [1, 33])
def test_caches_of_8_bits(stored, seqlen_q):
    q, k, v = (x.detach() for x in qkv("cuda", torch.bfloat16))
    q = q[:, -seqlen_q:]
    scale = torch.tensor([0.03] * k.shape[2], device="cuda")
    codes = [(x.float() / 0.03).round().clamp(-127, 127).to(stored) for x in (k, v)]
    out = flashtile.attention(q, *codes, causal=True, k_scale=scale, v_scale=scale)
    wide = [x.float() * 0.03 for x in codes]
    expected = flashtile.attention(q.float(), *wide, causal=True)
    assert (out.float() - expected).abs().max() < 0.03


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")
def test_cuda_graphs():
    """A replay reads what its inputs have then, the dropout seed among them, and draws one anew."""
    q, k, v = qkv("cuda", torch.bfloat16, requires_grad=True)
    seed = torch.tensor([3], device="cuda")

    def step(seed, q=q, k=k, v=v):
        out = ft.attention(q, k, v, causal=True, dropout_p=0.5, dropout_seed=seed)
        return out, *torch.autograd.grad(out, (q, k, v), torch.ones_like(out))

    def of_sdpa(heads_first):
        return functional.scaled_dot_product_attention(*heads_first, dropout_p=0.5)

    with ft.sdpa():
        step(seed), of_sdpa([x.transpose(1, 2) for x in (q, q, q)])
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            given, drawn = step(seed), step(None)
            sdpa = of_sdpa([x.transpose(1, 2) for x in (q, q, q)])
    found = []
    for number in (3, 1 << 40 | 5):
        seed.fill_(number)
        graph.replay()
        for a, b in zip(given, step(number)):
            assert torch.allclose(a, b, atol=2e-2)
        assert torch.equal(given[0], step(number)[0])
        found.append([x.clone() for x in (*drawn, sdpa)])
    for a, b in zip(*found):
        assert not torch.equal(a, b)


def test_autocast():
    q, k, v = qkv()
    with torch.autocast("cpu", torch.bfloat16):
        out = ft.attention(q, k, v)
    assert out.dtype == torch.bfloat16
    assert torch.equal(out, ft.attention(q.bfloat16(), k.bfloat16(), v.bfloat16()))


def test_tensors_without_memory_are_named():
    q, k, v = qkv()
    with pytest.raises(ValueError, match="k has no memory that can be read: .*meta$"):
        flashtile.attention(q, k.to("meta"), v)


def test_a_window_is_a_pair_and_a_mask_no_tensor():
    q, k, v = qkv()
    with pytest.raises(TypeError, match="window is 3, expected .left, right"):
        ft.attention(q, k, v, window=3)
    with pytest.raises(TypeError, match="mask is a Tensor, .*aux={'seen': array}"):
        ft.attention(q, k, v, mask=torch.ones(q.shape[1], k.shape[1], dtype=torch.bool))


def test_calls_that_store_keys_are_elsewhere():
    q, k, v = qkv()
    with pytest.raises(TypeError, match="'k_new': .* are flashtile.attention's"):
        ft.attention(q, k, v, k_new=k, v_new=v)


def test_no_second_derivative():
    q, k, v = qkv(requires_grad=True)
    first, = torch.autograd.grad(ft.attention(q, k, v).square().sum(), q, create_graph=True)
    with pytest.raises(NotImplementedError, match="second derivatives"):
        first.sum().backward()


def heads_first(*shape):
    return torch.randn(*shape, requires_grad=True)


@pytest.mark.parametrize("shapes, options", [
    (((2, 4, 33, 16), (2, 4, 40, 16), (2, 4, 40, 8)), dict()),
    (((2, 4, 33, 16), (2, 4, 40, 16), (2, 4, 40, 8)), dict(is_causal=True)),
    (((2, 4, 33, 16), (2, 2, 40, 16), (2, 2, 40, 8)), dict(enable_gqa=True, scale=0.5)),
    (((2, 4, 33, 16), (2, 4, 40, 16), (2, 4, 40, 8)), dict(attn_mask=torch.rand(33, 40) > 0.3)),
    (((2, 4, 33, 16), (2, 4, 40, 16), (2, 4, 40, 8)), dict(attn_mask=torch.rand(2, 1, 33, 1))),
    (((4, 33, 16), (4, 40, 16), (4, 40, 8)), dict(is_causal=True)),
    (((33, 16), (40, 16), (40, 8)), dict(attn_mask=torch.rand(33, 40))),
    (((3, 2, 4, 9, 16), (3, 2, 4, 9, 16), (3, 2, 4, 9, 8)),
     dict(attn_mask=torch.rand(2, 1, 9, 9) > 0.3)),
])
def test_sdpa(shapes, options):
    torch.manual_seed(5)
    given = [heads_first(*shape) for shape in shapes]
    right = functional.scaled_dot_product_attention(*given, **options)
    with ft.sdpa(), Recorder() as recorder:
        found = functional.scaled_dot_product_attention(*given, **options)
    assert len(recorder.calls) == 1
    assert found.shape == right.shape and (found - right).abs().max() < 3e-6
    dout = torch.randn_like(right)
    for a, b in zip(torch.autograd.grad(found, given, dout),
                    torch.autograd.grad(right, given, dout)):
        assert (a - b).abs().max() < 1e-5


def test_sdpa_refuses():
    q = torch.randn(1, 2, 3, 4)
    with pytest.raises(ValueError, match="both given"):
        ft.scaled_dot_product_attention(q, q, q, attn_mask=torch.zeros(3, 3), is_causal=True)
    with pytest.raises(ValueError, match="without enable_gqa"):
        ft.scaled_dot_product_attention(q, q[:, :1], q[:, :1])


def test_sdpa_of_those_who_have_the_function():
    torch.manual_seed(6)
    q = torch.randn(1, 2, 9, 8)
    held = functional.scaled_dot_product_attention
    with ft.sdpa(), Recorder() as recorder:
        held(q, q, q)
    assert len(recorder.calls) == 1
    assert functional.scaled_dot_product_attention is held


def test_sdpa_in_a_module():
    torch.manual_seed(6)
    layer = torch.nn.TransformerEncoderLayer(32, 4, dropout=0.0, batch_first=True).train()
    x = torch.randn(2, 9, 32)
    right = layer(x)
    with ft.sdpa(), Recorder() as recorder:
        found = layer(x)
    assert recorder.calls and (found - right).abs().max() < 1e-5


def test_flex_attention():
    flex = pytest.importorskip("torch.nn.attention.flex_attention")
    torch.manual_seed(7)
    q, k, v = (torch.randn(2, 2, 64, 16) for _ in range(3))
    document = torch.arange(64) // 20
    table = torch.randn(2, 127)

    def score_mod(score, b, h, q_idx, kv_idx):
        return torch.where(q_idx - kv_idx > 8, torch.tanh(score), score) + \
            table[h, q_idx - kv_idx + 63]

    def mask_mod(b, h, q_idx, kv_idx):
        return (document[q_idx] == document[kv_idx]) & (q_idx >= kv_idx)

    block_mask = flex.create_block_mask(mask_mod, 2, 2, 64, 64, device="cpu")
    right = flex.flex_attention(q, k, v, score_mod, block_mask)
    for mask in (block_mask, mask_mod):
        assert (ft.flex_attention(q, k, v, score_mod, mask) - right).abs().max() < 3e-6
    table.requires_grad_()
    dense = torch.stack([table.detach()[h][torch.arange(64)[:, None] - torch.arange(64) + 63]
                         for h in range(2)]).requires_grad_()
    ft.flex_attention(q, k, v, score_mod, mask_mod)[..., 0].sum().backward()
    scores = q @ k.transpose(-1, -2) / 4
    i, j = torch.arange(64)[:, None], torch.arange(64)
    scores = torch.where(i - j > 8, torch.tanh(scores), scores) + dense
    scores = scores.masked_fill(~mask_mod(0, 0, i, j), -torch.inf)
    (torch.softmax(scores, -1) @ v)[..., 0].sum().backward()
    expected = torch.zeros(2, 127).index_add_(1, (i - j + 63).flatten(), dense.grad.flatten(1))
    assert (table.grad - expected).abs().max() < 1e-4


def test_block_masks_of_lists():
    flex = pytest.importorskip("torch.nn.attention.flex_attention")
    torch.manual_seed(7)
    q, k, v = (torch.randn(2, 2, 96, 16, requires_grad=True) for _ in range(3))
    # (2, 1, 3, 3): two blocks in the first row of blocks, none in the last one of sequence 1.
    counts = torch.tensor([[[2, 1, 1]], [[1, 2, 0]]], dtype=torch.int32)
    indices = torch.tensor([[[2, 0, 1], [1, 0, 2], [0, 1, 2]],
                            [[1, 0, 2], [0, 2, 1], [0, 1, 2]]], dtype=torch.int32)[:, None]
    full = (counts == 1).int(), torch.tensor([2, 0, 1], dtype=torch.int32).expand_as(indices)

    def causal(b, h, i, j):
        return flex.and_masks(lambda b, h, i, j: j <= i, lambda b, h, i, j: i < 90)(b, h, i, j)

    for lists, mask_mod in ((full, None), ((None, None), None), ((None, None), causal)):
        block_mask = flex.BlockMask.from_kv_blocks(counts, indices, *lists, BLOCK_SIZE=32,
                                                   mask_mod=mask_mod)
        listed = block_mask.to_dense() > 0
        seen = listed.repeat_interleave(32, -1).repeat_interleave(32, -2)
        if mask_mod:
            i, j = torch.arange(96)[:, None], torch.arange(96)
            seen = seen & (j <= i) & (i < 90)
        some = seen.any(-1, keepdim=True)
        scores = (q @ k.transpose(-1, -2) / 4).masked_fill(~seen, -torch.inf)
        right = (torch.softmax(torch.where(some, scores, 0.0), -1) * some) @ v
        found = ft.flex_attention(q, k, v, block_mask=block_mask)
        assert (found - right).abs().max() < 3e-6
        dout = torch.randn_like(right)
        for a, b in zip(torch.autograd.grad(found, (q, k, v), dout),
                        torch.autograd.grad(right, (q, k, v), dout)):
            assert (a - b).abs().max() < 1e-5


def test_tensors_without_dimensions_have_gradients():
    q, k, v = qkv()
    factor = torch.tensor(0.5, requires_grad=True)
    for score in (lambda s, b, h, i, j: s * factor, lambda s, b, h, i, j: factor * s):
        found, = torch.autograd.grad(ft.attention(q, k, v, score=score)[..., 0].sum(), factor)
        scale = torch.tensor(0.25 / 2, dtype=torch.float64)
        above, below = (by_torch(q.double(), k.double(), v.double(), scale=x.item())[..., 0].sum()
                        for x in (scale + 1e-5, scale - 1e-5))
        assert abs((above - below) / 2e-5 / 4 - found) < 1e-3


def test_trace_refuses():
    table = torch.randn(3, 4)
    with pytest.raises(flashtile.TraceError, match="index it"):
        flashtile.trace(lambda s, b, h, i, j: s + table)
    with pytest.raises(flashtile.TraceError, match="2 dimensions, found 1"):
        flashtile.trace(lambda s, b, h, i, j: s + table[h])
    with pytest.raises(flashtile.TraceError, match="outside|index it"):
        flashtile.expressions.lift(table)
    with pytest.raises(flashtile.TraceError, match="torch.erf has no counterpart"):
        flashtile.trace(lambda s, b, h, i, j: torch.erf(s))


def split_batch(*tensors):
    return [x.detach().unflatten(0, (3, 2)) for x in tensors]


def vmap_cases():
    torch.manual_seed(9)
    biases = torch.randn(3, 1, 4, 5, 7), torch.randn(2, 4, 5, 7), torch.randn(1, 4, 5, 7)
    slopes = torch.rand(3, 4), torch.rand(2, 4), torch.rand(4)
    return [((0, 0, 0), {}), ((0, None, None), {}), ((None, 1, None), {}),
            ((0, 0, 0), {"bias": (biases[0], 0)}), ((0, 0, 0), {"bias": (biases[1], None)}),
            ((0, 0, None), {"bias": (biases[2], None)}), ((0, 0, 0), {"sink": (slopes[0], 0)}),
            ((0, 0, 0), {"alibi_slopes": (slopes[0], 0)}),
            ((0, 0, 0), {"alibi_slopes": (slopes[1], None)}),
            ((0, 0, 0), {"sink": (slopes[2], None), "alibi_slopes": (slopes[2], None)})]


def backward_op(out, lse, **inputs):
    """The gradients of the sum of out^2 / 2 and lse^2 / 2 by the op itself, which vmap sees."""
    given = dict(inputs, gradients=list(inputs), dout=out, dlse=lse, out=out, lse=lse, causal=True,
                 aux=[], aux_names=[], params=[], param_names=[])
    names = [row.name for row in torch.ops.flashtile.attention_bwd.default._schema.arguments]
    return torch.ops.flashtile.attention_bwd(*[given.get(name) for name in names])


@pytest.mark.parametrize("axes, more", vmap_cases())
def test_vmap(axes, more):
    torch.manual_seed(8)
    shapes = (6, 5, 4, 8), (6, 7, 2, 8), (6, 7, 2, 8)
    args = [x[0] if axis is None else x.movedim(0, axis)
            for x, axis in zip(split_batch(*map(torch.randn, shapes)), axes)]
    args = [x.clone().requires_grad_() for x in (*args, *[x for x, _ in more.values()])]
    in_dims = (*axes, *[axis for _, axis in more.values()])

    def function(q, k, v, *rest):
        return ft.attention(q, k, v, causal=True, return_lse=True, **dict(zip(more, rest)))

    def one(n):
        return [x if axis is None else x.select(axis, n) for x, axis in zip(args, in_dims)]

    found = torch.func.vmap(function, in_dims)(*args)
    apart = [function(*one(n)) for n in range(3)]
    for a, b in zip(found, map(torch.stack, zip(*apart))):
        assert torch.allclose(a, b, atol=3e-6)
    gradients = [torch.autograd.grad(sum(x.square().sum() for x in results), args)
                 for results in (found, [x for part in apart for x in part])]
    for a, b in zip(*gradients):
        assert torch.allclose(a, b, atol=3e-5)
    with torch.no_grad():
        found = torch.func.vmap(lambda out, lse, q, k, v, *rest: backward_op(
            out, lse, q=q, k=k, v=v, **dict(zip(more, rest))), (0, 0, *in_dims))(*found, *args)
    for n, (out, lse) in enumerate(apart):
        inputs = [x.detach().requires_grad_() for x in one(n)]
        total = sum(x.square().sum() / 2 for x in function(*inputs))
        for a, b in zip(found, torch.autograd.grad(total, inputs)):
            assert a[n].shape == b.shape and torch.allclose(a[n], b, atol=3e-5)


def test_vmap_where_calls_cannot_be_one():
    torch.manual_seed(8)
    q, k, v = split_batch(*map(torch.randn, ((6, 5, 4, 8), (6, 7, 2, 8), (6, 7, 2, 8))))
    table = torch.tensor([1.0, 2.0])

    def by_batch(q, k, v):
        return ft.attention(q, k, v, score="score + t[batch] * float(k_idx)", aux={"t": table})

    starts = [torch.tensor(x, dtype=torch.int32) for x in ([0, 2, 5], [0, 4, 7])]

    def packed(q, k, v):
        return ft.attention(q[0], k[0], v[0], cu_seqlens_q=starts[0], cu_seqlens_k=starts[1])

    for function in (by_batch, packed):
        found = torch.func.vmap(function)(q, k, v)
        assert torch.allclose(found, torch.stack([function(q[n], k[n], v[n]) for n in range(3)]))

    def drop(q, k, v):
        return ft.attention(q, k, v, dropout_p=0.5)

    q, k, v = (x[:1].expand_as(x) for x in (q, k, v))
    same = torch.func.vmap(drop, randomness="same")(q, k, v)
    different = torch.func.vmap(drop, randomness="different")(q, k, v)
    assert torch.equal(same[0], same[1]) and not torch.equal(different[0], different[1])


@pytest.fixture
def as_backend():
    attention = torch.nn.attention
    if not hasattr(attention, "activate_flash_attention_impl"):
        pytest.skip("this PyTorch has no list of backends")
    attention.activate_flash_attention_impl("flashtile")
    yield
    attention.restore_flash_attention_impl()


@pytest.mark.parametrize("options", [dict(), dict(is_causal=True, scale=0.5),
                                     dict(attn_mask=torch.rand(5, 7) > 0.2),
                                     dict(attn_mask=torch.rand(2, 1, 5, 7)),
                                     dict(attn_mask=torch.rand(2, 1, 5, 1))])
def test_backend_of_torch(as_backend, monkeypatch, options):
    torch.manual_seed(8)
    q, k, v = (torch.randn(2, 4, n, 8, requires_grad=True) for n in (5, 7, 7))
    calls = []
    for name in ("attention", "attention_backward"):
        original = getattr(ft._torch_sdpa, name)
        monkeypatch.setattr(ft._torch_sdpa, name, lambda *args, _name=name, _run=original, **more:
                            calls.append(_name) or _run(*args, **more))
    found = functional.scaled_dot_product_attention(q, k, v, **options)
    dout = torch.randn_like(found)
    gradients = torch.autograd.grad(found, (q, k, v), dout)
    assert calls == ["attention", "attention_backward"]
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        right = functional.scaled_dot_product_attention(q, k, v, **options)
    assert found.shape == right.shape and (found - right).abs().max() < 3e-6
    for a, b in zip(gradients, torch.autograd.grad(right, (q, k, v), dout)):
        assert (a - b).abs().max() < 1e-5


def test_backend_is_given_back():
    attention = torch.nn.attention
    if not hasattr(attention, "activate_flash_attention_impl"):
        pytest.skip("this PyTorch has no list of backends")
    assert "flashtile" in attention.list_flash_attention_impls()
    assert attention.current_flash_attention_impl() != "flashtile"
    q = torch.randn(1, 2, 9, 8)
    before = functional.scaled_dot_product_attention(q, q, q)
    attention.activate_flash_attention_impl("flashtile")
    attention.restore_flash_attention_impl()
    assert torch.equal(functional.scaled_dot_product_attention(q, q, q), before)


@pytest.mark.parametrize("dropout_p", [0.0, 0.375])
def test_ops_of_the_backend_on_gpus(dropout_p):
    """What runs in place of PyTorch's ops for CUDA takes CPU tensors, too."""
    ops = ft._torch_sdpa
    torch.manual_seed(8)
    q, k, v = (torch.randn(2, 4, 7, 8) for _ in range(3))
    out, lse, starts, _, max_q, max_k, seed, offset, _ = ops.sdpa_forward(q, k, v, dropout_p, True)
    assert starts is None and seed.dtype == torch.uint64 and (max_q, max_k) == (7, 7)
    inputs = [x.clone().requires_grad_() for x in (q, k, v)]
    right = ft.attention(*[x.transpose(1, 2) for x in inputs], causal=True, dropout_p=dropout_p,
                         dropout_seed=int(seed[0].item())).transpose(1, 2)
    assert torch.equal(out, right) and out.stride() == q.stride()
    found = ops.sdpa_backward(out, q, k, v, out, lse, None, None, 7, 7, dropout_p, True, seed,
                              offset)
    for a, b in zip(found, torch.autograd.grad(right, inputs, out)):
        assert torch.equal(a, b)
    rows = [x.transpose(1, 2).flatten(0, 1) for x in (q, k, v)]
    starts = torch.tensor([0, 7, 14], dtype=torch.int32)
    options = dict(window_size_left=3, window_size_right=-1)
    packed, packed_lse, seed, offset, _ = ops.flash_forward(
        *rows, starts, starts, 7, 7, dropout_p, True, False, **options)
    inputs = [x.clone().requires_grad_() for x in rows]
    right = ft.attention(*inputs, cu_seqlens_q=starts, cu_seqlens_k=starts, causal=True,
                         window=(3, None), dropout_p=dropout_p,
                         dropout_seed=int(seed[0].item()))
    assert torch.equal(packed, right)
    found = ops.flash_backward(packed, *rows, packed, packed_lse, starts, starts, 7, 7, dropout_p,
                               True, seed, offset, **options)
    for a, b in zip(found, torch.autograd.grad(right, inputs, packed)):
        assert torch.equal(a, b)
    if not dropout_p:
        given = torch.empty_like(packed)
        again = ops.flash_forward_into(given, *rows, starts, starts, 7, 7, 0.0, True, False,
                                       **options)
        assert torch.equal(given, packed) and torch.equal(again, packed_lse)
    *_, mask = ops.sdpa_forward(q, k, v, dropout_p, True, True)
    if dropout_p:  # largest weights are 1, those that are masked 0
        assert mask.shape == (2, 4, 128, 128) and (mask[..., :7, :7].abs().amax(-1) == 1).all()
        assert not mask[..., :7, :7].triu(1).any() and 0.2 < (mask < 0).sum() / (2 * 4 * 28) < 0.55
    else:
        assert not mask.numel()


def test_both_ways_give_the_same():
    """With a mode that sees ops, and at once."""
    q, k, v = qkv(requires_grad=True)
    table = torch.linspace(-1, 1, 40, requires_grad=True)

    def results():
        out, lse = ft.attention(q, k, v, causal=True, score="score + t[k_idx]", aux={"t": table},
                                dropout_p=0.25, dropout_seed=torch.tensor([3]), return_lse=True)
        return [out, lse, *torch.autograd.grad(out.sum() + lse.square().sum(), (q, k, v, table))]

    with Recorder() as recorder:
        seen = results()
    assert len(recorder.calls) == 2
    for a, b in zip(results(), seen):
        assert torch.equal(a, b)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")
def test_backend_on_a_gpu(as_backend):
    torch.manual_seed(8)
    q, k, v = (torch.randn(2, 4, 100, 64, device="cuda", dtype=torch.bfloat16, requires_grad=True)
               for _ in range(3))
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.FLASH_ATTENTION):
        found = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        right = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
    dout = torch.randn_like(found)
    assert (found - right).abs().max() < 2e-2
    for a, b in zip(torch.autograd.grad(found, (q, k, v), dout),
                    torch.autograd.grad(right, (q, k, v), dout)):
        assert (a - b).abs().max() < 6e-2
