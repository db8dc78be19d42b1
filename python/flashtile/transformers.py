# SPDX-License-Identifier: Apache-2.0
"""attn_implementation="flashtile" for models of Hugging Face's Transformers.

    flashtile.transformers.register()
    model = AutoModelForCausalLM.from_pretrained(name, attn_implementation="flashtile")

Masks stay what they mean: causal, windows and padding at the ends of sequences become options,
everything else (packed sequences, chunks, blocks that see each other, padding in the middle) an
expression traced from the mask function of the model. Nothing quadratic in the length is made,
unless a mask arrives as a tensor.
"""

from __future__ import annotations

import dataclasses
import functools
import sys
import warnings
from collections.abc import Callable
from typing import Any

try:
    import torch
    import transformers
    from transformers import masking_utils
except ImportError as error:
    raise ImportError("flashtile.transformers needs Transformers and PyTorch: "
                      "pip install transformers torch") from error

from flashtile import expressions
from flashtile._torch_sdpa import added_mask
from flashtile.torch import attention

__all__ = ["Mask", "attention_forward", "make_mask", "register"]

NAME = "flashtile"


@dataclasses.dataclass
class Mask:
    """What the layers of a model get as attention_mask: arguments of flashtile.torch.attention."""

    batch_size: int
    seqlen_q: int
    seqlen_k: int
    options: dict[str, Any]  # causal, window, mask and params
    tensors: dict[str, torch.Tensor]  # seqused_k, leftpad_k
    aux: dict[str, torch.Tensor]  # what `mask` reads

    ndim = 4

    @property
    def shape(self) -> tuple[int, int, int, int]:
        return self.batch_size, 1, self.seqlen_q, self.seqlen_k

    def to(self, *args: Any, **kwargs: Any) -> Mask:
        """A mask on another device."""
        def moved(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
            return {name: tensor.to(*args, **kwargs) for name, tensor in tensors.items()}
        return dataclasses.replace(self, tensors=moved(self.tensors), aux=moved(self.aux))

    def arguments(self) -> dict[str, Any]:
        return {**self.options, **self.tensors, "aux": self.aux}


def _known_window(function: Callable[..., Any], local_size: int | None) -> dict[str, Any] | None:
    """causal and window where the mask function is one of Transformers' that mean no more."""
    known: list[tuple[Callable[..., Any], dict[str, Any]]] = [
        (masking_utils.causal_mask_function, {"causal": True}),
        (masking_utils.bidirectional_mask_function, {"causal": False})]
    for other, options in known:
        if function is other:  # torch.compile cannot trace functions as we do
            return options
    if local_size is not None:
        known += [(masking_utils.sliding_window_causal_mask_function(local_size),
                   {"causal": True, "window": (local_size - 1, None)}),
                  (masking_utils.sliding_window_bidirectional_mask_function(local_size),
                   {"causal": False, "window": (local_size, local_size)})]
    text, captured = expressions.trace(function, "mask")
    for other, options in known:
        if not captured and text == expressions.trace(other, "mask")[0]:
            return options
    return None


def _padding_at_one_end(padding: torch.Tensor) -> dict[str, torch.Tensor] | None:
    """seqused_k or leftpad_k where each row has its keys in one piece from the first or up to the
    last slot, all rows alike; {} where nothing is padded. Waits for the device."""
    if padding.all():
        return {}
    count = padding.sum(-1, dtype=torch.int32)
    place = torch.arange(padding.shape[-1], device=padding.device)
    if (padding == (place < count[:, None])).all():
        return {"seqused_k": count}
    absent = padding.shape[-1] - count
    if (padding == (place >= absent[:, None])).all():
        return {"leftpad_k": absent}
    return None


def make_mask(batch_size: int, q_length: int, kv_length: int, q_offset: Any = 0,
              kv_offset: int = 0,
              mask_function: Callable[..., Any] = masking_utils.causal_mask_function,
              attention_mask: Any = None, local_size: int | None = None,
              allow_is_causal_skip: bool = True, allow_is_bidirectional_skip: bool = False,
              **kwargs: Any) -> Any:
    """The mask function of the implementation, with the arguments of Transformers' sdpa_mask.

    Returns:
        None where the layers' own is_causal says it all, else a Mask; or a bool tensor, with a
        warning, of a mask function that cannot be traced.
    """
    if isinstance(attention_mask, Mask):
        return attention_mask
    try:
        known = _known_window(mask_function, local_size)
    except expressions.TraceError as error:
        warnings.warn(f"flashtile: a mask is made quadratic in memory, since its function cannot "
                      f"be an expression: {error}", stacklevel=2)
        return masking_utils.sdpa_mask(
            batch_size, q_length, kv_length, q_offset, kv_offset, mask_function, attention_mask,
            local_size, allow_is_causal_skip=False, allow_is_bidirectional_skip=False, **kwargs)
    query_offset = int(q_offset) - kv_offset
    is_aligned = query_offset == kv_length - q_length  # as it is where nobody gives an offset
    padding = masking_utils.prepare_padding_mask(attention_mask, kv_length, kv_offset)
    ends: dict[str, torch.Tensor] | None = {}
    if padding is not None:
        padding = padding[:, kv_offset:kv_offset + kv_length].bool()
        ends = None if torch.compiler.is_compiling() else _padding_at_one_end(padding)
    if known is not None and ends is not None:
        moves = known["causal"] or "window" in known
        if not moves or "leftpad_k" not in ends or is_aligned:
            options = dict(known)
            if moves and "leftpad_k" not in ends:
                options["query_offset"] = query_offset
            if not ends and is_aligned and (
                    allow_is_causal_skip if known["causal"] else allow_is_bidirectional_skip) and \
                    ("window" not in known or kv_length <= (local_size or 0)):
                return None
            return Mask(batch_size, q_length, kv_length, options, ends, {})

    def seen(batch: Any, head: Any, q_idx: Any, k_idx: Any, query_offset: Any,
             shift: Any) -> Any:
        query, key = q_idx + query_offset, k_idx
        if kv_offset:
            shift = expressions.to_int(shift)
            query, key = query + shift, key + shift
        result = mask_function(batch, head, query, key)
        return result if padding is None else result & padding[batch, k_idx]

    # Numbers that differ from token to token are arguments: a text is compiled once.
    params = {"shift": float(kv_offset)} if kv_offset else {}
    text, aux = expressions.trace(
        lambda batch, head, q_idx, k_idx: seen(
            batch, head, q_idx, k_idx, expressions.Expression("query_offset", "int"),
            expressions.Expression("param.shift", "float")), "mask")
    return Mask(batch_size, q_length, kv_length,
                {"mask": text, "params": params, "query_offset": query_offset}, {}, aux)


def _packed(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, starts_q: torch.Tensor,
            starts_k: torch.Tensor, options: dict[str, Any]) -> torch.Tensor:
    out: torch.Tensor = attention(
        *(x.flatten(0, 1) for x in (query, key, value)), cu_seqlens_q=starts_q.int(),
        cu_seqlens_k=starts_k.int(), **options)
    return out.view(*query.shape[:2], *out.shape[1:])


def attention_forward(module: torch.nn.Module, query: torch.Tensor, key: torch.Tensor,
                      value: torch.Tensor, attention_mask: Any, dropout: float = 0.0,
                      scaling: float | None = None, is_causal: bool | None = None,
                      sliding_window: int | None = None, softcap: float | None = None,
                      s_aux: torch.Tensor | None = None,
                      position_bias: torch.Tensor | None = None,
                      **kwargs: Any) -> tuple[torch.Tensor, None]:
    """The attention function of the implementation, as layers of models call it.

    Args:
        query: (batch, heads, seqlen_q, head_dim).
        key, value: (batch, heads_kv, seqlen_k, head_dim), not repeated.
        attention_mask: None, a Mask, or a tensor (batch|1, heads|1, seqlen_q, seqlen_k): bool
            (True: seen) or float (added).
        is_causal: used where no mask is given; default: what the module says.
        sliding_window: keys on each side that a query sees, its own among them; used likewise.
        s_aux: (heads): attention sinks.
        position_bias: (batch|1, heads, seqlen_q, seqlen_k), added to scores.
        kwargs: cu_seq_lens_q, cu_seq_lens_k, max_length_q, max_length_k for packed sequences;
            others are for other implementations.

    Returns:
        (out, None), out (batch, seqlen_q, heads, head_dim_v).

    Raises:
        ValueError: attention weights are asked for (output_attentions).
    """
    if kwargs.get("output_attentions"):
        raise ValueError('attn_implementation "flashtile" has no attention weights to return '
                         '(output_attentions): use "eager" for that')
    query, key, value = (x.transpose(1, 2) for x in (query, key, value))
    options: dict[str, Any] = {"softmax_scale": scaling, "softcap": softcap, "dropout_p": dropout,
                               "sink": None if s_aux is None else s_aux.float(),
                               "bias": position_bias}
    starts = kwargs.get("cu_seq_lens_q")
    if starts is not None or attention_mask is None:
        causal = getattr(module, "is_causal", True) if is_causal is None else is_causal
        options["causal"] = bool(causal)
        if sliding_window is not None:
            options["window"] = (sliding_window - 1, None if causal else sliding_window - 1)
    if starts is not None:
        ends = kwargs.get("cu_seq_lens_k", starts)
        for name in ("q", "k"):
            longest = kwargs.get(f"max_length_{name}")
            options[f"max_seqlen_{name}"] = None if longest is None else int(longest)
        return _packed(query, key, value, starts, ends, options), None
    if isinstance(attention_mask, Mask):
        options.update(attention_mask.arguments())
    elif attention_mask is not None:
        mask = added_mask(attention_mask).expand(-1, -1, -1, key.shape[1])
        options["bias"] = mask if position_bias is None else mask + position_bias
    return attention(query, key, value, **options), None


def _is_flash_attention(original: Callable[..., bool]) -> Callable[..., bool]:
    @functools.wraps(original)
    def requested(config: Any = None, requested_attention_implementation: str | None = None,
                  version: Any = None) -> bool:
        name = requested_attention_implementation
        if config is not None and name is None:
            name = config._attn_implementation
        return name != NAME and original(config, requested_attention_implementation, version)
    return requested


def _be_no_flash_attention() -> None:
    """Transformers takes each name with "flash" in it for a build of flash-attention, which it
    loads, and for which some models make no masks: not ours."""
    question = "is_flash_attention_requested"
    original = getattr(transformers.utils.generic, question)
    if hasattr(original, "__wrapped__"):
        return
    answer = _is_flash_attention(original)
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] == "transformers" and \
                vars(module).get(question) is original:
            setattr(module, question, answer)


def register() -> None:
    """Makes "flashtile" a name for attn_implementation, in this process.

    Raises:
        RuntimeError: Transformers is older than these interfaces.
    """
    if not hasattr(transformers.utils.generic, "is_flash_attention_requested"):
        raise RuntimeError("flashtile.transformers: Transformers is of version "
                           f"{transformers.__version__}, expected 5 or later")
    _be_no_flash_attention()
    transformers.AttentionInterface.register(NAME, attention_forward)
    transformers.AttentionMaskInterface.register(NAME, make_mask)
