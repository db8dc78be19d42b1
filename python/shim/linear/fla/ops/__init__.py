# SPDX-License-Identifier: Apache-2.0
"""The operators that flashtile has, by flash-linear-attention's names: (batch, seqlen, heads, dim),
packed sequences by cu_seqlens in a batch of one."""

from fla.ops.delta_rule import chunk_delta_rule, fused_recurrent_delta_rule
from fla.ops.gated_delta_rule import (
    chunk_gated_delta_rule,
    chunk_gdn,
    fused_recurrent_gated_delta_rule,
    fused_recurrent_gdn,
)
from fla.ops.generalized_delta_rule import (
    chunk_dplr_delta_rule,
    chunk_iplr_delta_rule,
    fused_recurrent_dplr_delta_rule,
    fused_recurrent_iplr_delta_rule,
)
from fla.ops.gla import chunk_gla, fused_recurrent_gla
from fla.ops.gsa import chunk_gsa, fused_recurrent_gsa
from fla.ops.hgrn import chunk_hgrn, fused_recurrent_hgrn
from fla.ops.kda import chunk_kda, fused_recurrent_kda
from fla.ops.lightning_attn import chunk_lightning_attn, fused_recurrent_lightning_attn
from fla.ops.linear_attn import (
    chunk_linear_attn,
    fused_chunk_linear_attn,
    fused_recurrent_linear_attn,
)
from fla.ops.retention import (
    chunk_retention,
    fused_chunk_retention,
    fused_recurrent_retention,
    parallel_retention,
)
from fla.ops.rwkv4 import fused_recurrent_rwkv4
from fla.ops.rwkv6 import chunk_rwkv6, fused_recurrent_rwkv6
from fla.ops.rwkv7 import chunk_rwkv7, fused_mul_recurrent_rwkv7, fused_recurrent_rwkv7
from fla.ops.simple_gla import (
    chunk_simple_gla,
    fused_chunk_simple_gla,
    fused_recurrent_simple_gla,
    parallel_simple_gla,
)

__all__ = [
    "chunk_delta_rule", "chunk_dplr_delta_rule", "chunk_gated_delta_rule", "chunk_gdn",
    "chunk_gla", "chunk_gsa", "chunk_hgrn", "chunk_iplr_delta_rule", "chunk_kda",
    "chunk_lightning_attn", "chunk_linear_attn", "chunk_retention", "chunk_rwkv6", "chunk_rwkv7",
    "chunk_simple_gla", "fused_chunk_linear_attn", "fused_chunk_retention",
    "fused_chunk_simple_gla", "fused_mul_recurrent_rwkv7", "fused_recurrent_delta_rule",
    "fused_recurrent_dplr_delta_rule", "fused_recurrent_gated_delta_rule", "fused_recurrent_gdn",
    "fused_recurrent_gla", "fused_recurrent_gsa", "fused_recurrent_hgrn",
    "fused_recurrent_iplr_delta_rule", "fused_recurrent_kda", "fused_recurrent_lightning_attn",
    "fused_recurrent_linear_attn", "fused_recurrent_retention", "fused_recurrent_rwkv4",
    "fused_recurrent_rwkv6", "fused_recurrent_rwkv7", "fused_recurrent_simple_gla",
    "parallel_retention", "parallel_simple_gla"]
