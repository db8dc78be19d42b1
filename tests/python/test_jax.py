# SPDX-License-Identifier: Apache-2.0
"""flashtile on JAX's arrays and flashtile.jax, against numpy and attention written in JAX."""

import functools
import os

# Two devices, to split over.
os.environ["XLA_FLAGS"] = os.environ.get("XLA_FLAGS", "") + \
    " --xla_force_host_platform_device_count=2"

import numpy as np  # noqa: E402
import plain  # noqa: E402
import pytest  # noqa: E402
from jax_cpu import on_the_cpu  # noqa: E402, F401

jax = pytest.importorskip("jax", reason="JAX is not installed")
jnp = jax.numpy

import flashtile.jax as fj  # noqa: E402

import flashtile  # noqa: E402


@pytest.mark.parametrize("dtype, tolerance", [("float32", 3e-6), ("bfloat16", 2.5e-2)])
def test_arrays_on_the_cpu(dtype, tolerance):
    q, k, v = (jax.numpy.asarray(x).astype(dtype)
               for x in plain.random(1, (2, 33, 4, 16), (2, 40, 2, 16), (2, 40, 2, 16)))
    out, lse = flashtile.attention(q, k, v, causal=True, return_lse=True)
    assert isinstance(out, jax.Array) and out.dtype == dtype and lse.dtype == "float32"
    position, key = plain.positions(33, 40)
    expected, _ = plain.attention(*(np.asarray(x, np.float64) for x in (q, k, v)),
                                  seen=key <= position)
    assert abs(np.asarray(out, np.float64) - expected).max() < tolerance
    gradients = flashtile.attention_backward(out, q, k, v, out, lse, causal=True)
    assert all(isinstance(x, jax.Array) for x in gradients.values())


def test_arrays_that_cannot_be_written():
    q = jax.numpy.zeros((1, 2, 1, 8))
    with pytest.raises(ValueError, match="out is (read-only|a JAX array, which cannot change)"):
        flashtile.attention(q, q, q, out=q)


def test_inside_jit():
    q = jax.numpy.zeros((1, 2, 1, 8))
    with pytest.raises(TypeError, match="q is traced by JAX"):
        jax.jit(lambda x: flashtile.attention(x, x, x))(q)


def qkv(dtype=np.float32, batch_size=2, seqlen_q=9, seqlen_k=11):
    shapes = ((batch_size, seqlen_q, 4, 8), (batch_size, seqlen_k, 2, 8),
              (batch_size, seqlen_k, 2, 6))
    return [jnp.asarray(x).astype(dtype) for x in plain.random(2, *shapes)]


def by_jax(q, k, v, bias=None, causal=True, sink=None, slopes=None):
    """(out, lse) by their definition."""
    k, v = (jnp.repeat(x, q.shape[2] // x.shape[2], axis=2) for x in (k, v))
    scores = jnp.einsum("bihd,bjhd->bhij", q, k) / np.sqrt(q.shape[-1])
    if bias is not None:
        scores = scores + bias
    i, j = plain.positions(q.shape[1], k.shape[1])
    if slopes is not None:
        scores = scores - slopes[..., None, None] * abs(i - j)
    if causal:
        scores = jnp.where(j <= i, scores, -jnp.inf)
    lse = jax.nn.logsumexp(scores, axis=-1)
    if sink is not None:
        lse = jnp.logaddexp(lse, sink[:, None])
    return jnp.einsum("bhij,bjhd->bihd", jnp.exp(scores - lse[..., None]), v), lse


def loss_of(function):
    """A number that depends on each element of both results."""
    def loss(*args):
        out, lse = function(*args)
        return (out * jnp.cos(jnp.arange(out.size).reshape(out.shape))).sum() + \
            (lse * jnp.sin(jnp.arange(lse.size).reshape(lse.shape))).sum()
    return loss


def close(found, right, tolerance):
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(right), strict=True):
        assert a.shape == b.shape and a.dtype == b.dtype
        assert abs(a - b).max() < tolerance, abs(a - b).max()


ours = functools.partial(fj.attention, causal=True, return_lse=True)


def test_jit_and_gradients():
    q, k, v = qkv()
    bias, = (jnp.asarray(x) for x in plain.random(3, (1, 4, 9, 11)))
    sink = jnp.asarray([0.5, -1, 2, 0], jnp.float32)

    def theirs(q, k, v, bias, sink):
        return by_jax(q, k, v, bias, sink=sink)

    def mine(q, k, v, bias, sink):
        return ours(q, k, v, bias=bias, sink=sink)

    args = (q, k, v, bias, sink)
    gradients = jax.jit(jax.grad(loss_of(theirs), range(5)))(*args)
    for wrap in (lambda f: f, jax.jit):
        close(wrap(mine)(*args), jax.jit(theirs)(*args), 5e-6)
        close(wrap(jax.grad(loss_of(mine), range(5)))(*args), gradients, 2e-5)
    # Of one result alone, and of inputs that are left out.
    close(jax.grad(lambda k: ours(q, k, v)[1].sum())(k),
          jax.jit(jax.grad(lambda k: by_jax(q, k, v)[1].sum()))(k), 1e-5)
    close(jax.grad(lambda v: ours(q, k, v)[0].sum())(v),
          jax.jit(jax.grad(lambda v: by_jax(q, k, v)[0].sum()))(v), 1e-5)


@pytest.mark.parametrize("dtype, out_dtype", [("bfloat16", None), ("float16", None),
                                              ("bfloat16", jnp.float32)])
def test_dtypes(dtype, out_dtype):
    q, k, v = qkv(dtype)
    out, lse = jax.jit(functools.partial(ours, out_dtype=out_dtype))(q, k, v)
    assert out.dtype == (out_dtype or dtype) and lse.dtype == np.float32
    right, _ = by_jax(*(x.astype(np.float32) for x in (q, k, v)))
    assert abs(out - right).max() < 2.5e-2
    gradient = jax.grad(lambda q: ours(q, k, v, out_dtype=out_dtype)[0].sum())(q)
    assert gradient.dtype == dtype


def test_expressions():
    q, k, v = qkv()
    table = jnp.linspace(-1, 1, 11, dtype=np.float32)
    document = jnp.asarray(np.arange(11) // 4, np.int32)

    def mine(q, table):
        return fj.attention(
            q, k, v, score=lambda s, b, h, i, j, t: s + t[j] * t[j],
            mask="d[k_idx] <=\n d[q_idx] + int(param.x)", aux={"t": table, "d": document},
            params={"x": 1}, return_lse=True)

    def theirs(q, table):
        seen = document[None, :] <= document[:9, None] + 1
        bias = jnp.where(seen, table * table, -jnp.inf)
        return by_jax(q, k, v, bias, causal=False)

    close(jax.jit(mine)(q, table), jax.jit(theirs)(q, table), 5e-6)
    close(*[jax.jit(jax.grad(loss_of(f), (0, 1)))(q, table) for f in (mine, theirs)], 2e-5)


def test_packed_sequences():
    q, k, v = (x[0] for x in qkv())
    starts_q, starts_k = jnp.asarray([0, 4, 9], np.int32), jnp.asarray([0, 6, 11], np.int32)

    def mine(q, k, v):
        return ours(q, k, v, cu_seqlens_q=starts_q, cu_seqlens_k=starts_k)

    def theirs(q, k, v):
        parts = [by_jax(q[None, a:b], k[None, c:d], v[None, c:d])
                 for a, b, c, d in ((0, 4, 0, 6), (4, 9, 6, 11))]
        return (jnp.concatenate([out[0] for out, _ in parts]),
                jnp.concatenate([lse[0] for _, lse in parts], axis=1))

    for wrap in (lambda f: f, lambda f: jax.grad(loss_of(f), (0, 1, 2))):
        close(*[jax.jit(wrap(f))(q, k, v) for f in (mine, theirs)], 2e-5)


def test_dropout():
    q, k, v = qkv()

    @jax.jit
    def drop(seed):
        return fj.attention(q, k, v, dropout_p=0.5, dropout_seed=seed)

    key = jax.random.key(3)
    assert (drop(key) == drop(key)).all() and (drop(key) != drop(jax.random.key(4))).any()
    # The mask is that of the same seed elsewhere, and the gradient's, too.
    right = flashtile.attention(q, k, v, dropout_p=0.5, dropout_seed=5 << 32 | 7)
    seed = jnp.asarray([7, 5], jnp.uint32)
    assert (drop(seed) == right).all()
    assert (fj.attention(q, k, v, dropout_p=0.5, dropout_seed=5 << 32 | 7) == right).all()
    linear = jax.grad(lambda v: fj.attention(q, k, v, dropout_p=0.5, dropout_seed=seed).sum())(v)
    assert abs((linear * v).sum() - right.sum()) < 1e-4
    with pytest.raises(ValueError, match="dropout_seed is not"):
        fj.attention(q, k, v, dropout_p=0.5)


BIAS = plain.random(4, (3, 1, 4, 9, 11), (3, 2, 4, 9, 11), (1, 4, 9, 11), (2, 4, 9, 11))
SLOPES = plain.random(5, (3, 4), (3, 2, 4), (4,), (2, 4))


@pytest.mark.parametrize("axes, arrays", [
    ((0, None, None), {}), ((None, 1, None), {}),
    ((0, 0, 0), {"bias": (BIAS[0], 0)}), ((0, 0, None), {"bias": (BIAS[1], 0)}),
    ((0, 0, 0), {"bias": (BIAS[2], None)}), ((0, 0, 0), {"bias": (BIAS[3], None)}),
    ((0, 0, 0), {"slopes": (SLOPES[0], 0)}), ((0, 0, 0), {"slopes": (SLOPES[1], 0)}),
    ((0, None, 0), {"slopes": (SLOPES[2], None)}), ((0, None, 0), {"slopes": (SLOPES[3], None)}),
    ((0, 0, 0), {"sink": (SLOPES[2], None)}), ((0, 0, 0), {"sink": (SLOPES[0], 0)}),
])
def test_vmap(axes, arrays):
    q, k, v = qkv(batch_size=6)
    parts = []
    for x, axis in zip((q, k, v), axes):
        x = x.reshape(3, 2, *x.shape[1:])
        parts.append(x[0] if axis is None else jnp.moveaxis(x, 0, axis))
    rest = [jnp.asarray(array) for array, _ in arrays.values()]
    names = list(arrays)

    def mine(q, k, v, *rest):
        given = dict(zip(names, rest))
        return ours(q, k, v, bias=given.get("bias"), sink=given.get("sink"),
                    alibi_slopes=given.get("slopes"))

    def theirs(q, k, v, *rest):
        return by_jax(q, k, v, **dict(zip(names, rest)))

    in_axes = (*axes, *[axis for _, axis in arrays.values()])
    args = (*parts, *rest)
    both = [jax.vmap(f, in_axes) for f in (mine, theirs)]
    close(*[jax.jit(f)(*args) for f in both], 5e-6)
    close(*[jax.jit(jax.vmap(jax.grad(loss_of(f), range(len(args))), in_axes))(*args)
            for f in (mine, theirs)], 3e-5)


def test_gradients_of_vmap():
    q, k, v = qkv(batch_size=6)
    q = q.reshape(3, 2, *q.shape[1:])
    both = [jax.vmap(f, (0, None, None)) for f in (ours, by_jax)]
    close(*[jax.jit(jax.grad(loss_of(f), range(3)))(q, k[:2], v[:2]) for f in both], 5e-5)


def test_vmap_where_calls_cannot_be_one():
    q, k, v = qkv(batch_size=6)
    split = [x.reshape(3, 2, *x.shape[1:]) for x in (q, k, v)]
    text = "score + t[batch]"  # of which sequence? the one in its own call
    table = jnp.asarray([1.0, 2.0], np.float32)
    found = jax.vmap(lambda *x: ours(*x, score=text, aux={"t": table}))(*split)
    for n in range(3):
        close([x[n] for x in found], ours(*[x[n] for x in split], score=text, aux={"t": table}),
              1e-6)
    rows = [x[:, 0] for x in split]
    starts = jnp.asarray([0, 4, 9], np.int32), jnp.asarray([0, 6, 11], np.int32)
    packed = functools.partial(ours, cu_seqlens_q=starts[0], cu_seqlens_k=starts[1])
    found = jax.vmap(packed)(*rows)
    for n in range(3):
        close([x[n] for x in found], packed(*[x[n] for x in rows]), 1e-6)


@pytest.mark.parametrize("split", ["batch", "heads"])
def test_shard_map(split):
    devices = jax.devices("cpu")
    if len(devices) < 2:
        pytest.skip("JAX was started with one device")
    mesh = jax.sharding.Mesh(np.asarray(devices[:2]), ("x",))
    spec = jax.sharding.PartitionSpec
    places = (spec("x"), spec("x")) if split == "batch" else \
        (spec(None, None, "x"), spec(None, "x"))
    shard_map = getattr(jax, "shard_map", None)
    if shard_map is None:
        from jax.experimental.shard_map import shard_map
    # The sink is whole on each device where the batch is split: its gradient is of all.
    of_sink = spec() if split == "batch" else spec("x")
    mine = shard_map(lambda q, k, v, sink: ours(q, k, v, sink=sink), mesh=mesh,
                     in_specs=(*(places[0],) * 3, of_sink), out_specs=places)
    args = (*qkv(), jnp.asarray([0.5, -1, 2, 0], jnp.float32))

    def theirs(q, k, v, sink):
        return by_jax(q, k, v, sink=sink)

    for wrap in (lambda f: f, lambda f: jax.grad(loss_of(f), range(4))):
        close(*[jax.jit(wrap(f))(*args) for f in (mine, theirs)], 2e-5)


def test_errors():
    q, k, v = qkv()
    with pytest.raises(Exception, match="head_dim of k is 4, of q 8"):
        jax.block_until_ready(fj.attention(q, k[..., :4], v))
    with pytest.raises(Exception, match="attention_fwd_scalar"):
        jax.block_until_ready(fj.attention(
            *(x.astype(np.float16) for x in (q, k, v)), implementation="attention_fwd_sm90"))
    with pytest.raises(TypeError, match="no argument 'casual'"):
        fj.attention(q, k, v, casual=True)
    with pytest.raises(TypeError, match="softmax_scale is traced"):
        jax.jit(lambda s: fj.attention(q, k, v, softmax_scale=s))(0.5)
    with pytest.raises(ValueError, match="dtype of out is int32"):
        fj.attention(q.astype(np.int32), k, v)
