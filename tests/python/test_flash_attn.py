# SPDX-License-Identifier: Apache-2.0
"""The flash_attn names in python/shim, by their definitions in PyTorch."""

import importlib.util
import inspect
import math
import sys

import plain
import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
if importlib.util.find_spec("flash_attn") is None:
    sys.path.insert(0, str(plain.ROOT / "python" / "shim"))
import flash_attn  # noqa: E402

if "flashtile" not in flash_attn.__version__:
    pytest.skip("another flash_attn is installed", allow_module_level=True)
import flash_attn_2_cuda  # noqa: E402
import flash_attn_interface as fa3  # noqa: E402
from flash_attn import bert_padding, cute  # noqa: E402
from flash_attn import flash_attn_interface as fa2  # noqa: E402
from flash_attn.layers import rotary  # noqa: E402
from flash_attn.losses.cross_entropy import CrossEntropyLoss  # noqa: E402
from flash_attn.ops import activations, fused_dense, layer_norm, rms_norm  # noqa: E402
from flash_attn.ops.triton import layer_norm as triton_norm  # noqa: E402
from flash_attn.ops.triton.rotary import apply_rotary  # noqa: E402
from torch.nn import functional  # noqa: E402


def qkv(seqlen_q=9, seqlen_k=13, heads_kv=2, requires_grad=True):
    torch.manual_seed(1)
    shapes = (2, seqlen_q, 4, 16), (2, seqlen_k, heads_kv, 16), (2, seqlen_k, heads_kv, 16)
    return [torch.randn(shape, requires_grad=requires_grad) for shape in shapes]


def by_torch(q, k, v, causal=False, window=(-1, -1), softcap=0.0, slopes=None, sink=None,
             keep=None, dropout_p=0.0):
    """(out, lse, weights) in double; rows that see nothing have 0 and -inf."""
    q, k, v = (x.double() for x in (q, k, v))
    group = q.shape[2] // k.shape[2]
    k, v = (x.repeat_interleave(group, 2) for x in (k, v))
    scores = torch.einsum("bihd,bjhd->bhij", q, k) / math.sqrt(q.shape[-1])
    if softcap:
        scores = softcap * torch.tanh(scores / softcap)
    i = torch.arange(q.shape[1])[:, None] + k.shape[1] - q.shape[1]
    j = torch.arange(k.shape[1])
    if slopes is not None:
        scores = scores - slopes.double()[..., None, None] * (i - j).abs()
    seen = torch.ones_like(scores[0, 0], dtype=torch.bool)
    if causal:
        seen &= j <= i
    if window[0] >= 0:
        seen &= j >= i - window[0]
    if window[1] >= 0:
        seen &= j <= i + window[1]
    scores = scores.masked_fill(~seen, -math.inf)
    lse = scores.logsumexp(-1)
    if sink is not None:
        lse = torch.logaddexp(lse, sink.double()[:, None])
    weights = torch.where(lse[..., None] == -math.inf, 0, (scores - lse[..., None]).exp())
    weights = torch.nan_to_num(weights)
    used = weights if keep is None else weights * keep / (1 - dropout_p)
    return torch.einsum("bhij,bjhd->bihd", used, v), lse, weights


OPTIONS = [dict(), dict(causal=True), dict(window_size=(3, 1)), dict(causal=True, softcap=0.5),
           dict(causal=True, alibi_slopes=torch.tensor([0.5, 0.25, 0.125, 0.1]))]


def reference_options(options):
    names = {"window_size": "window", "alibi_slopes": "slopes"}
    return {names.get(name, name): value for name, value in options.items()}


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("lengths", [(9, 13), (13, 9)])
def test_function(options, lengths):
    q, k, v = qkv(*lengths)
    out, lse, s_dmask = flash_attn.flash_attn_func(q, k, v, return_attn_probs=True, **options)
    right, right_lse, _ = by_torch(q, k, v, **reference_options(options))
    assert s_dmask.numel() == 0 and not lse.requires_grad
    empty = right_lse == -math.inf
    assert (lse[empty] == math.inf).all()  # as flash_attn 2 has it
    assert empty.any() or lengths == (9, 13) or not ({"causal", "window_size"} & options.keys())
    assert (lse - right_lse)[~empty].abs().max() < 1e-5
    assert (out - right).abs().max() < 3e-6
    dout = torch.randn_like(out)
    found = torch.autograd.grad(out, (q, k, v), dout)
    for a, b in zip(found, torch.autograd.grad(right, (q, k, v), dout.double())):
        assert (a - b).abs().max() < 1e-5


def test_packed_forms():
    q, k, v = qkv(9, 9, 4)
    right = flash_attn.flash_attn_func(q, k, v, causal=True)
    kv, whole = torch.stack((k, v), 2), torch.stack((q, k, v), 2)
    assert torch.equal(flash_attn.flash_attn_kvpacked_func(q, kv, causal=True), right)
    assert torch.equal(flash_attn.flash_attn_qkvpacked_func(whole, causal=True), right)
    starts = torch.tensor([0, 9, 18], dtype=torch.int32)
    rows = [x.flatten(0, 1) for x in (q, k, v)]
    found = [flash_attn.flash_attn_varlen_func(*rows, starts, starts, 9, 9, causal=True),
             flash_attn.flash_attn_varlen_kvpacked_func(
                 rows[0], kv.flatten(0, 1), starts, starts, 9, torch.tensor(9), causal=True),
             flash_attn.flash_attn_varlen_qkvpacked_func(whole.flatten(0, 1), starts, 9,
                                                         causal=True)]
    for out in found:
        assert (out.unflatten(0, (2, 9)) - right).abs().max() < 1e-6


# 3/8 is a probability that dropout has exactly: others are rounded to 16 bits.
def test_dropout_and_what_it_returns():
    q, k, v = qkv()
    torch.manual_seed(5)
    out, lse, s_dmask = flash_attn.flash_attn_func(q, k, v, dropout_p=0.375, causal=True,
                                                   return_attn_probs=True)
    assert s_dmask.shape == (2, 4, 128, 128) and not s_dmask[..., 9:, :].any()
    s_dmask = s_dmask[..., :9, :13]
    keep = s_dmask >= 0
    right, _, weights = by_torch(q, k, v, causal=True, keep=keep, dropout_p=0.375)
    assert (out - right).abs().max() < 3e-6
    largest = weights.amax(-1, keepdim=True)
    assert (s_dmask.abs() - weights / largest).abs().max() < 1e-5
    assert 0.28 < (~keep).sum() / (weights > 0).sum() < 0.47
    dout = torch.randn_like(out)
    for a, b in zip(torch.autograd.grad(out, (q, k, v), dout),
                    torch.autograd.grad(right, (q, k, v), dout.double())):
        assert (a - b).abs().max() < 1e-5
    torch.manual_seed(5)
    assert torch.equal(flash_attn.flash_attn_func(q, k, v, dropout_p=0.375, causal=True), out)
    assert not torch.equal(flash_attn.flash_attn_func(q, k, v, dropout_p=0.375, causal=True), out)


@pytest.mark.parametrize("dropout_p", [0.0, 0.375])
def test_private_ops(dropout_p):
    q, k, v = qkv(13, 9)
    torch.manual_seed(8)
    right = flash_attn.flash_attn_func(q, k, v, causal=True)
    dout = torch.randn_like(right)
    with torch.no_grad():
        out, lse, s_dmask, rng_state = fa2._flash_attn_forward(
            q, k, v, dropout_p, 0.25, True, -1, -1, 0.0, None, dropout_p > 0)
        gradients = [torch.full_like(x, math.nan) for x in (q, k, v)]
        softmax_d = fa2._flash_attn_backward(
            dout, q, k, v, out, lse, *gradients, dropout_p, 0.25, True, -1, -1, 0.0, None, False,
            rng_state)
    keep = s_dmask[..., :13, :9] >= 0 if dropout_p else None
    right, right_lse, _ = by_torch(q, k, v, causal=True, keep=keep, dropout_p=dropout_p)
    assert (out - right).abs().max() < 3e-6 and rng_state.shape == (2,)
    assert (lse[right_lse == -math.inf] == math.inf).all()
    for a, b in zip(gradients, torch.autograd.grad(right, (q, k, v), dout.double())):
        assert (a - b).abs().max() < 1e-5
    assert softmax_d.shape == (2, 4, 128)
    assert (softmax_d[..., :13] - (dout * out).sum(-1).transpose(1, 2)).abs().max() < 1e-5
    starts = torch.tensor([0, 13, 26]), torch.tensor([0, 9, 18])
    starts = [x.int() for x in starts]
    rows = [x.detach().flatten(0, 1) for x in (q, k, v)]
    packed, packed_lse, _, _ = fa2._flash_attn_varlen_forward(
        *rows, *starts, 13, 9, 0.0, 0.25, True)
    if not dropout_p:
        assert (packed.unflatten(0, (2, 13)) - right).abs().max() < 3e-6
    new = [torch.empty_like(x) for x in rows]
    d = fa2._flash_attn_varlen_backward(
        dout.flatten(0, 1), *rows, packed, packed_lse, *new, *starts, 13, 9, 0.0, 0.25, True,
        -1, -1, 0.0, None, False)
    assert d.shape == packed_lse.shape == (4, 26)
    if not dropout_p:
        for a, b in zip(new, gradients):
            assert (a.unflatten(0, (2, -1)) - b).abs().max() < 1e-5


def test_ops_have_fakes():
    q, k, v = qkv(requires_grad=False)
    dense = (q, k, v, 0.2, 0.25, True, -1, -1, 0.0, None, True)
    out, lse, _, rng_state = torch.ops.flash_attn._flash_attn_forward(*dense)
    arguments = (torch.randn_like(out), q, k, v, out, lse, torch.empty_like(q),
                 torch.empty_like(k), torch.empty_like(v), 0.0, 0.25, True, -1, -1, 0.0, None,
                 False)
    starts = torch.tensor([0, 9, 18]).int(), torch.tensor([0, 13, 26]).int()
    rows = [x.flatten(0, 1) for x in (q, k, v)]
    packed = (*rows, *starts, 9, 13, 0.0, 0.25, True)
    results = torch.ops.flash_attn._flash_attn_varlen_forward(*packed)
    backward = (results[0], *rows, *results[:2], *[torch.empty_like(x) for x in rows], *starts, 9,
                13, 0.0, 0.25, True, -1, -1, 0.0, None, False)
    checks = ("test_schema", "test_faketensor")
    for name, given in (("forward", dense), ("backward", arguments), ("varlen_forward", packed),
                        ("varlen_backward", backward)):
        op = getattr(torch.ops.flash_attn, f"_flash_attn_{name}")
        # Of dropout each call has its own mask; shapes are the same.
        torch.library.opcheck(op.default, given, test_utils=checks)


def test_signatures():
    """Arguments that programs look for by name, in the order in which they give them."""
    def names(function):
        return list(inspect.signature(function).parameters)

    assert names(flash_attn.flash_attn_varlen_func) == [
        "q", "k", "v", "cu_seqlens_q", "cu_seqlens_k", "max_seqlen_q", "max_seqlen_k", "dropout_p",
        "softmax_scale", "causal", "window_size", "softcap", "alibi_slopes", "deterministic",
        "return_attn_probs", "block_table"]
    assert names(flash_attn.flash_attn_func)[:5] == ["q", "k", "v", "dropout_p", "softmax_scale"]
    assert "learnable_sink" in names(cute.flash_attn_varlen_func)
    assert "page_table" in names(fa3.flash_attn_with_kvcache)
    defaults = inspect.getfullargspec(fa2._flash_attn_forward._init_fn)
    assert defaults.args[-1] == "return_softmax" and "softcap" in defaults.args
    for name in ("fwd", "bwd", "varlen_fwd", "varlen_bwd", "fwd_kvcache"):
        assert callable(getattr(flash_attn_2_cuda, name))


def test_errors_are_runtime_errors():
    q, k, v = qkv(requires_grad=False)
    with pytest.raises(RuntimeError, match="head_dim of k"):
        flash_attn.flash_attn_func(q, k[..., :8], v)
    with pytest.raises(RuntimeError, match="dtype of q"):
        flash_attn.flash_attn_func(q.int(), k.int(), v.int())
    with pytest.raises(RuntimeError, match="generator"):
        flash_attn_2_cuda.fwd(q, k, v, None, None, 0.0, 0.25, True, -1, -1, 0.0, False, q)
    with pytest.raises(RuntimeError, match="qv has the shape"):
        fa3.flash_attn_func(q, k, v, qv=q[:, :1])
    with pytest.raises(RuntimeError, match="qv is not taken"):
        fa3.flash_attn_with_kvcache(q, k, v, k=k, v=v, qv=q, cache_seqlens=0)
    with pytest.raises(RuntimeError, match="score_mod is not taken"):
        cute.flash_attn_func(q, k, v, score_mod=max)
    with pytest.raises(RuntimeError, match="cache_seqlens is not"):
        flash_attn.flash_attn_with_kvcache(q, k, v, k=k, v=v)


@pytest.mark.parametrize("paged", [False, True])
def test_cache(paged):
    q, new_k, new_v = qkv(3, 3, requires_grad=False)
    lengths = torch.tensor([5, 8], dtype=torch.int32)
    cache = torch.randn(2, 2, 16, 2, 16)
    angles = torch.rand(16, 4) * 6
    expected = []
    for b, used in enumerate(lengths.tolist()):
        where = dict(seqlen_offsets=used, interleaved=True)
        turned_q, turned_k = (rotary.apply_rotary_emb(x[b:b + 1], angles.cos(), angles.sin(),
                                                      **where) for x in (q, new_k))
        keys = torch.cat((cache[0, b:b + 1, :used], turned_k), 1)
        values = torch.cat((cache[1, b:b + 1, :used], new_v[b:b + 1]), 1)
        expected.append(by_torch(turned_q, keys, values, causal=True)[0])
    options = dict(k=new_k, v=new_v, cache_seqlens=lengths, causal=True, rotary_cos=angles.cos(),
                   rotary_sin=angles.sin())
    if paged:
        table = torch.tensor([[3, 0], [1, 2]], dtype=torch.int32)
        pages = torch.empty(2, 4, 8, 2, 16)
        pages[:, table.flatten().long()] = cache.unflatten(2, (2, 8)).flatten(1, 2)
        found = flash_attn.flash_attn_with_kvcache(q, *pages, block_table=table, **options)
        assert (pages[1, 0, 0] == new_v[0, 2]).sum() == 0 and (pages[1, 2, 2] == new_v[1, 2]).all()
        again = fa3.flash_attn_with_kvcache(q, *pages, page_table=table, **options)
        lines = torch.tensor([1, 0], dtype=torch.int32)  # of the table
        swapped = fa3.flash_attn_with_kvcache(
            q, *pages, page_table=table.flip(0), cache_batch_idx=lines, rotary_seqlens=lengths,
            cache_seqlens=lengths + 3, causal=True)
        assert torch.equal(swapped, fa3.flash_attn_with_kvcache(
            q, *pages, page_table=table, cache_seqlens=lengths + 3, causal=True))
        with pytest.raises(RuntimeError, match="block_table"):
            flash_attn.flash_attn_with_kvcache(q, *pages, block_table=table, cache_seqlens=17)
    else:
        found, lse = flash_attn.flash_attn_with_kvcache(q, *cache, return_softmax_lse=True,
                                                        **options)
        assert lse.shape == (2, 4, 3) and (cache[1, 0, 5] == new_v[0, 0]).all()
        again = fa3.flash_attn_with_kvcache(q, *cache, **options)
    assert (found - torch.cat(expected)).abs().max() < 3e-6
    assert torch.equal(again, found)


def test_one_length_for_all():
    q, _, _ = qkv(1, 1, requires_grad=False)
    cache = torch.randn(2, 5, 16, 2, 16)
    lines = torch.tensor([4, 1], dtype=torch.int32)
    found = flash_attn.flash_attn_with_kvcache(q, *cache, cache_seqlens=7, cache_batch_idx=lines)
    right, _, _ = by_torch(q, *cache[:, lines.long(), :7])
    assert (found - right).abs().max() < 3e-6
    rows = q[:, 0]
    starts = torch.arange(3, dtype=torch.int32)
    packed = fa3.flash_attn_with_kvcache(rows, *cache, cache_seqlens=7, cache_batch_idx=lines,
                                         cu_seqlens_q=starts, max_seqlen_q=1)
    assert torch.equal(packed, found[:, 0])


def test_queries_of_values():
    q, k, v = qkv(5, 9, requires_grad=False)
    v = torch.randn(2, 9, 2, 24)
    qv = torch.randn(2, 5, 4, 24)
    scores = sum(torch.einsum("bihd,bjhd->bhij", a.double(), b.double().repeat_interleave(2, 2))
                 for a, b in ((q, k), (qv, v))) / 40 ** 0.5
    right = torch.einsum("bhij,bjhd->bihd", scores.softmax(-1),
                         v.double().repeat_interleave(2, 2))
    starts = torch.tensor([0, 5, 10]).int(), torch.tensor([0, 9, 18]).int()
    rows = [x.flatten(0, 1) for x in (q, k, v)]
    for found in (fa3.flash_attn_func(q, k, v, qv=qv),
                  fa3.flash_attn_varlen_func(*rows, *starts, 5, 9, qv=qv.flatten(0, 1)),
                  fa3.flash_attn_with_kvcache(q, k, v, qv=qv)):
        assert (found.reshape(right.shape) - right).abs().max() < 3e-6


def test_interface_of_version_3():
    q, k, v = qkv(13, 9)
    out, lse = fa3.flash_attn_func(q, k, v, causal=True, num_splits=4, return_attn_probs=True)
    right, right_lse, _ = by_torch(q, k, v, causal=True)
    assert (out - right).abs().max() < 3e-6
    assert (lse[right_lse == -math.inf] == -math.inf).all()
    starts = torch.tensor([0, 13, 26]).int(), torch.tensor([0, 9, 18]).int()
    rows = [x.flatten(0, 1) for x in (q, k, v)]
    used_q, used_k = torch.tensor([4, 13]).int(), torch.tensor([9, 5]).int()
    out, lse = fa3.flash_attn_varlen_func(*rows, *starts, 13, 9, used_q, used_k, causal=True,
                                          return_attn_probs=True)
    assert not out[4:13].any() and (lse[:, 4:13] == -math.inf).all()
    one = by_torch(q[:1, :4], k[:1], v[:1], causal=True)[0]
    two = by_torch(q[1:], k[1:, :5], v[1:, :5], causal=True)[0]
    right = torch.cat((one[0], torch.zeros(9, 4, 16), two[0]))
    assert (out - right).abs().max() < 3e-6
    dout = torch.randn_like(out)
    for a, b in zip(torch.autograd.grad(out, (q, k, v), dout),
                    torch.autograd.grad(right, (q, k, v), dout.double())):
        assert (a - b).abs().max() < 1e-5
    q, k, v = qkv(9, 9, requires_grad=False)
    right = by_torch(q, k, v)[0]
    whole = torch.cat((q, k, v), 2)
    assert (fa3.flash_attn_qkvpacked_func(whole, num_heads_q=4) - right).abs().max() < 3e-6
    parts = [fa3._flash_attn_forward(q, k[:, a:b], v[:, a:b])[:2] for a, b in ((0, 4), (4, 9))]
    out, lse = fa3.flash_attn_combine(torch.stack([p[0] for p in parts]),
                                      torch.stack([p[1].transpose(1, 2) for p in parts]))
    assert (out - right).abs().max() < 3e-6 and lse.shape == (2, 9, 4)
    gradients = [torch.empty_like(x) for x in (q, k, v)]
    sums = fa3._flash_attn_backward(out, q, k, v, out, lse.transpose(1, 2).contiguous(),
                                    dq=gradients[0], dk=gradients[1], dv=gradients[2])
    assert (sums - out.square().sum(-1).transpose(1, 2)).abs().max() < 1e-5
    inputs = [x.requires_grad_() for x in (q, k, v)]
    for a, b in zip(gradients, torch.autograd.grad(by_torch(*inputs)[0], inputs, out.double())):
        assert (a - b).abs().max() < 1e-5
    lengths = torch.tensor([3, 4]).int()
    assert fa3.get_scheduler_metadata(2, 1, 9, 4, 2, 16, lengths).dtype == torch.int32


def test_interface_of_version_4():
    q, k, v = qkv()
    sink = torch.tensor([0.5, -1.0, 2.0, 0.0], requires_grad=True)
    out, lse = cute.flash_attn_func(q, k, v, causal=True, window_size=(4, None),
                                    learnable_sink=sink, return_lse=True)
    right, right_lse, _ = by_torch(q, k, v, causal=True, window=(4, -1), sink=sink)
    assert (out - right).abs().max() < 3e-6 and (lse - right_lse).abs().max() < 1e-5
    dout = torch.randn_like(out)
    for a, b in zip(torch.autograd.grad(out, (q, k, v, sink), dout),
                    torch.autograd.grad(right, (q, k, v, sink), dout.double())):
        assert (a - b).abs().max() < 1e-5
    starts = torch.tensor([0, 9, 18]).int(), torch.tensor([0, 13, 26]).int()
    packed, none = cute.flash_attn_varlen_func(
        *[x.flatten(0, 1) for x in (q, k, v)], cu_seqlens_q=starts[0], cu_seqlens_k=starts[1],
        max_seqlen_q=9, max_seqlen_k=13, causal=True, window_size=(4, None), learnable_sink=sink)
    assert none is None and (packed.unflatten(0, (2, 9)) - right).abs().max() < 3e-6


def test_padding():
    x = torch.arange(24.0).view(2, 4, 3).requires_grad_()
    mask = torch.tensor([[1, 1, 0, 1], [0, 1, 0, 0]])
    rows, indices, starts, longest, used = bert_padding.unpad_input(x, mask)
    assert torch.equal(rows, x[mask.bool()]) and starts.tolist() == [0, 3, 4] and longest == 3
    assert starts.dtype == torch.int32 and used.tolist() == [3, 1]
    back = bert_padding.pad_input(rows, indices, 2, 4)
    assert torch.equal(back, x * mask[..., None])
    back.sum().backward()
    assert torch.equal(x.grad, mask[..., None].expand_as(x).float())
    _, _, starts, _, used = bert_padding.unpad_input(x, mask, unused_mask=1 - mask)
    assert starts.tolist() == [0, 4, 8] and used.tolist() == [3, 1]
    rows, _, starts, longest = bert_padding.unpad_input_for_concatenated_sequences(
        x, torch.tensor([[2, 1, 0, 0], [4, 0, 0, 0]]))
    assert rows.shape == (7, 3) and starts.tolist() == [0, 2, 3, 7] and longest == 4


@pytest.mark.parametrize("interleaved", [False, True])
def test_rotary(interleaved):
    torch.manual_seed(2)
    x = torch.randn(2, 5, 3, 12, dtype=torch.float64, requires_grad=True)
    angles = torch.rand(9, 4, dtype=torch.float64) * 6
    offsets = torch.tensor([0, 3])
    out = rotary.apply_rotary_emb(x, angles.cos(), angles.sin(), interleaved,
                                  seqlen_offsets=offsets)
    pairs = x[..., :8].unflatten(-1, (4, 2)) if interleaved else \
        x[..., :8].unflatten(-1, (2, 4)).transpose(-1, -2)
    turn = torch.polar(torch.ones(()).double(),
                       torch.stack([angles[:5], angles[3:8]])[:, :, None])
    turned = torch.view_as_real(torch.view_as_complex(pairs.contiguous()) * turn)
    turned = turned.flatten(-2) if interleaved else turned.transpose(-1, -2).flatten(-2)
    assert torch.allclose(out, torch.cat((turned, x[..., 8:]), -1))
    dout = torch.randn_like(out)
    gradient, = torch.autograd.grad(out, x, dout)
    back = apply_rotary(dout, angles.cos(), angles.sin(), offsets, interleaved=interleaved,
                        conjugate=True)
    assert torch.allclose(gradient, back)
    packed = rotary.apply_rotary_emb(x.flatten(0, 1), angles.cos(), angles.sin(), interleaved,
                                     seqlen_offsets=offsets, max_seqlen=5,
                                     cu_seqlens=torch.tensor([0, 5, 10]))
    assert torch.equal(packed.unflatten(0, (2, 5)), out)
    kept = x.detach().clone()
    assert rotary.apply_rotary_emb(kept, angles.cos(), angles.sin(), interleaved, inplace=True,
                                   seqlen_offsets=offsets) is kept
    assert torch.equal(kept, out)


def test_rotary_module():
    module = rotary.RotaryEmbedding(8)
    x = torch.randn(2, 5, 3, 2, 12)
    out = module(x.clone(), seqlen_offset=2)
    angles = torch.outer(torch.arange(7.0), 10000.0 ** -(torch.arange(0, 8, 2) / 8))[2:]
    for part in (0, 1):
        right = rotary.apply_rotary_emb(x[:, :, part], angles.cos(), angles.sin())
        assert (out[:, :, part] - right).abs().max() < 1e-6
    assert torch.equal(out[:, :, 2], x[:, :, 2])
    grouped = torch.cat((x[:, :, 0], x[:, :, 1], x[:, :, 2]), 2)
    grouped = module(grouped, seqlen_offset=2, num_heads_q=2)
    assert torch.equal(grouped[:, :, 2:4], out[:, :, 1])
    q, kv = module(x[:, :, 0].clone(), kv=x[:, :, 1:].clone(), seqlen_offset=2)
    assert torch.equal(q, out[:, :, 0]) and torch.equal(kv, out[:, :, 1:])
    # xPos: the product of q at i and k at j depends on i - j alone.
    module = rotary.RotaryEmbedding(8, scale_base=16)
    same = torch.randn(8).expand(1, 6, 3, 1, 8).clone()
    q, k, _ = module(same).unbind(2)
    products = torch.einsum("bihd,bjhd->ij", q, k)
    for distance in range(-5, 6):
        diagonal = products.diagonal(distance)
        assert (diagonal - diagonal[0]).abs().max() < 1e-4 * products.abs().max()


def test_cross_entropy():
    torch.manual_seed(3)
    logits = torch.randn(6, 11, dtype=torch.float32, requires_grad=True)
    labels = torch.tensor([0, 3, -100, 10, 5, 1])
    for options in (dict(), dict(label_smoothing=0.1), dict(reduction="sum"),
                    dict(reduction="none", ignore_index=3)):
        if "ignore_index" in options:
            labels = labels.clamp(min=0)
        found = CrossEntropyLoss(**options)(logits, labels)
        right = functional.cross_entropy(logits, labels, **options)
        assert (found - right).abs().max() < 1e-6
        for a, b in zip(torch.autograd.grad(found.sum(), logits),
                        torch.autograd.grad(right.sum(), logits)):
            assert (a - b).abs().max() < 1e-6
    lse = (logits * 0.5).logsumexp(-1)
    loss, z_loss = CrossEntropyLoss(logit_scale=0.5, lse_square_scale=0.25, return_z_loss=True)(
        logits, labels, precomputed_lse=lse.detach())
    right = functional.cross_entropy(logits * 0.5, labels)
    assert abs(z_loss - 0.25 * lse.square().mean()) < 1e-6 and abs(loss - z_loss - right) < 1e-6
    gradient, = torch.autograd.grad(loss, logits)
    expected, = torch.autograd.grad(right + 0.25 * lse.square().mean(), logits)
    assert (gradient - expected).abs().max() < 1e-6


def test_norms():
    torch.manual_seed(4)
    x, residual = torch.randn(2, 3, 5, 8).unbind(0)
    weight, bias = torch.randn(2, 8)
    right = functional.layer_norm(x + residual, (8,), weight, bias, 1e-5)
    out, total = triton_norm.layer_norm_fn(x, weight, bias, residual, eps=1e-5, prenorm=True)
    assert (out - right).abs().max() < 1e-5 and torch.equal(total, x + residual)
    out, total = layer_norm.dropout_add_layer_norm(x, residual, weight, bias, 0.0, 1e-5,
                                                   prenorm=True)
    assert (out - right).abs().max() < 1e-5 and torch.equal(total, x + residual)
    right = functional.rms_norm(x, (8,), weight, 1e-5)
    assert (rms_norm.rms_norm(x, weight, 1e-5) - right).abs().max() < 1e-5
    shifted = triton_norm.rms_norm_fn(x, weight - 1, None, eps=1e-5, zero_centered_weight=True)
    assert (shifted - right).abs().max() < 1e-5
    for module in (rms_norm.RMSNorm(8), triton_norm.RMSNorm(8), rms_norm.DropoutAddRMSNorm(8)):
        assert (module(x) - functional.rms_norm(x, (8,), eps=1e-5)).abs().max() < 1e-5
    x = torch.randn(40, 8)
    out, kept = layer_norm.dropout_add_layer_norm(x, None, weight, None, 0.25, 1e-5,
                                                  return_dropout_mask=True)
    assert 0.6 < kept.float().mean() < 0.9
    right = functional.layer_norm(x * kept / 0.75, (8,), weight, None, 1e-5)
    assert (out - right).abs().max() < 1e-5
    y = torch.randn(40, 8)
    _, second = triton_norm.layer_norm_fn(x, weight, None, x1=y, weight1=bias, eps=1e-5)
    assert (second - functional.layer_norm(x + y, (8,), bias, None, 1e-5)).abs().max() < 1e-5
    out = triton_norm.layer_norm_linear_fn(x, weight, None, torch.eye(8)[:4], None, eps=1e-5)
    assert out.shape == (40, 4)


def test_layers():
    x = torch.randn(3, 8)
    dense = fused_dense.FusedDense(8, 4, return_residual=True)
    out, residual = dense(x)
    assert residual is x and torch.equal(out, functional.linear(x, dense.weight, dense.bias))
    assert torch.equal(activations.swiglu(x, x), functional.silu(x) * x)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")
def test_on_a_gpu():
    torch.manual_seed(6)
    q, k, v = (torch.randn(2, n, h, 64, device="cuda", dtype=torch.bfloat16, requires_grad=True)
               for n, h in ((100, 4), (130, 2), (130, 2)))
    out, lse, _ = flash_attn.flash_attn_func(q, k, v, causal=True, return_attn_probs=True)
    exact = [x.detach().cpu().double().requires_grad_() for x in (q, k, v)]
    right, right_lse, _ = by_torch(*exact, causal=True)
    assert out.is_cuda and (out.cpu() - right).abs().max() < 2e-2
    assert (lse.cpu() - right_lse).abs().max() < 1e-3
    dout = torch.randn_like(out)
    for a, b in zip(torch.autograd.grad(out, (q, k, v), dout),
                    torch.autograd.grad(right, exact, dout.cpu().double())):
        assert (a.cpu() - b).abs().max() < 6e-2
    lengths = torch.tensor([77, 130], dtype=torch.int32, device="cuda")
    found = flash_attn.flash_attn_with_kvcache(q[:, :1], k.detach(), v.detach(),
                                               cache_seqlens=lengths)
    for b, used in enumerate((77, 130)):
        right = by_torch(*[x[b:b + 1, :n] for x, n in zip(exact, (1, used, used))])[0]
        assert (found[b].cpu() - right[0]).abs().max() < 2e-2
