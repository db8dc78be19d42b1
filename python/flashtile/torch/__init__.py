# SPDX-License-Identifier: Apache-2.0
"""Attention for PyTorch, with gradients.

The ops flashtile::attention_fwd and flashtile::attention_bwd are custom ops of torch.library, made
from the operator table, with fake kernels and autograd: torch.compile, export, opcheck and
gradcheck see them as they see PyTorch's own. Above them stand `attention`, a function shaped like
PyTorch's scaled_dot_product_attention with a context manager that puts it in its place, and one
shaped like flex_attention.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

try:
    import torch
    import torch.nn.functional
    from torch.overrides import TorchFunctionMode
except ImportError as error:
    raise ImportError("flashtile.torch needs PyTorch: pip install torch") from error

from flashtile import _torch_sdpa, expressions
from flashtile._attention import ScoreOrMask, Window, dtype_name, gradient_name
from flashtile._table import core_op, output_shape, tables
from flashtile._torch_sdpa import new_seed
from flashtile._vmap import folded, folds, unfolded

__all__ = ["attention", "flex_attention", "scaled_dot_product_attention", "sdpa"]

try:
    from torch.nn.attention.flex_attention import noop_mask as _noop_mask
except ImportError:  # before PyTorch 2.5, which has no BlockMask
    _noop_mask = None  # type: ignore[assignment]

_FORWARD = tables()["attention_fwd"]
_BACKWARD = tables()["attention_bwd"]
# Inputs that both ops have: those that are written, and what goes with them, have no gradients.
_SHARED = {row.name for row in _BACKWARD.tensors}
_INPUTS = tuple(row for row in _FORWARD.singles()
                if row.is_input and row.name in _SHARED)
_OPTIONS = _FORWARD.single_options()
_SCHEMA_TYPES = {"bool": "bool?", "int": "SymInt?", "float": "float?", "str": "str?"}
_TORCH_DTYPES = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16,
                 "f64": torch.float64, "u8": torch.uint8}
_PLAIN_TENSORS = (torch.Tensor, torch.nn.Parameter)
# Arguments of both ops behind the tensors: what has no place in the table comes last.
_NUM_INPUTS = len(_INPUTS)
_INPUT_NAMES = tuple(row.name for row in _INPUTS)
_NUM_OPTIONS = len(_OPTIONS)
_PLACE = {row.name: place for place, row in enumerate(_OPTIONS)}
_NAMES = {table.name: tuple(row.name for row in table.singles())
          for table in (_FORWARD, _BACKWARD)}

_ARGUMENTS = ", ".join(
    [f"Tensor{'' if row.required else '?'} {row.name}" for row in _INPUTS] +
    ["Tensor[] aux", "str[] aux_names", "float[] params", "str[] param_names"] +
    [f"{_SCHEMA_TYPES[row.type]} {row.name}" for row in _OPTIONS] +
    ["str? out_dtype", "str? implementation"])

_LIBRARY: Any = torch.library.Library(  # type: ignore[no-untyped-call]
    "flashtile", "DEF")
_LIBRARY.define(f"attention_fwd({_ARGUMENTS}) -> (Tensor, Tensor)")
_LIBRARY.define("attention_bwd(str[] gradients, Tensor dout, Tensor? dlse, Tensor out, Tensor lse, "
                f"{_ARGUMENTS}) -> Tensor[]")


class _Arguments:
    """The arguments that both ops share, taken apart."""

    def __init__(self, arguments: tuple[Any, ...]) -> None:
        self.inputs = arguments[:_NUM_INPUTS]
        (self.aux, self.aux_names, self.params,
         self.param_names) = arguments[_NUM_INPUTS:_NUM_INPUTS + 4]
        self.options = list(arguments[_NUM_INPUTS + 4:_NUM_INPUTS + 4 + _NUM_OPTIONS])
        self.out_dtype, self.implementation = arguments[-2:]

    def named_inputs(self) -> dict[str, torch.Tensor]:
        named = {row.name: tensor for row, tensor in zip(_INPUTS, self.inputs)
                 if tensor is not None}
        named.update(self.named_aux())
        return named

    def named_aux(self) -> dict[str, torch.Tensor]:
        return {f"aux.{name}": tensor for name, tensor in zip(self.aux_names, self.aux)}

    def run(self, op: str, given: Mapping[str, torch.Tensor], results: tuple[str, ...],
            dtypes: dict[str, str] | None) -> tuple[torch.Tensor, ...]:
        tensors: dict[str, torch.Tensor] = {**self.named_inputs(), **given}
        seed = tensors.get("dropout_seed_tensor")
        if seed is not None and seed.device != self.inputs[0].device:
            self.options[_PLACE["dropout_seed"]] = int(tensors.pop("dropout_seed_tensor").item())
        families: dict[str, Any] = {
            f"param.{name}": value for name, value in zip(self.param_names, self.params)}
        families.update(self.named_aux())
        with torch.no_grad():
            return core_op(op).run(
                tuple(map(tensors.get, _NAMES[op])), tuple(self.options), families or None,
                results, dtypes, self.implementation, 0)


def _lse_dtype(q: torch.Tensor) -> str:
    return "f64" if q.dtype == torch.float64 else "f32"


def _forward(*arguments: Any) -> tuple[torch.Tensor, torch.Tensor]:
    call = _Arguments(arguments)
    dtypes = {"lse": _lse_dtype(arguments[0])}
    if call.out_dtype is not None:
        dtypes["out"] = call.out_dtype
    out, lse = call.run("attention_fwd", {}, ("out", "lse"), dtypes)
    return out, lse


def _forward_fake(*arguments: Any) -> tuple[torch.Tensor, torch.Tensor]:
    call = _Arguments(arguments)
    q = arguments[0]
    shapes = {name: tensor.shape for name, tensor in call.named_inputs().items()}
    dtype = q.dtype if call.out_dtype is None else _TORCH_DTYPES[call.out_dtype]
    return (q.new_empty(output_shape(_FORWARD, "out", shapes), dtype=dtype),
            q.new_empty(output_shape(_FORWARD, "lse", shapes),
                        dtype=_TORCH_DTYPES[_lse_dtype(q)]))


def _backward(gradients: list[str], dout: torch.Tensor, dlse: torch.Tensor | None,
              out: torch.Tensor, lse: torch.Tensor, *arguments: Any) -> list[torch.Tensor]:
    given = {"dout": dout, "out": out, "lse": lse}
    if dlse is not None:
        given["dlse"] = dlse
    return list(_Arguments(arguments).run(
        "attention_bwd", given, tuple(gradient_name(name) for name in gradients), None))


def _backward_fake(gradients: list[str], dout: torch.Tensor, dlse: torch.Tensor | None,
                   out: torch.Tensor, lse: torch.Tensor, *arguments: Any) -> list[torch.Tensor]:
    inputs = _Arguments(arguments).named_inputs()
    return [inputs[name].new_empty(inputs[name].shape) for name in gradients]


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Any, ...]) -> None:
    call = _Arguments(inputs)
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(*call.inputs, *call.aux, *output)
    ctx.rest = inputs[_NUM_INPUTS + 1:-2], call.implementation


def _gradients(ctx: Any, needs: Sequence[bool], dout: torch.Tensor | None,
               dlse: torch.Tensor | None, run: Callable[..., Any]) -> list[torch.Tensor | None]:
    """Gradients of inputs and aux tensors, in that order."""
    *saved, out, lse = ctx.saved_tensors
    rest, implementation = ctx.rest
    names = [*_INPUT_NAMES, *[f"aux.{name}" for name in rest[0]]]
    wanted = [name for name, is_needed in zip(names, needs) if is_needed]
    if not wanted or dout is None and dlse is None:
        return [None] * len(names)
    if dout is None:
        dout = torch.zeros_like(out)
    if dlse is not None:
        dlse = dlse.float()  # of f64, too, which the table does not have here
    found = dict(zip(wanted, run(
        wanted, dout, dlse, out, lse, *saved[:_NUM_INPUTS], list(saved[_NUM_INPUTS:]), *rest, None,
        implementation)))
    return [found.get(name) for name in names]


def _autograd(ctx: Any, dout: torch.Tensor | None, dlse: torch.Tensor | None) -> tuple[Any, ...]:
    needs = [*ctx.needs_input_grad[:_NUM_INPUTS], *(ctx.needs_input_grad[_NUM_INPUTS] or ())]
    found = _gradients(ctx, needs, dout, dlse, torch.ops.flashtile.attention_bwd)
    # An empty list counts as one of tensors, and wants one.
    others = (*ctx.rest[0], None, None)
    return (*found[:_NUM_INPUTS], found[_NUM_INPUTS:],
            *[[] if isinstance(part, (list, tuple)) and not part else None for part in others])


class _AtOnce(torch.autograd.Function):
    """Autograd without torch.library, which takes milliseconds for ops of many arguments."""

    @staticmethod
    def forward(ctx: Any, arguments: tuple[Any, ...], *tensors: Any) -> Any:
        output = _forward(*arguments)
        _setup_context(ctx, arguments, output)
        return output

    @staticmethod
    def backward(ctx: Any, *cotangents: Any) -> Any:
        dout, dlse = cotangents
        # With create_graph the op says that it has no second derivatives.
        run = torch.ops.flashtile.attention_bwd if torch.is_grad_enabled() else _backward
        return (None, *_gradients(ctx, ctx.needs_input_grad[1:], dout, dlse, run))


def _no_second(ctx: Any, *gradients: Any) -> Any:
    raise NotImplementedError("flashtile: attention has no second derivatives")


_OF_BACKWARD = ("dout", "dlse", "out", "lse")  # in front of the shared arguments


class _Batched:
    """Arguments of one of the ops under vmap: the axis in front, and which tensors have it."""

    def __init__(self, in_dims: tuple[Any, ...], arguments: tuple[Any, ...],
                 is_backward: bool) -> None:
        self.arguments = [self._moved(*pair) for pair in zip(arguments, in_dims)]
        self.dims = in_dims
        self.names = (*(_OF_BACKWARD if is_backward else ()), *_INPUT_NAMES)
        self.first = 1 if is_backward else 0  # the names of gradients come before the tensors
        self.place_of_aux = self.first + len(self.names)
        self.call = _Arguments(tuple(self.arguments[self.place_of_aux - _NUM_INPUTS:]))

    @classmethod
    def _moved(cls, value: Any, dim: Any) -> Any:
        if isinstance(value, list):
            return [cls._moved(*pair) for pair in zip(value, dim or [None] * len(value))]
        return value if dim is None else value.movedim(dim, 0)

    def places(self) -> Iterator[tuple[str, Any, bool]]:
        """Name, tensor and whether it has the axis."""
        for name, tensor, dim in zip(self.names, self.arguments[self.first:],
                                     self.dims[self.first:]):
            if tensor is not None:
                yield name, tensor, dim is not None
        dims = self.dims[self.place_of_aux] or [None] * len(self.call.aux)
        for name, tensor, dim in zip(self.call.aux_names, self.call.aux, dims):
            yield f"aux.{name}", tensor, dim is not None

    def with_tensors(self, change: Callable[[str, Any, bool], Any]) -> list[Any]:
        """The arguments with other tensors."""
        changed = {name: change(name, tensor, is_batched)
                   for name, tensor, is_batched in self.places()}
        given = list(self.arguments)
        given[self.first:self.place_of_aux] = map(changed.get, self.names)
        given[self.place_of_aux] = [changed[f"aux.{name}"] for name in self.call.aux_names]
        return given

    def uses_random_numbers(self) -> bool:
        return bool(self.call.options[_PLACE["dropout_p"]])

    def texts(self) -> list[str]:
        named = zip((row.name for row in _OPTIONS), self.call.options)
        return [text for name, text in named if name in ("score", "mask") and text]


def _vmap(op: Any, is_backward: bool) -> Callable[..., Any]:
    """The rule of an op: one call for the whole axis, or one after the other."""
    def rule(info: Any, in_dims: tuple[Any, ...], *arguments: Any) -> Any:
        size = info.batch_size
        given = _Batched(in_dims, arguments, is_backward)
        wanted = arguments[0] if is_backward else []
        batched = {name: is_batched for name, _, is_batched in given.places()}
        if given.uses_random_numbers() or not folds(batched, wanted, given.texts()):
            parts = []
            for n in range(size):
                parts.append(op(*given.with_tensors(
                    lambda _, tensor, has: tensor[n] if has else tensor)))
            found = [torch.stack(results) for results in zip(*parts)]
        else:
            shapes = {name: tensor.shape[1 if has else 0:] for name, tensor, has in given.places()}
            batch_size = shapes["q"][0]
            results = op(*given.with_tensors(
                lambda name, tensor, has: folded(name, tensor, has, name in wanted, size,
                                                 batch_size, torch.broadcast_to)))
            known = [shapes[name] for name in wanted] or [None] * len(results)
            found = [unfolded(*pair) for pair in zip(results, [size] * len(results), known)]
        if is_backward:
            return found, [0] * len(found)
        return tuple(found), (0,) * len(found)
    return rule


for _name, _kernel, _fake in (("attention_fwd", _forward, _forward_fake),
                              ("attention_bwd", _backward, _backward_fake)):
    for _device in ("CPU", "CUDA"):
        _LIBRARY.impl(_name, _kernel, _device)
    torch.library.register_fake(f"flashtile::{_name}", _fake, lib=_LIBRARY)
torch.library.register_autograd("flashtile::attention_fwd", _autograd,
                                setup_context=_setup_context, lib=_LIBRARY)
torch.library.register_autograd("flashtile::attention_bwd", _no_second, lib=_LIBRARY)
torch.library.register_vmap("flashtile::attention_fwd",
                            _vmap(torch.ops.flashtile.attention_fwd, False), lib=_LIBRARY)
torch.library.register_vmap("flashtile::attention_bwd",
                            _vmap(torch.ops.flashtile.attention_bwd, True), lib=_LIBRARY)


def _cast(tensor: torch.Tensor) -> torch.Tensor:
    """What autocast does to operands of products."""
    if tensor.is_floating_point() and tensor.dtype != torch.float64:
        return tensor.to(torch.get_autocast_dtype(tensor.device.type))
    return tensor


def _is_seen_by_others(tensors: list[torch.Tensor]) -> bool:
    """Whether a compiler, a mode, a transform or a subclass of Tensor has to see the op of a call;
    where none has, the long way through torch.library is left out."""
    return torch.compiler.is_compiling() or torch._C._get_tracing_state() is not None or \
        bool(torch._C._len_torch_dispatch_stack() or torch._C._len_torch_function_stack()) or \
        torch._C._are_functorch_transforms_active() or \
        any(type(tensor) not in _PLAIN_TENSORS for tensor in tensors)


def _run(arguments: tuple[Any, ...]) -> tuple[torch.Tensor, torch.Tensor]:
    """The op attention_fwd, by the shortest way."""
    tensors = [tensor for tensor in (*arguments[:_NUM_INPUTS], *arguments[_NUM_INPUTS])
               if tensor is not None]
    if _is_seen_by_others(tensors):
        result = torch.ops.flashtile.attention_fwd(*arguments)
    elif torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors):
        result = _AtOnce.apply(arguments, *arguments[:_NUM_INPUTS], *arguments[_NUM_INPUTS])
    else:
        result = _forward(*arguments)
    out, lse = result
    return out, lse


def _traced(given: ScoreOrMask, slot: str, aux: dict[str, torch.Tensor],
            params: Mapping[str, float]) -> str | None:
    if not callable(given):
        return given
    text, captured = expressions.trace(given, slot, aux=aux, params=params)
    aux.update(captured)
    return text


def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, causal: bool = False,
              window: Window | None = None, score: ScoreOrMask = None, mask: ScoreOrMask = None,
              aux: Mapping[str, torch.Tensor] | None = None,
              params: Mapping[str, float] | None = None, dropout_p: float = 0.0,
              dropout_seed: int | torch.Tensor | None = None, return_lse: bool = False,
              out_dtype: torch.dtype | None = None, implementation: str | None = None,
              **others: Any) -> Any:
    """flashtile.attention with gradients for q, k, v, bias, alibi_slopes, sink and f32 aux tensors.

    Works under autocast and torch.compile. lse has a gradient, too. Second derivatives
    are refused.

    Args:
        q, k, v, causal, window, score, mask, aux, params, return_lse: as for flashtile.attention.
            Functions may also read tensors of their closure, which get gradients as aux tensors do.
            Inside torch.compile, give texts: flashtile.trace makes them of functions.
        dropout_seed: default: drawn from PyTorch's generator of the device of q. A tensor (1) of
            int64 is read when the op runs: by each run of a compiled graph, and where it lies on
            the device of q by each replay of a CUDA graph.
        out_dtype: that of q, or torch.float32.
        others: all other inputs and options of flashtile.attention but those that write (k_new,
            rotary_*, arrays for results), which flashtile.attention takes without gradients.

    Returns:
        out, or (out, lse).

    Raises:
        ValueError, NotImplementedError, RuntimeError: as flashtile.attention does.

    >>> q = torch.ones(1, 3, 2, 8, requires_grad=True)
    >>> flashtile.torch.attention(q, q, q, causal=True).sum().backward()
    >>> q.grad.shape
    torch.Size([1, 3, 2, 8])
    """
    tensors = {"q": q, "k": k, "v": v}
    if torch.is_autocast_enabled(q.device.type):
        tensors = {name: _cast(tensor) for name, tensor in tensors.items()}
    read = dict(aux or {})
    scalars = params or {}
    options: dict[str, Any] = {"score": _traced(score, "score", read, scalars),
                               "mask": _traced(mask, "mask", read, scalars), "causal": causal}
    if window is not None:
        options["window_left"], options["window_right"] = window
    if dropout_p > 0:
        options["dropout_p"] = dropout_p
        if dropout_seed is None:
            dropout_seed = new_seed(q.device)
        if isinstance(dropout_seed, torch.Tensor):
            tensors["dropout_seed_tensor"] = dropout_seed.reshape(1)
        else:
            options["dropout_seed"] = dropout_seed
    for name, value in others.items():
        if name in _PLACE:
            options[name] = value
        elif name in _INPUT_NAMES:
            tensors[name] = value
        else:
            raise TypeError(f"flashtile.torch.attention has no argument '{name}'")
    out, lse = _run((
        *map(tensors.get, _INPUT_NAMES), list(read.values()), list(read),
        [float(value) for value in scalars.values()], list(scalars),
        *map(options.get, _PLACE), None if out_dtype is None else dtype_name(out_dtype),
        implementation))
    return (out, lse) if return_lse else out


def added_mask(mask: torch.Tensor) -> torch.Tensor:
    """A bool mask (True: seen) as numbers to add to scores; one of floats as it is."""
    if mask.dtype != torch.bool:
        return mask
    return torch.zeros_like(mask, dtype=torch.float32).masked_fill(~mask, -torch.inf)


def scaled_dot_product_attention(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor,
                                 attn_mask: torch.Tensor | None = None, dropout_p: float = 0.0,
                                 is_causal: bool = False, scale: float | None = None,
                                 enable_gqa: bool = False) -> torch.Tensor:
    """torch.nn.functional.scaled_dot_product_attention by flashtile, argument for argument.

    Args:
        query, key, value: (..., heads, seqlen, head_dim); seqlen_q and head_dim_v may differ.
        attn_mask: bool (True: seen) or float (added), broadcast to (..., heads, seqlen_q,
            seqlen_k). A float one gets its gradient. A row that sees nothing gives 0.
        dropout_p: probability of dropping a weight.
        is_causal: aligned top-left, as PyTorch's is.
        scale: default 1/sqrt(head_dim).
        enable_gqa: key and value may have fewer heads, of which the query's is a multiple.

    Raises:
        ValueError: a shape is wrong, or attn_mask and is_causal are both given.
    """
    if attn_mask is not None and is_causal:
        raise ValueError("scaled_dot_product_attention: attn_mask and is_causal are both given")
    if query.dim() < 2 or not query.dim() == key.dim() == value.dim():
        raise ValueError(f"scaled_dot_product_attention: query, key and value have {query.dim()}, "
                         f"{key.dim()} and {value.dim()} dimensions, expected as many, at least 2")
    if query.dim() >= 3 and query.shape[-3] != key.shape[-3] and not enable_gqa:
        raise ValueError(f"scaled_dot_product_attention: query has {query.shape[-3]} heads, key "
                         f"{key.shape[-3]}, expected as many without enable_gqa")
    shape = query.shape

    def rows(tensor: torch.Tensor) -> torch.Tensor:
        while tensor.dim() < 4:
            tensor = tensor.unsqueeze(0)
        return tensor.flatten(0, -4).transpose(1, 2)

    bias = None if attn_mask is None else added_mask(attn_mask)
    if bias is not None:
        while bias.dim() < 4:
            bias = bias.unsqueeze(0)
        if query.dim() > 4:
            bias = bias.expand(*shape[:-3], *bias.shape[-3:]).flatten(0, -4)
        bias = bias.expand(*bias.shape[:-1], key.shape[-2])
    out: torch.Tensor = attention(
        rows(query), rows(key), rows(value), causal=is_causal, bias=bias, softmax_scale=scale,
        dropout_p=dropout_p, query_offset=0 if is_causal else None)
    return out.transpose(1, 2).reshape(*shape[:-1], value.shape[-1])


_torch_sdpa.register()
_TORCH_SDPA = torch.nn.functional.scaled_dot_product_attention


class _InPlaceOfSdpa(TorchFunctionMode):
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is _TORCH_SDPA:
            func = scaled_dot_product_attention
        return func(*args, **(kwargs or {}))


@contextlib.contextmanager
def sdpa() -> Iterator[None]:
    """Inside, torch.nn.functional.scaled_dot_product_attention is flashtile's, for all callers.

    Callers that look the function up in its module get it in other threads, too.

    >>> q = torch.ones(1, 2, 3, 8)
    >>> with flashtile.torch.sdpa():
    ...     torch.nn.functional.scaled_dot_product_attention(q, q, q).shape
    torch.Size([1, 2, 3, 8])
    """
    functional: Any = torch.nn.functional
    before = functional.scaled_dot_product_attention
    # Functions of PyTorch itself that call it are not seen by the mode, which is off inside them.
    functional.scaled_dot_product_attention = scaled_dot_product_attention
    try:
        with _InPlaceOfSdpa():
            yield
    finally:
        functional.scaled_dot_product_attention = before


def _block_lists(block_mask: Any) -> dict[str, Any]:
    """The blocks of a BlockMask, those that it calls full among the others."""
    rows, columns = block_mask.BLOCK_SIZE
    listed = block_mask.to_dense() > 0
    return {"block_counts": listed.sum(-1, dtype=torch.int32), "block_rows": rows,
            "block_indices": listed.to(torch.int8).argsort(dim=-1, descending=True,
                                                           stable=True).int(),
            "block_cols": columns}


def flex_attention(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor,
                   score_mod: Callable[..., Any] | None = None, block_mask: Any = None,
                   scale: float | None = None, enable_gqa: bool = False,
                   return_lse: bool = False, kernel_options: Any = None) -> Any:
    """torch.nn.attention.flex_attention.flex_attention by flashtile.

    score_mod and the block mask's mask_mod are traced to expressions, once a call; tensors that
    they index get gradients. `block_mask` may also be a mask_mod itself, whose expression says
    which blocks are visited. A BlockMask may have no mask_mod; where it has one, its pairs are
    those in the blocks that it lists for which mask_mod is true, also in blocks that it calls full.

    Args:
        query, key, value: (batch, heads, seqlen, head_dim).
        score_mod: f(score, batch, head, q_idx, k_idx) -> score.
        block_mask: a BlockMask, or f(batch, head, q_idx, k_idx) -> bool.
        scale: default 1/sqrt(head_dim).
        enable_gqa: key and value may have fewer heads.
        return_lse: return (out, lse), lse (batch, heads, seqlen_q), f32.
        kernel_options: must be None: they are of PyTorch's kernels.

    Raises:
        TraceError: (a ValueError) a function cannot be an expression.
    """
    if kernel_options is not None:
        raise ValueError("flex_attention: kernel_options are given, expected None")
    if query.shape[1] != key.shape[1] and not enable_gqa:
        raise ValueError(f"flex_attention: query has {query.shape[1]} heads, key {key.shape[1]}, "
                         "expected as many without enable_gqa")
    mask, blocks = block_mask, {}
    if hasattr(block_mask, "kv_num_blocks"):
        blocks = _block_lists(block_mask)
        mask = None if block_mask.mask_mod is _noop_mask else block_mask.mask_mod
    out, lse = attention(query.transpose(1, 2), key.transpose(1, 2), value.transpose(1, 2),
                         score=score_mod, mask=mask, softmax_scale=scale, return_lse=True,
                         **blocks)
    out = out.transpose(1, 2)
    return (out, lse) if return_lse else out
