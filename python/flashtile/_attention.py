# SPDX-License-Identifier: Apache-2.0
"""attention, attention_backward and merge."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Optional, Union

from flashtile._core import Op
from flashtile._table import tables

Array = Any
Window = tuple[Optional[int], Optional[int]]
ScoreOrMask = Union[str, Callable[..., Any], None]

# Rows of the operator table in the order in which the functions below give them.
_INPUTS = ("q", "k", "v", "bias", "alibi_slopes", "sink", "cu_seqlens_q", "cu_seqlens_k",
           "seqused_k", "leftpad_k", "block_table", "cache_batch_idx", "block_counts",
           "block_indices", "dropout_seed_tensor")
CACHE_NAMES = ("k_new", "v_new", "cu_seqlens_new", "rotary_cos", "rotary_sin", "rotary_seqlens",
               "k_scale", "v_scale")
_RESULTS = ("out", "lse", "max_logit", "weights", "dropout_mask")
_OPTIONS = ("softmax_scale", "softcap", "score", "mask", "causal", "window_left", "window_right",
            "query_offset", "attention_chunk", "max_seqlen_q", "max_seqlen_k", "block_rows",
            "block_cols", "rotary_interleaved", "dropout_p", "dropout_seed", "dropout_offset",
            "deterministic", "batch_invariant")
_TENSORS = (*_INPUTS, *CACHE_NAMES, *_RESULTS)
_FORWARD = Op("attention_fwd", list(_TENSORS), list(_OPTIONS))
_BACKWARD = Op("attention_bwd", [*_INPUTS, "dout", "dlse", "out", "lse"], list(_OPTIONS))
_MERGE = Op("attention_merge", ["out_parts", "lse_parts", "out", "lse"], [])
_DTYPES = {"float32": "f32", "float16": "f16", "bfloat16": "bf16", "float64": "f64"}


def dtype_name(dtype: Any) -> str:
    """"f32" for "float32", numpy.float32, torch.float32 and the like."""
    name = getattr(dtype, "__name__", None) or getattr(dtype, "name", None) or str(dtype)
    name = name.rpartition(".")[2]
    return _DTYPES.get(name, name)


def checked_text(slot: str, given: Any) -> str | None:
    """Arrays are what other libraries take as masks; here they are read by expressions."""
    if given is None or isinstance(given, str):
        return given
    found = type(given).__name__
    text = f"attention: {slot} is a {found}, expected an expression or a function"
    if hasattr(given, "shape"):
        args = "b, h, i, j, seen" if slot == "mask" else "s, b, h, i, j, term"
        value = "seen[i, j] != 0" if slot == "mask" else "s + term[i, j]"
        name = args.rpartition(" ")[2]
        text += (f"; an array is read by one: {slot}=lambda {args}: {value}, "
                 f"aux={{'{name}': array}}, with elements of f32, i32 or i64")
    raise TypeError(text)


def _expressions(score: ScoreOrMask, mask: ScoreOrMask, aux: Mapping[str, Array] | None,
                 params: Mapping[str, float] | None) -> tuple[Any, Any, dict[str, Any] | None]:
    """The texts of both, and the tensors and scalars that they read as the op takes them."""
    named: dict[str, Any] = {f"aux.{name}": array for name, array in (aux or {}).items()}
    named.update({f"param.{name}": value for name, value in (params or {}).items()})
    texts = []
    for slot, given in (("score", score), ("mask", mask)):
        if callable(given):
            from flashtile.expressions import trace
            given, captured = trace(given, slot, aux=aux, params=params)
            named.update({f"aux.{name}": array for name, array in captured.items()})
        else:
            given = checked_text(slot, given)
        texts.append(given)
    return texts[0], texts[1], named or None


def window_ends(op: str, window: Window | None) -> Window:
    """(left, right) of an argument `window`."""
    if window is None:
        return None, None
    try:
        left, right = window
    except (TypeError, ValueError):
        raise TypeError(f"{op}: window is {window!r}, expected (left, right): how many other keys "
                        "before and behind are seen, each an int or None") from None
    return left, right


def _seed(seed: int | Array | None) -> tuple[int | None, Array | None]:
    """A seed as the option and as the tensor, one of which is None."""
    return (None, seed) if len(getattr(seed, "shape", ())) == 1 else (seed, None)


def attention(
        q: Array, k: Array, v: Array, *, causal: bool = False, window: Window | None = None,
        softmax_scale: float | None = None, softcap: float | None = None,
        bias: Array | None = None, alibi_slopes: Array | None = None, sink: Array | None = None,
        score: ScoreOrMask = None, mask: ScoreOrMask = None,
        aux: Mapping[str, Array] | None = None, params: Mapping[str, float] | None = None,
        query_offset: int | None = None, attention_chunk: int | None = None,
        dropout_p: float | None = None, dropout_seed: int | Array | None = None,
        dropout_offset: int | None = None,
        cu_seqlens_q: Array | None = None, cu_seqlens_k: Array | None = None,
        max_seqlen_q: int | None = None, max_seqlen_k: int | None = None,
        seqused_k: Array | None = None, leftpad_k: Array | None = None,
        block_table: Array | None = None, cache_batch_idx: Array | None = None,
        k_new: Array | None = None, v_new: Array | None = None,
        cu_seqlens_new: Array | None = None, rotary_cos: Array | None = None,
        rotary_sin: Array | None = None, rotary_seqlens: Array | None = None,
        rotary_interleaved: bool | None = None,
        k_scale: Array | None = None, v_scale: Array | None = None,
        block_counts: Array | None = None, block_indices: Array | None = None,
        block_rows: int | None = None, block_cols: int | None = None,
        deterministic: bool | None = None, batch_invariant: bool | None = None,
        return_lse: bool = False, out_dtype: Any = None,
        out: Array | None = None, lse: Array | None = None, max_logit: Array | None = None,
        weights: Array | None = None, dropout_mask: Array | None = None,
        implementation: str | None = None, max_workers: int = 0) -> Any:
    """Exact attention, tile by tile: softmax(mask(score(q k^T))) v in memory linear in seqlen.

    Arrays are numpy's (bf16 by ml_dtypes), PyTorch's, JAX's, CuPy's, or anything with a buffer or
    __dlpack__; they are used in place, with any strides, on their device and its current stream.
    Results are arrays of the library of q. No gradient is recorded: see flashtile.torch.

    Args:
        q: (batch, seqlen_q, heads, head_dim); packed (total_q, heads, head_dim). f32, f16, bf16,
            or f64 by the reference.
        k: (batch, seqlen_k, heads_kv, head_dim); packed (total_k, ...); paged (num_pages,
            page_size, ...). heads is a multiple of heads_kv.
        v: like k, with head_dim_v.
        causal: query i sees no key behind its position i + query_offset.
        window: (left, right), how many *other* keys before and behind the position are seen, each
            at least 0, or None for all.
        softmax_scale: multiplies q . k; default 1/sqrt(head_dim).
        softcap: softcap * tanh(s / softcap), above 0.
        bias: (batch|1, heads|1, seqlen_q|1, seqlen_k), any float, added; -inf masks.
        alibi_slopes: (heads) or (batch, heads), f32, in 1 per position of distance.
        sink: (heads), f32: a logit in each softmax denominator.
        score, mask: an expression (docs/expressions.md), or a Python function that is traced to
            one: f(score, batch, head, q_idx, k_idx) and f(batch, head, q_idx, k_idx); see
            flashtile.expressions.trace.
        aux: arrays (f32, i32, i64) that expressions read, by name.
        params: scalars that expressions read as param.NAME, or as a parameter NAME.
        query_offset: position of query 0; default seqlen_k - seqlen_q.
        attention_chunk: only keys of the query's own chunk of so many positions.
        dropout_p: probability, in [0, 1), of dropping a weight. The mask is a function of
            dropout_seed, dropout_offset and the place of the weight: give a new seed each call.
        dropout_seed: an int from 0 to 2^64 - 1, or an array (1), i64, of its bits, which is read
            when the call runs: one captured in a CUDA graph reads it at each replay.
        cu_seqlens_q, cu_seqlens_k: (batch + 1), i32: first row of each packed sequence.
        max_seqlen_q, max_seqlen_k: no packed sequence is longer; default: the longest.
        seqused_k, leftpad_k: (batch), i32: stored keys in use from slot 0; those before the first.
        block_table: (batch, pages), i32: the pages of each sequence.
        cache_batch_idx: (batch), i32: the line of k and v that a sequence reads.
        k_new, v_new: (batch, seqlen_new, heads_kv, ...) or packed with cu_seqlens_new: stored in k
            and v behind seqused_k, which are written, and then attended to.
        rotary_cos, rotary_sin: (positions, rotary_dim / 2): turn q and k_new.
        rotary_seqlens: (batch), i32: first row of the tables; default seqused_k.
        rotary_interleaved: pairs (2n, 2n + 1) instead of (n, n + rotary_dim / 2).
        k_scale, v_scale: (heads_kv), (batch, heads_kv) or, paged, (num_pages, heads_kv), f32: what
            k and v of int8 or float8_e4m3fn are multiplied by.
        block_counts, block_indices, block_rows, block_cols: block-sparse lists, (batch|1, heads|1,
            M) and (batch|1, heads|1, M, N), i32, of key blocks by query block.
        deterministic: the same bits in every run; CPUs always are.
        batch_invariant: a row's bits depend on its query and keys alone; refused on a GPU.
        return_lse: return (out, lse).
        out_dtype: dtype of out: that of q, or float32.
        out, lse, max_logit, weights, dropout_mask: arrays to write results into; the last two are
            (batch, heads, seqlen_q, seqlen_k), f32 and u8, max_logit is (heads), f32.
        implementation: force one, such as "attention_fwd_avx2" or "avx2".
        max_workers: threads at most; 0: all, and on a GPU nothing else.

    Returns:
        out, like q with head_dim_v; or (out, lse) with lse (batch, heads, seqlen_q) or (heads,
        total_q), f32, the natural logarithm of the softmax denominator. A row that sees no key has
        out 0 and lse -inf.

    Raises:
        ValueError: an argument is wrong; the text says which, what was found, and what expected.
        NotImplementedError: no implementation takes it; the text has the reason of each.
        RuntimeError: a fault of the device or of memory.

    FlashAttention-2, Dao 2023 (arXiv:2307.08691); online softmax, Milakov and Gimelshein 2018.

    >>> q = np.ones((1, 3, 2, 8), np.float32)
    >>> v = np.arange(48, dtype=np.float32).reshape(1, 3, 2, 8)
    >>> flashtile.attention(q, q, v, causal=True)[0, :, 0, 0]  # means of 0, 16 and 32
    array([ 0.,  8., 16.], dtype=float32)
    """
    named = None
    if score is not None or mask is not None or aux or params:
        score, mask, named = _expressions(score, mask, aux, params)
    left, right = window_ends("attention_fwd", window)
    seed_tensor = None
    if dropout_seed is not None:
        dropout_seed, seed_tensor = _seed(dropout_seed)
    results = _FORWARD.run(
        (q, k, v, bias, alibi_slopes, sink, cu_seqlens_q, cu_seqlens_k, seqused_k, leftpad_k,
         block_table, cache_batch_idx, block_counts, block_indices, seed_tensor, k_new, v_new,
         cu_seqlens_new, rotary_cos, rotary_sin, rotary_seqlens, k_scale, v_scale, out, lse,
         max_logit, weights, dropout_mask),
        (softmax_scale, softcap, score, mask, causal, left, right, query_offset, attention_chunk,
         max_seqlen_q, max_seqlen_k, block_rows, block_cols, rotary_interleaved, dropout_p,
         dropout_seed, dropout_offset, deterministic, batch_invariant),
        named, ("out", "lse") if return_lse else ("out",),
        None if out_dtype is None else {"out": dtype_name(out_dtype)}, implementation, max_workers)
    return results if return_lse else results[0]


def explain_call(q: Array, k: Array, v: Array, *, window: Window | None = None,
                 score: ScoreOrMask = None, mask: ScoreOrMask = None,
                 aux: Mapping[str, Array] | None = None, params: Mapping[str, float] | None = None,
                 return_lse: bool = False, out_dtype: Any = None, implementation: str | None = None,
                 max_workers: int = 0, **given: Any) -> dict[str, Any]:
    """What attention would do with the same arguments."""
    score, mask, named = _expressions(score, mask, aux, params)
    given.update(q=q, k=k, v=v, score=score, mask=mask)
    given["dropout_seed"], given["dropout_seed_tensor"] = _seed(given.get("dropout_seed"))
    given["window_left"], given["window_right"] = window_ends("explain", window)
    unknown = given.keys() - {*_TENSORS, *_OPTIONS}
    if unknown:
        raise TypeError(f"explain: attention has no argument '{min(unknown)}'")
    return _FORWARD.explain(
        tuple(given.get(name) for name in _TENSORS), tuple(given.get(name) for name in _OPTIONS),
        named, ("out", "lse") if return_lse else ("out",),
        None if out_dtype is None else {"out": dtype_name(out_dtype)}, implementation, max_workers)


def mask_blocks(arrays: Mapping[str, Array], block: tuple[int, int], batch: int, head: int,
                **given: Any) -> list[list[int]]:
    """What attention would visit: rows of 0, 1 (in part) or 2 (in full) for blocks of keys."""
    window = given.pop("window", None)
    _, mask, named = _expressions(None, given.pop("mask", None), given.pop("aux", None),
                                  given.pop("params", None))
    given.update(arrays, mask=mask)
    given["window_left"], given["window_right"] = window_ends("plot_mask", window)
    unknown = given.keys() - {*_TENSORS, *_OPTIONS}
    if unknown:
        raise TypeError(f"plot_mask: attention has no argument '{min(unknown)}'")
    return _FORWARD.mask_blocks(
        tuple(given.get(name) for name in _TENSORS), tuple(given.get(name) for name in _OPTIONS),
        named, batch, head, *block)


def attention_backward(
        dout: Array, q: Array, k: Array, v: Array, out: Array, lse: Array, *,
        gradients: Sequence[str] = ("q", "k", "v"), into: Mapping[str, Array] | None = None,
        dlse: Array | None = None, causal: bool = False, window: Window | None = None,
        softmax_scale: float | None = None, softcap: float | None = None,
        bias: Array | None = None,
        alibi_slopes: Array | None = None, sink: Array | None = None,
        score: ScoreOrMask = None, mask: ScoreOrMask = None,
        aux: Mapping[str, Array] | None = None, params: Mapping[str, float] | None = None,
        query_offset: int | None = None, attention_chunk: int | None = None,
        dropout_p: float | None = None, dropout_seed: int | Array | None = None,
        dropout_offset: int | None = None,
        cu_seqlens_q: Array | None = None, cu_seqlens_k: Array | None = None,
        max_seqlen_q: int | None = None, max_seqlen_k: int | None = None,
        seqused_k: Array | None = None, leftpad_k: Array | None = None,
        block_table: Array | None = None, cache_batch_idx: Array | None = None,
        block_counts: Array | None = None, block_indices: Array | None = None,
        block_rows: int | None = None, block_cols: int | None = None,
        deterministic: bool | None = None, batch_invariant: bool | None = None,
        implementation: str | None = None,
        max_workers: int = 0) -> dict[str, Array]:
    """Gradients of sum(out * dout) + sum(lse * dlse) with respect to inputs of attention.

    Args:
        dout: like out: its incoming gradient.
        q, k, v: as attention was given them; so are the options.
        out, lse: what attention returned.
        gradients: names of the inputs whose gradients are wanted, out of q, k, v, bias,
            alibi_slopes, sink, and aux.NAME for f32 tensors that the score reads.
        into: arrays to write gradients into, by the names in `gradients`; others are allocated.
        dlse: like lse: its incoming gradient, where lse is used.

    Other arguments are those of attention. Paged keys and cache_batch_idx have no backward.

    Returns:
        A dict of the wanted gradients by the names in `gradients`, each with shape and dtype of
        its input, in the library of q.

    Raises:
        ValueError, NotImplementedError, RuntimeError: as attention does.
    """
    named = None
    if score is not None or mask is not None or aux or params:
        score, mask, named = _expressions(score, mask, aux, params)
    left, right = window_ends("attention_bwd", window)
    dropout_seed, seed_tensor = _seed(dropout_seed)
    if into:
        if not into.keys() <= set(gradients):
            raise ValueError("attention_bwd: into has names that gradients has not")
        named = {**(named or {}), **{gradient_name(name): into[name] for name in into}}
    results = _BACKWARD.run(
        (q, k, v, bias, alibi_slopes, sink, cu_seqlens_q, cu_seqlens_k, seqused_k, leftpad_k,
         block_table, cache_batch_idx, block_counts, block_indices, seed_tensor, dout, dlse, out,
         lse),
        (softmax_scale, softcap, score, mask, causal, left, right, query_offset, attention_chunk,
         max_seqlen_q, max_seqlen_k, block_rows, block_cols, None, dropout_p, dropout_seed,
         dropout_offset, deterministic, batch_invariant),
        named, tuple(gradient_name(name) for name in gradients), None, implementation, max_workers)
    return dict(zip(gradients, results))


def gradient_name(name: str) -> str:
    """The output of attention_bwd that is the gradient of an input: "daux.x" of "aux.x"."""
    for row in tables()["attention_bwd"].tensors:
        of = row.gradient_of
        if of and (of == name or of.endswith(".*") and name.startswith(of[:-1])):
            return row.name.replace("*", name.partition(".")[2])
    raise ValueError(f"attention_bwd: there is no gradient of '{name}'")


def merge(out_parts: Array, lse_parts: Array, *, return_lse: bool = True, out_dtype: Any = None,
          out: Array | None = None, lse: Array | None = None, implementation: str | None = None,
          max_workers: int = 0) -> Any:
    """Joins results of attention over parts of the keys to that over all of them.

    Args:
        out_parts: (parts, batch, seqlen_q, heads, head_dim_v) or (parts, total_q, heads,
            head_dim_v); f32, f16 or bf16.
        lse_parts: (parts, batch, heads, seqlen_q) or (parts, heads, total_q), f32; -inf where a
            part saw no key.
        return_lse: return (out, lse), else out.
        out_dtype: dtype of out; default that of out_parts.
        out, lse: arrays to write results into.
        implementation, max_workers: as for attention.

    Returns:
        (out, lse) as attention over all keys at once would give them, or out.

    Raises:
        ValueError, NotImplementedError, RuntimeError: as attention does.

    >>> k = np.ones((1, 4, 1, 8), np.float32)
    >>> v = np.arange(32, dtype=np.float32).reshape(1, 4, 1, 8)
    >>> parts = [flashtile.attention(k, k[:, n:n + 2], v[:, n:n + 2], return_lse=True)
    ...          for n in (0, 2)]
    >>> out = flashtile.merge(*map(np.stack, zip(*parts)), return_lse=False)
    >>> bool(np.allclose(out, flashtile.attention(k, k, v)))
    True
    """
    results = _MERGE.run(
        (out_parts, lse_parts, out, lse), (), None, ("out", "lse") if return_lse else ("out",),
        None if out_dtype is None else {"out": dtype_name(out_dtype)}, implementation, max_workers)
    return results if return_lse else results[0]
