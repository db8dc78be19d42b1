# SPDX-License-Identifier: Apache-2.0
"""flashtile.attention on numpy arrays, against numpy's float64."""

import array
import re
import subprocess
import sys
import threading

import ml_dtypes
import numpy as np
import plain
import pytest

import flashtile
from flashtile import _attention
from flashtile._table import tables

TOLERANCE = {np.float32: 3e-6, np.float16: 3e-3, ml_dtypes.bfloat16: 2.5e-2, np.float64: 1e-13}


def qkv(dtype=np.float32, seqlen_q=33, seqlen_k=40):
    return plain.random(1, (2, seqlen_q, 4, 16), (2, seqlen_k, 2, 16), (2, seqlen_k, 2, 24),
                        dtype=dtype)


@pytest.mark.parametrize("dtype", TOLERANCE)
def test_dtypes(dtype):
    q, k, v = qkv(dtype)
    out, lse = flashtile.attention(q, k, v, return_lse=True)
    expected, expected_lse = plain.attention(q, k, v)
    assert isinstance(out, np.ndarray) and out.dtype == dtype and out.shape == (2, 33, 4, 24)
    assert lse.dtype == np.float32 and lse.shape == (2, 4, 33)
    assert abs(out.astype(np.float64) - expected).max() < TOLERANCE[dtype]
    assert abs(lse - expected_lse).max() < 2e-5


def test_float32_results_of_16_bits():
    q, k, v = qkv(ml_dtypes.bfloat16)
    for out_dtype in ("float32", np.float32, "f32"):
        out = flashtile.attention(q, k, v, out_dtype=out_dtype)
        assert out.dtype == np.float32
    rounded = flashtile.attention(q, k, v)
    assert (out.astype(ml_dtypes.bfloat16) == rounded).all()
    assert (out != rounded.astype(np.float32)).any()


i, j = plain.positions(33, 40)
SLOPES = np.array([0.5, 0.25, 0.125, 0.0625], np.float32)
SINK = np.array([-1, 0, 1, 2], np.float32)
BIAS = plain.random(2, (1, 4, 33, 40))[0]
VARIANTS = {
    "causal": (dict(causal=True), dict(seen=j <= i)),
    "window": (dict(window=(5, 2)), dict(seen=(j >= i - 5) & (j <= i + 2))),
    "left": (dict(window=(5, None)), dict(seen=j >= i - 5)),
    "offset": (dict(causal=True, query_offset=-2), dict(seen=j <= i - 9)),
    "chunk": (dict(attention_chunk=8), dict(seen=i // 8 == j // 8)),
    "scale": (dict(softmax_scale=0.0), dict(scale=0.0)),
    "softcap": (dict(softcap=0.5), dict(change=lambda s: 0.5 * np.tanh(s / 0.5))),
    "bias": (dict(bias=BIAS), dict(change=lambda s: s + BIAS)),
    "alibi": (dict(alibi_slopes=SLOPES),
              dict(change=lambda s: s - SLOPES[:, None, None] * abs(i - j))),
    "sink": (dict(sink=SINK), dict(sink=SINK)),
    "expressions": (dict(score="score + t[k_idx] * param.x", mask="(q_idx + k_idx) % 3 != 0",
                         aux={"t": np.arange(40, dtype=np.float32)}, params={"x": 0.125}),
                    dict(change=lambda s: s + 0.125 * np.arange(40), seen=(i - 7 + j) % 3 != 0)),
}


@pytest.mark.parametrize("name", VARIANTS)
def test_options(name):
    options, definition = VARIANTS[name]
    q, k, v = qkv()
    out, lse = flashtile.attention(q, k, v, return_lse=True, **options)
    expected, expected_lse = plain.attention(q, k, v, **definition)
    assert abs(out - expected).max() < 3e-6
    finite = np.isfinite(expected_lse)
    assert (lse[~finite] == expected_lse[~finite]).all()
    assert abs(lse[finite] - expected_lse[finite]).max() < 1e-5
    without = flashtile.attention(q, k, v)
    assert abs(out - without).max() > 1e-3, "the option does nothing"


def test_packed_sequences():
    lengths_q, lengths_k = [3, 0, 17], [5, 4, 17]
    starts_q, starts_k = (np.cumsum([0, *x]).astype(np.int32) for x in (lengths_q, lengths_k))
    q, k, v = plain.random(3, (20, 4, 16), (26, 2, 16), (26, 2, 16))
    out, lse = flashtile.attention(q, k, v, causal=True, cu_seqlens_q=starts_q,
                                   cu_seqlens_k=starts_k, return_lse=True)
    assert lse.shape == (4, 20)
    for b, (sq, sk) in enumerate(zip(lengths_q, lengths_k)):
        rows, keys = slice(starts_q[b], starts_q[b] + sq), slice(starts_k[b], starts_k[b] + sk)
        position, key = plain.positions(sq, sk)
        expected, expected_lse = plain.attention(q[None, rows], k[None, keys], v[None, keys],
                                                 seen=key <= position)
        assert abs(out[rows] - expected[0]).max(initial=0) < 3e-6
        assert abs(lse[:, rows] - expected_lse[0]).max(initial=0) < 1e-5


def test_paged_cache_that_grows():
    used = np.array([5, 9], np.int32)
    table = np.array([[3, 0, 5], [1, 4, 2]], np.int32)
    q, pages_k, pages_v, k_new, v_new = plain.random(
        4, (2, 1, 4, 16), (6, 4, 2, 16), (6, 4, 2, 16), (2, 1, 2, 16), (2, 1, 2, 16))
    before = pages_k.copy()
    out = flashtile.attention(q, pages_k, pages_v, causal=True, seqused_k=used, block_table=table,
                              k_new=k_new, v_new=v_new)
    for b in range(2):
        page, slot = table[b, used[b] // 4], used[b] % 4
        assert (pages_k[page, slot] == k_new[b, 0]).all(), "not stored in the caller's memory"
        keys = pages_k[table[b]].reshape(1, 12, 2, 16)[:, :used[b] + 1]
        values = pages_v[table[b]].reshape(1, 12, 2, 16)[:, :used[b] + 1]
        expected, _ = plain.attention(q[b:b + 1], keys, values)
        assert abs(out[b] - expected[0]).max() < 3e-6
    assert (pages_k != before).any(axis=(2, 3)).sum() == 2


def test_strides_and_memory_of_results():
    q, k, v = qkv()
    expected = flashtile.attention(q, k, v)
    flipped = np.ascontiguousarray(k[:, ::-1])[:, ::-1]
    heads_first = np.ascontiguousarray(q.transpose(0, 2, 1, 3)).transpose(0, 2, 1, 3)
    room = np.zeros((2, 33, 4, 48), np.float32)
    out = room[..., ::2]
    returned = flashtile.attention(heads_first, flipped, v, out=out)
    assert returned is out
    assert (out == expected).all() and (room[..., 1::2] == 0).all()
    same = np.broadcast_to(q[:, :, :1], q.shape)
    assert (flashtile.attention(same, k, v)[:, :, 0] == expected[:, :, 0]).all()


def test_inputs_may_be_read_only_and_results_may_not():
    q, k, v = qkv()
    out = np.empty((2, 33, 4, 24), np.float32)
    for x in (q, k, v, out):
        x.flags.writeable = False
    flashtile.attention(q, k, v)
    with pytest.raises(ValueError, match="out is read-only"):
        flashtile.attention(q, k, v, out=out)


@pytest.mark.parametrize("name", ["k", "v"])
def test_a_cache_that_takes_new_keys_may_not_be_read_only(name):
    q, k, v = qkv()
    new = {"k_new": k[:, :1], "v_new": v[:, :1], "seqused_k": np.full(len(k), 4, np.int32)}
    caches = {"k": k, "v": v}
    caches[name].flags.writeable = False
    before = caches[name].copy()
    with pytest.raises(ValueError, match=f"{name} is read-only, but is to be written"):
        flashtile.attention(q, **caches, **new)
    assert (caches[name] == before).all()


def test_any_buffer_is_an_array():
    numbers = array.array("f", [0.5] * 16)
    q = memoryview(numbers).cast("B").cast("f", (1, 2, 1, 8))
    out = flashtile.attention(q, q, q)
    assert (np.asarray(out) == 0.5).all()


def test_further_results():
    q, k, v = qkv()
    weights = np.empty((2, 4, 33, 40), np.float32)
    keep = np.empty((2, 4, 33, 40), np.uint8)
    largest = np.empty(4, np.float32)
    out = flashtile.attention(q, k, v, dropout_p=0.25, dropout_seed=7, weights=weights,
                              dropout_mask=keep, max_logit=largest)
    assert ((weights != 0) == (keep == 1)).all()
    assert 0.7 < keep.mean() < 0.8
    expected = np.einsum("bhij,bjhd->bihd", weights, np.repeat(v, 2, axis=2))
    assert abs(out - expected).max() < 1e-5
    other = flashtile.attention(q, k, v, dropout_p=0.25, dropout_seed=8)
    assert (out != other).any()


def test_backward_by_finite_differences():
    q, k, v = plain.random(5, (1, 5, 2, 4), (1, 6, 1, 4), (1, 6, 1, 3), dtype=np.float64)
    bias, dout = plain.random(6, (1, 2, 5, 6), (1, 5, 2, 3), dtype=np.float64)
    sink, table = plain.random(7, (2,), (6,))
    given = dict(q=q, k=k, v=v, bias=bias, sink=sink)
    options = dict(causal=True, score="score * (1 + t[k_idx] * t[k_idx])", aux={"t": table})
    out, lse = flashtile.attention(**given, **options, return_lse=True, lse=np.empty((1, 2, 5)))
    wanted = ("v", "aux.t", "q", "bias", "sink", "k")
    found = flashtile.attention_backward(dout, **given, **options, out=out, lse=lse,
                                         gradients=wanted)
    assert tuple(found) == wanted
    memory = {name: np.empty_like(found[name]) for name in ("k", "aux.t")}
    again = flashtile.attention_backward(dout, **given, **options, out=out, lse=lse,
                                         gradients=wanted, into=memory)
    for name in wanted:
        assert (again[name] == found[name]).all() and (again[name] is memory.get(name)) == (
            name in memory)
    with pytest.raises(ValueError, match="into has names"):
        flashtile.attention_backward(dout, q, k, v, out, lse, gradients=("q",), into=memory)

    def loss():
        return (flashtile.attention(**given, **options) * dout).sum()

    for name in wanted:
        x = table if name == "aux.t" else given[name]
        step = 1e-6 if x.dtype == np.float64 else 2.0**-10
        for place in list(np.ndindex(x.shape))[:7]:
            kept = x[place]
            x[place] = kept + step
            above, high = loss(), x[place]
            x[place] = kept - step
            below, low = loss(), x[place]
            x[place] = kept
            slope = (above - below) / (float(high) - float(low))
            assert abs(slope - found[name][place]) < 2e-5, (name, place)


def test_merge():
    q, k, v = qkv()
    parts = [flashtile.attention(q, k[:, a:b], v[:, a:b], return_lse=True)
             for a, b in ((0, 7), (7, 30), (30, 40))]
    out, lse = flashtile.merge(np.stack([p[0] for p in parts]), np.stack([p[1] for p in parts]))
    expected, expected_lse = plain.attention(q, k, v)
    assert abs(out - expected).max() < 3e-6 and abs(lse - expected_lse).max() < 1e-5


@pytest.mark.parametrize("error, text, options", [
    (ValueError, "window_left is -1, expected at least 0", dict(window=(-1, 0))),
    (ValueError, "unknown name 'foo'", dict(score="foo")),
    (ValueError, "dropout_p is 1", dict(dropout_p=1.0)),
    (ValueError, "does not fit", dict(dropout_seed=-1)),
    (ValueError, "there is no dtype 'f33'", dict(out_dtype="f33")),
    (ValueError, "max_workers is -1", dict(max_workers=-1)),
    (TypeError, "causal is 3, expected a bool", dict(causal=3)),
    (TypeError, "softmax_scale is 'x', expected a number", dict(softmax_scale="x")),
    (TypeError, "query_offset is 1.5, expected an int", dict(query_offset=1.5)),
    (TypeError, "bias is a builtins.list, expected an array", dict(bias=[1.0])),
    (TypeError, "unexpected keyword", dict(casual=True)),
    (ValueError, "dtype of sink is f64, expected f32", dict(sink=np.zeros(4))),
])
def test_errors(error, text, options):
    with pytest.raises(error, match=text):
        flashtile.attention(*qkv(), **options)


def test_a_window_is_a_pair():
    q, k, v = qkv()
    for window in (3, (1, 2, 3)):
        with pytest.raises(TypeError, match=r"window is .*, expected \(left, right\)"):
            flashtile.attention(q, k, v, window=window)
        with pytest.raises(TypeError, match="window is"):
            flashtile.explain(q, k, v, window=window)


def test_an_array_as_mask_is_told_how_it_is_read():
    q, k, v = qkv()
    seen = np.tri(q.shape[1], k.shape[1], dtype=np.int32)
    with pytest.raises(TypeError) as raised:
        flashtile.attention(q, k, v, mask=seen)
    told = re.search(r"mask=(.*), aux=(\{.*?\})", str(raised.value))
    out = flashtile.attention(
        q, k, v, mask=eval(told[1]), aux=eval(told[2], {"array": seen}))
    assert np.array_equal(out, flashtile.attention(q, k, v, causal=True, query_offset=0))
    with pytest.raises(TypeError, match="score is a ndarray.*term"):
        flashtile.attention(q, k, v, score=np.zeros((q.shape[1], k.shape[1]), np.float32))
    with pytest.raises(TypeError, match="mask is a int, expected an expression or a function$"):
        flashtile.attention(q, k, v, mask=3)


def test_errors_of_arrays():
    q, k, v = qkv()
    with pytest.raises(ValueError, match="head_dim of k is 8, of q 16"):
        flashtile.attention(q, k[..., :8], v)
    with pytest.raises(ValueError, match="dtype of q .*'D'|'Zd'"):
        flashtile.attention(q.astype(np.complex128), k, v)
    with pytest.raises(ValueError, match="buffer format '>f'"):
        flashtile.attention(q.astype(">f4"), k, v)
    with pytest.raises(ValueError, match="q is not given"):
        flashtile.attention(None, k, v)


def test_refusals_are_listed():
    q, k, v = qkv(np.float64)
    with pytest.raises(NotImplementedError, match="attention_fwd_scalar.*f64") as raised:
        flashtile.attention(q, k, v, implementation="scalar")
    assert "\n" not in str(raised.value) or "scalar" in str(raised.value)
    assert not flashtile.supports(q, k, v, implementation="scalar")
    assert flashtile.supports(q, k, v)


@pytest.mark.parametrize("stored", [np.int8, ml_dtypes.float8_e4m3fn])
def test_quantised_keys(stored):
    q, k, v = qkv()
    scales = np.array([0.03, 0.02], np.float32)
    per_head = scales[None, None, :, None]
    k, v = (np.clip(np.rint(x / per_head), -127, 127).astype(stored) for x in (k, v))
    out = flashtile.attention(q, k, v, k_scale=scales, v_scale=scales)
    wide = (x.astype(np.float32) * per_head for x in (k, v))
    assert np.abs(out - plain.attention(q, *wide)[0]).max() < TOLERANCE[np.float32]


def test_batch_invariant_rows():
    q, k, v = qkv()
    both = flashtile.attention(q, k, v, causal=True, batch_invariant=True)
    last = flashtile.attention(q[1:, -1:], k[1:], v[1:], causal=True, batch_invariant=True)
    assert np.array_equal(both[1:, -1:], last)


def test_explain_and_info():
    explanation = flashtile.explain("attention_fwd:b2:hq4:sq33:d16:causal")
    assert explanation.chosen in flashtile.info()["implementations"]["attention_fwd"]
    assert explanation.chosen in str(explanation) and explanation.plan.startswith(
        explanation.chosen)
    by_arrays = flashtile.explain(*qkv(), causal=True, window=(3, None), implementation="scalar")
    assert by_arrays.chosen == "attention_fwd_scalar"
    assert "causal" in by_arrays.problem and "window_left=3" in by_arrays.problem
    assert flashtile.supports("attention_fwd:d64")
    assert not flashtile.supports("attention_fwd:d64:f64@scalar")
    assert not flashtile.supports("attention_bwd:b2:hq4:sq9:d64:block_table")
    with pytest.raises(TypeError, match="casual"):
        flashtile.explain(*qkv(), casual=True)


def test_other_threads_run_meanwhile():
    q, k, v = plain.random(8, *[(1, 1500, 4, 64)] * 3)
    steps, is_done = [0], threading.Event()

    def count():
        while not is_done.is_set():
            steps[0] += 1

    thread = threading.Thread(target=count)
    thread.start()
    before = steps[0]
    flashtile.attention(q, k, v, implementation="scalar", max_workers=1)
    during = steps[0] - before
    is_done.set()
    thread.join()
    assert during > 1000


def test_every_row_of_the_table_is_an_argument():
    forward = {row.name for row in tables()["attention_fwd"].singles()}
    assert forward == set(_attention._TENSORS)
    options = {row.name for row in tables()["attention_fwd"].single_options()}
    assert options == set(_attention._OPTIONS)
    backward = {row.name for row in tables()["attention_bwd"].singles() if row.is_input}
    assert backward == {*_attention._INPUTS, "dout", "dlse", "out", "lse"}


def test_ops_are_made_from_the_table():
    from flashtile import ops
    assert ops.__all__ == list(tables())
    q, k, v = qkv()
    for name, table in tables().items():
        text = getattr(ops, name).__doc__
        for row in (*table.tensors, *table.options):
            assert row.doc in text
    out, lse, largest = ops.attention_fwd(q, k, v, causal=True, param={"x": 2}, mask="param.x > 1",
                                          results=("out", "lse", "max_logit"))
    assert (out == flashtile.attention(q, k, v, causal=True)).all()
    assert largest.shape == (4,) and lse.shape == (2, 4, 33)
    with pytest.raises(TypeError, match="missing a required argument: 'v'"):
        ops.attention_fwd(q, k)
    with pytest.raises(ValueError, match="give an array for it"):
        ops.attention_fwd(q.reshape(66, 4, 16), k, v, results=("weights",),
                          cu_seqlens_q=np.array([0, 33, 66], np.int32))


@pytest.mark.parametrize("module, text", [
    ("torch", "needs PyTorch: pip install torch"), ("torch.linear", "pip install torch"),
    ("torch.layers", "pip install torch"), ("jax", "needs JAX: pip install jax"),
    ("jax.linear", "pip install jax"), ("transformers", "pip install transformers torch")])
def test_modules_say_what_they_need(module, text):
    code = ("import sys; sys.modules.update({'torch': None, 'jax': None, 'transformers': None})\n"
            f"try: import flashtile.{module}\nexcept ImportError as error: print(error)")
    run = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True,
                         check=True)
    assert text in run.stdout and f"flashtile.{module.partition('.')[0]} needs" in run.stdout


def test_missing_libraries_are_named():
    code = ("import sys; sys.modules['torch'] = sys.modules['numpy'] = None\n"
            "import array, flashtile\n"
            "q = memoryview(array.array('f', [0] * 8)).cast('B').cast('f', (1, 1, 1, 8))\n"
            "calls = lambda: flashtile.attention(q, q, q), lambda: __import__('flashtile.torch')\n"
            "for run in calls:\n"
            "    try: run()\n"
            "    except (RuntimeError, ImportError) as error: print(error)\n")
    run = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True,
                         check=True)
    assert "install numpy" in run.stdout and "pip install torch" in run.stdout
