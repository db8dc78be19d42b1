# SPDX-License-Identifier: Apache-2.0
"""Attention for JAX, inside jit, with gradients.

An op is a call of XLA's foreign function interface, on CPUs and NVIDIA GPUs; a custom_vjp makes its
gradients another one. jax.vmap folds its axis into the batch where it can, and runs one after the
other where not (packed sequences, aux arrays or sinks that differ). In jax.shard_map each device
attends to what it has: split batch or heads.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any

try:
    import jax
    import jax.numpy as jnp
    import numpy as np
    from jax.custom_batching import custom_vmap
except ImportError as error:
    raise ImportError("flashtile.jax needs JAX: pip install jax") from error

from flashtile import _core
from flashtile._attention import (ScoreOrMask, Window, checked_text, dtype_name,
                                   gradient_name, window_ends)
from flashtile._table import OptionRow, output_shape, tables
from flashtile._vmap import folded, folds, unfolded

__all__ = ["attention"]

_TARGET = "flashtile_op"
_FORWARD = tables()["attention_fwd"]
_BACKWARD = tables()["attention_bwd"]
_INPUTS = tuple(row.name for row in _FORWARD.singles() if row.is_input and
                row.name in {other.name for other in _BACKWARD.tensors})
_OPTIONS = {row.name: row for row in _FORWARD.single_options()}
_JAX_DTYPES = {"f32": jnp.float32, "f16": jnp.float16, "bf16": jnp.bfloat16, "f64": jnp.float64}
_SEED = "dropout_seed_tensor"
_array_type: Any = jax.ShapeDtypeStruct

for _platform, _handler in _core.xla_handlers().items():
    jax.ffi.register_ffi_target(_TARGET, _handler, platform=_platform)


@dataclasses.dataclass(frozen=True)
class _Known:
    """What is known when a program is compiled; hashable, so that programs are found again."""

    options: tuple[tuple[str, str], ...]
    implementation: str
    out_dtype: str


class _Call(_Known):
    """A call of attention."""

    def texts(self) -> list[str]:
        """The score and mask functions."""
        return [text for option, text in self.options if option in ("score", "mask")]


def _axes(arrays: Mapping[str, jax.Array]) -> frozenset[Any]:
    """Axes of a shard_map along which an array differs, in the words of JAX 0.6 and of later."""
    types = [jax.typeof(array) for array in arrays.values()]
    return frozenset().union(*[
        getattr(getattr(entry, "manual_axis_type", entry), "varying", getattr(entry, "vma", ()))
        for entry in types])


def _vary(array: jax.Array, axes: frozenset[Any]) -> jax.Array:
    """An array that counts as one that differs along these axes, too."""
    missing = tuple(axes - _axes({"": array}))
    if not missing:
        return array
    lax: Any = jax.lax
    varied: jax.Array = lax.pcast(array, missing, to="varying") if hasattr(lax, "pcast") else \
        lax.pvary(array, missing)
    return varied


def _ffi_call(call: _Known, op: str, inputs: Mapping[str, jax.Array],
              results: Mapping[str, Any]) -> dict[str, jax.Array]:
    run = jax.ffi.ffi_call(_TARGET, list(results.values()), vmap_method="sequential")
    found = run(*inputs.values(), op=op, inputs=",".join(inputs), outputs=",".join(results),
                options="\n".join(f"{name}={value}" for name, value in call.options),
                implementation=call.implementation)
    axes = _axes(inputs)
    return {name: _vary(array, axes) for name, array in zip(results, found)}


def _shapes(inputs: Mapping[str, jax.Array]) -> dict[str, tuple[int, ...]]:
    return {name: array.shape for name, array in inputs.items() if name != _SEED}


def _run_forward(call: _Call, inputs: dict[str, jax.Array]) -> dict[str, jax.Array]:
    shapes = _shapes(inputs)
    lse_dtype = jnp.float64 if inputs["q"].dtype == jnp.float64 else jnp.float32
    results = {name: _array_type(tuple(output_shape(_FORWARD, name, shapes)), dtype)
               for name, dtype in (("out", _JAX_DTYPES[call.out_dtype]), ("lse", lse_dtype))}
    return _ffi_call(call, "attention_fwd", inputs, results)


def _run_backward(call: _Call, wanted: tuple[str, ...],
                  inputs: dict[str, jax.Array]) -> dict[str, jax.Array]:
    results = {gradient_name(name): _array_type(inputs[name].shape, inputs[name].dtype)
               for name in wanted}
    found = _ffi_call(call, "attention_bwd", inputs, results)
    return {name: found[gradient_name(name)] for name in wanted}


def _by_vmap(call: _Call, size: int, batched: dict[str, bool], inputs: dict[str, jax.Array],
             wanted: tuple[str, ...], run: Any) -> tuple[Any, Any]:
    """One call for a whole axis of vmap, or one after the other."""
    if _SEED in inputs or not folds(batched, wanted, call.texts()):
        shared = {name: array for name, array in inputs.items() if not batched[name]}
        found = jax.lax.map(lambda part: run({**shared, **part}), {
            name: array for name, array in inputs.items() if batched[name]})
        return found, dict.fromkeys(found, True)
    batch_size = inputs["q"].shape[1 if batched["q"] else 0]
    found = run({name: folded(name, array, batched[name], name in wanted, size, batch_size,
                              jnp.broadcast_to) for name, array in inputs.items()})
    shapes = {name: inputs[name].shape[1 if batched[name] else 0:] for name in wanted}
    return ({name: unfolded(array, size, shapes.get(name)) for name, array in found.items()},
            dict.fromkeys(found, True))


def _with_vmap(once: Any, call: _Call, wanted: tuple[str, ...],
               inputs: dict[str, jax.Array]) -> dict[str, jax.Array]:
    """once(inputs), which vmap turns into what _by_vmap says."""
    @custom_vmap
    def run(inputs: dict[str, jax.Array]) -> dict[str, jax.Array]:
        found: dict[str, jax.Array] = once(inputs)
        return found

    @run.def_vmap
    def rule(size: int, batched: Any, inputs: dict[str, jax.Array]) -> tuple[Any, Any]:
        return _by_vmap(call, size, batched[0], inputs, wanted,
                        functools.partial(_with_vmap, once, call, wanted))

    found: dict[str, jax.Array] = run(inputs)
    return found


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _attention(call: _Call, inputs: dict[str, jax.Array]) -> tuple[jax.Array, jax.Array]:
    found = _with_vmap(functools.partial(_run_forward, call), call, (), inputs)
    return found["out"], found["lse"]


def _attention_fwd(call: _Call, inputs: dict[str, Any]) -> tuple[Any, Any]:
    values = {name: entry.value for name, entry in inputs.items()}
    out, lse = _attention(call, values)
    wanted = {name: None for name, entry in inputs.items()
              if entry.perturbed and jnp.issubdtype(entry.value.dtype, jnp.floating)}
    return (out, lse), (values, wanted, out, lse)


def _attention_bwd(call: _Call, kept: Any, cotangents: tuple[Any, Any]) -> tuple[Any]:
    values, wanted, out, lse = kept
    dout, dlse = cotangents
    none = [isinstance(entry, jax.custom_derivatives.SymbolicZero) for entry in cotangents]
    found: dict[str, Any] = {name: None for name in values}
    if wanted and not all(none):
        given = {**values, "out": out, "lse": lse,
                 "dout": jnp.zeros_like(out) if none[0] else dout}
        if not none[1]:
            given["dlse"] = dlse.astype(jnp.float32)
        names = tuple(wanted)
        found.update(_with_vmap(functools.partial(_run_backward, call, names), call, names, given))
    return (found,)


_attention.defvjp(_attention_fwd, _attention_bwd, symbolic_zeros=True)


def _option_text(row: OptionRow, value: Any) -> str:
    if isinstance(value, jax.core.Tracer):
        raise TypeError(f"attention: {row.name} is traced by JAX (jit, grad, vmap), expected a "
                        f"{row.type} that is known when the program is compiled")
    if row.type == "bool":
        return "true" if value else "false"
    if row.type == "float":
        return repr(float(value))
    return str(int(value)) if row.type == "int" else " ".join(str(value).split())


def _traced(given: ScoreOrMask, slot: str, aux: Mapping[str, jax.Array],
            params: Mapping[str, float]) -> str | None:
    if not callable(given):
        return checked_text(slot, given)
    from flashtile.expressions import trace
    return trace(given, slot, aux=aux, params=params)[0]


def _seed_words(seed: Any) -> jax.Array:
    """Two u32 of a seed: a PRNG key of JAX, an int, or an array of up to two integers."""
    if jnp.issubdtype(getattr(seed, "dtype", np.dtype(int)), jax.dtypes.prng_key):
        seed = jax.random.key_data(seed)
    if isinstance(seed, int):
        return jnp.asarray([seed & 0xffffffff, seed >> 32 & 0xffffffff], jnp.uint32)
    words = jnp.ravel(jnp.asarray(seed)).astype(jnp.uint32)[:2]
    return jnp.pad(words, (0, 2 - words.shape[0]))


def attention(q: jax.Array, k: jax.Array, v: jax.Array, *, causal: bool = False,
              window: Window | None = None, score: ScoreOrMask = None, mask: ScoreOrMask = None,
              aux: Mapping[str, jax.Array] | None = None,
              params: Mapping[str, float] | None = None, dropout_p: float = 0.0,
              dropout_seed: Any = None, return_lse: bool = False, out_dtype: Any = None,
              implementation: str | None = None, **others: Any) -> Any:
    """flashtile.attention in programs of JAX, with gradients for all floating inputs.

    Under jit, grad, vmap and shard_map. Second derivatives and jvp are refused by JAX.

    Args:
        q, k, v, causal, window, score, mask, aux, params, return_lse: as for flashtile.attention.
            Functions read arrays through aux alone. Options are known at compile time.
        dropout_seed: a PRNG key of JAX, an int, or an array of one or two integers; needed with
            dropout_p. It may differ from call to call of one program. Masks depend on the place
            in the call's own batch and heads: in shard_map give each device a key of its own
            (jax.random.fold_in with jax.lax.axis_index).
        out_dtype: that of q, or jnp.float32.
        others: all other inputs and options of flashtile.attention but those that write. Packed
            calls need max_seqlen_q and max_seqlen_k only on GPUs.

    Returns:
        out, or (out, lse).

    Raises:
        ValueError, TypeError: an argument is wrong. What an op itself finds wrong or refuses (when
            the program runs) is an error of JAX's runtime with flashtile's text.

    >>> q = jnp.ones((1, 3, 2, 8))
    >>> jax.grad(lambda q: flashtile.jax.attention(q, q, q, causal=True).sum())(q).shape
    (1, 3, 2, 8)
    """
    read, scalars = dict(aux or {}), params or {}
    options: dict[str, Any] = {"score": _traced(score, "score", read, scalars),
                               "mask": _traced(mask, "mask", read, scalars), "causal": causal}
    if window is not None:
        options["window_left"], options["window_right"] = window_ends(
            "flashtile.jax.attention", window)
    inputs = {"q": q, "k": k, "v": v}
    for name in _INPUTS[3:]:
        if others.get(name) is not None:
            inputs[name] = others[name]
        others.pop(name, None)
    inputs.update({f"aux.{name}": array for name, array in read.items()})
    inputs = {name: jnp.asarray(array) for name, array in inputs.items()}
    if dropout_p > 0:
        if dropout_seed is None:
            raise ValueError("attention: dropout_p is given, but dropout_seed is not: JAX has no "
                             "generator to draw it from")
        options["dropout_p"] = dropout_p
        inputs[_SEED] = _seed_words(dropout_seed)
    options.update({name: others.pop(name) for name in tuple(others) if name in _OPTIONS})
    if others:
        raise TypeError(f"flashtile.jax.attention has no argument '{min(others)}'")
    texts = [(name, _option_text(_OPTIONS[name], value)) for name, value in options.items()
             if value is not None]
    texts += [(f"param.{name}", repr(float(value))) for name, value in scalars.items()]
    dtype = dtype_name(inputs["q"].dtype if out_dtype is None else out_dtype)
    if dtype not in _JAX_DTYPES:
        raise ValueError(f"attention: dtype of out is {dtype}, expected one of "
                         f"{', '.join(_JAX_DTYPES)}")
    axes = _axes(inputs)
    inputs = {name: _vary(array, axes) for name, array in inputs.items()}
    out, lse = _attention(_Call(tuple(texts), implementation or "", dtype), inputs)
    return (out, lse) if return_lse else out
