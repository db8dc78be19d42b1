# SPDX-License-Identifier: Apache-2.0
# Made by scripts/linear_stubs.py from the operator table.
from typing import Any

import torch

def linear_attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *,
        cu_seqlens: torch.Tensor | None = None, initial_state: torch.Tensor | None = None,
        initial_norm: torch.Tensor | None = None, scale: float | None = None,
        normalize: bool = False, return_final_state: bool = False, out_dtype: Any = None,
        implementation: str | None = None) -> Any:
    """Linear attention.

    S_t = S_(t-1) + k_t v_t', o_t = S_t' (scale q_t); with normalize over
    scale q_t . sum(k) + 1e-10. Katharopoulos 2020 (arXiv:2006.16236).
    """
    ...

def linear_attention_step(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, state: torch.Tensor, *,
        state_slots: torch.Tensor | None = None, norm: torch.Tensor | None = None,
        scale: float | None = None, normalize: bool = False, out_dtype: Any = None,
        implementation: str | None = None) -> torch.Tensor:
    """Linear attention, one row of each sequence.

    S_t = S_(t-1) + k_t v_t', o_t = S_t' (scale q_t); with normalize over
    scale q_t . sum(k) + 1e-10. Katharopoulos 2020 (arXiv:2006.16236).
    """
    ...

def retention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *,
        cu_seqlens: torch.Tensor | None = None, initial_state: torch.Tensor | None = None,
        scale: float | None = None, return_final_state: bool = False, out_dtype: Any = None,
        implementation: str | None = None) -> Any:
    """Retention, a constant decay for each head.

    S_t = (1 - 2^(-5-h)) S_(t-1) + k_t v_t' in head h, o_t = S_t' (scale q_t).
    RetNet, Sun 2023 (arXiv:2307.08621).
    """
    ...

def retention_step(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, state: torch.Tensor, *,
        state_slots: torch.Tensor | None = None, scale: float | None = None, out_dtype: Any = None,
        implementation: str | None = None) -> torch.Tensor:
    """Retention, a constant decay for each head, one row of each sequence.

    S_t = (1 - 2^(-5-h)) S_(t-1) + k_t v_t' in head h, o_t = S_t' (scale q_t).
    RetNet, Sun 2023 (arXiv:2307.08621).
    """
    ...

def lightning(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *,
        cu_seqlens: torch.Tensor | None = None, initial_state: torch.Tensor | None = None,
        scale: float | None = None, layer: int | None = None, layers: int | None = None,
        return_final_state: bool = False, out_dtype: Any = None,
        implementation: str | None = None) -> Any:
    """Lightning attention, a constant decay for each head and layer.

    S_t = exp(-8/H (1 - layer/layers) h) S_(t-1) + k_t v_t' in head h of H, o_t = S_t' (scale q_t).
    Lightning attention, Qin 2024 (arXiv:2401.04658).
    """
    ...

def lightning_step(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, state: torch.Tensor, *,
        state_slots: torch.Tensor | None = None, scale: float | None = None,
        layer: int | None = None, layers: int | None = None, out_dtype: Any = None,
        implementation: str | None = None) -> torch.Tensor:
    """Lightning attention, a constant decay for each head and layer, one row of each sequence.

    S_t = exp(-8/H (1 - layer/layers) h) S_(t-1) + k_t v_t' in head h of H, o_t = S_t' (scale q_t).
    Lightning attention, Qin 2024 (arXiv:2401.04658).
    """
    ...

def simple_gla(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, g: torch.Tensor | None = None,
        g_gamma: torch.Tensor | None = None, cu_seqlens: torch.Tensor | None = None,
        initial_state: torch.Tensor | None = None, scale: float | None = None,
        return_final_state: bool = False, out_dtype: Any = None,
        implementation: str | None = None) -> Any:
    """Gated linear attention, a log decay for each row and head.

    S_t = exp(g_t + g_gamma) S_(t-1) + k_t v_t', o_t = S_t' (scale q_t).
    Yang 2024 (arXiv:2312.06635) with one decay for a head.
    """
    ...

def simple_gla_step(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, state: torch.Tensor, *,
        g: torch.Tensor | None = None, g_gamma: torch.Tensor | None = None,
        state_slots: torch.Tensor | None = None, scale: float | None = None, out_dtype: Any = None,
        implementation: str | None = None) -> torch.Tensor:
    """Gated linear attention, a log decay for each row and head, one row of each sequence.

    S_t = exp(g_t + g_gamma) S_(t-1) + k_t v_t', o_t = S_t' (scale q_t).
    Yang 2024 (arXiv:2312.06635) with one decay for a head.
    """
    ...

def mamba2(x: torch.Tensor, dt: torch.Tensor, B: torch.Tensor, C: torch.Tensor, A: torch.Tensor, *,
        D: torch.Tensor | None = None, dt_bias: torch.Tensor | None = None,
        cu_seqlens: torch.Tensor | None = None, initial_state: torch.Tensor | None = None,
        dt_softplus: bool = False, dt_min: float | None = None, dt_max: float | None = None,
        return_final_state: bool = False, out_dtype: Any = None,
        implementation: str | None = None) -> Any:
    """Mamba-2, state-space duality.

    S_t = exp(d A) S_(t-1) + d B_t x_t', o_t = S_t' C_t + D x_t, with d = dt + dt_bias
    through softplus and limits. State-space duality, Dao 2024 (arXiv:2405.21060).
    """
    ...

def mamba2_step(x: torch.Tensor, dt: torch.Tensor, B: torch.Tensor, C: torch.Tensor,
        A: torch.Tensor, state: torch.Tensor, *, D: torch.Tensor | None = None,
        dt_bias: torch.Tensor | None = None, state_slots: torch.Tensor | None = None,
        dt_softplus: bool = False, dt_min: float | None = None, dt_max: float | None = None,
        out_dtype: Any = None, implementation: str | None = None) -> torch.Tensor:
    """Mamba-2, state-space duality, one row of each sequence.

    S_t = exp(d A) S_(t-1) + d B_t x_t', o_t = S_t' C_t + D x_t, with d = dt + dt_bias
    through softplus and limits. State-space duality, Dao 2024 (arXiv:2405.21060).
    """
    ...

def mlstm_exp(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, i: torch.Tensor, f: torch.Tensor,
        *, cu_seqlens: torch.Tensor | None = None, initial_state: torch.Tensor | None = None,
        initial_norm: torch.Tensor | None = None, initial_max: torch.Tensor | None = None,
        scale: float | None = None, return_final_state: bool = False, out_dtype: Any = None,
        implementation: str | None = None) -> Any:
    """XLSTM's matrix memory with an exponential input gate.

    m_t = max(logsigmoid(f) + m', i), S_t = exp(logsigmoid(f) + m' - m) S_(t-1) +
    exp(i - m) k v'; o = S' (scale q) / (max(abs(q.n), exp(-m)) + 1e-6).
    xLSTM, Beck 2024 (arXiv:2405.04517).
    """
    ...

def mlstm_exp_step(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, i: torch.Tensor,
        f: torch.Tensor, state: torch.Tensor, norm: torch.Tensor, max: torch.Tensor, *,
        state_slots: torch.Tensor | None = None, scale: float | None = None, out_dtype: Any = None,
        implementation: str | None = None) -> torch.Tensor:
    """XLSTM's matrix memory with an exponential input gate, one row of each sequence.

    m_t = max(logsigmoid(f) + m', i), S_t = exp(logsigmoid(f) + m' - m) S_(t-1) +
    exp(i - m) k v'; o = S' (scale q) / (max(abs(q.n), exp(-m)) + 1e-6).
    xLSTM, Beck 2024 (arXiv:2405.04517).
    """
    ...

def mlstm_sig(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, i: torch.Tensor, f: torch.Tensor,
        *, cu_seqlens: torch.Tensor | None = None, initial_state: torch.Tensor | None = None,
        initial_norm: torch.Tensor | None = None, scale: float | None = None,
        normalize: bool = False, return_final_state: bool = False, out_dtype: Any = None,
        implementation: str | None = None) -> Any:
    """XLSTM's matrix memory with a sigmoid input gate.

    S_t = sigmoid(f) S_(t-1) + sigmoid(i) k_t v_t', o_t = S_t' (scale q_t); with normalize over
    max(abs(q.n), 1) + 1e-6. Beck 2025 (arXiv:2503.14376).
    """
    ...

def mlstm_sig_step(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, i: torch.Tensor,
        f: torch.Tensor, state: torch.Tensor, *, state_slots: torch.Tensor | None = None,
        norm: torch.Tensor | None = None, scale: float | None = None, normalize: bool = False,
        out_dtype: Any = None, implementation: str | None = None) -> torch.Tensor:
    """XLSTM's matrix memory with a sigmoid input gate, one row of each sequence.

    S_t = sigmoid(f) S_(t-1) + sigmoid(i) k_t v_t', o_t = S_t' (scale q_t); with normalize over
    max(abs(q.n), 1) + 1e-6. Beck 2025 (arXiv:2503.14376).
    """
    ...

def gla(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, g: torch.Tensor, *,
        cu_seqlens: torch.Tensor | None = None, initial_state: torch.Tensor | None = None,
        scale: float | None = None, return_final_state: bool = False, out_dtype: Any = None,
        implementation: str | None = None) -> Any:
    """Gated linear attention, a log decay for each row and key dimension.

    S_t = Diag(exp(g_t)) S_(t-1) + k_t v_t', o_t = S_t' (scale q_t).
    Yang 2024 (arXiv:2312.06635).
    """
    ...

def gla_step(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, g: torch.Tensor,
        state: torch.Tensor, *, state_slots: torch.Tensor | None = None, scale: float | None = None,
        out_dtype: Any = None, implementation: str | None = None) -> torch.Tensor:
    """Gated linear attention, a log decay for each row and key dimension, one row of each sequence.

    S_t = Diag(exp(g_t)) S_(t-1) + k_t v_t', o_t = S_t' (scale q_t).
    Yang 2024 (arXiv:2312.06635).
    """
    ...

def rwkv6(r: torch.Tensor, k: torch.Tensor, v: torch.Tensor, w: torch.Tensor, u_bonus: torch.Tensor,
        *, cu_seqlens: torch.Tensor | None = None, initial_state: torch.Tensor | None = None,
        scale: float | None = None, return_final_state: bool = False, out_dtype: Any = None,
        implementation: str | None = None) -> Any:
    """RWKV-6, vector decay with a bonus for the row itself.

    S_t = Diag(exp(w_t)) S_(t-1) + k_t v_t', o_t = (S_(t-1) + Diag(u_bonus) k_t v_t')'
    (scale r_t). Peng 2024 (arXiv:2404.05892).
    """
    ...

def rwkv6_step(r: torch.Tensor, k: torch.Tensor, v: torch.Tensor, w: torch.Tensor,
        u_bonus: torch.Tensor, state: torch.Tensor, *, state_slots: torch.Tensor | None = None,
        scale: float | None = None, out_dtype: Any = None,
        implementation: str | None = None) -> torch.Tensor:
    """RWKV-6, vector decay with a bonus for the row itself, one row of each sequence.

    S_t = Diag(exp(w_t)) S_(t-1) + k_t v_t', o_t = (S_(t-1) + Diag(u_bonus) k_t v_t')'
    (scale r_t). Peng 2024 (arXiv:2404.05892).
    """
    ...

def gsa(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, s: torch.Tensor, g: torch.Tensor, *,
        cu_seqlens: torch.Tensor | None = None, initial_state_k: torch.Tensor | None = None,
        initial_state_v: torch.Tensor | None = None, scale: float | None = None,
        return_final_state: bool = False, out_dtype: Any = None,
        implementation: str | None = None) -> Any:
    """Gated slot attention.

    o = Sv' softmax(Sk' (scale q)) over slots, Sk = Sk Diag(exp(g)) + k s', Sv =
    Diag(exp(g)) Sv + s v'. Gated slot attention, Zhang 2024 (arXiv:2409.07146).
    """
    ...

def gsa_step(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, s: torch.Tensor, g: torch.Tensor,
        state_k: torch.Tensor, state_v: torch.Tensor, *, state_slots: torch.Tensor | None = None,
        scale: float | None = None, out_dtype: Any = None,
        implementation: str | None = None) -> torch.Tensor:
    """Gated slot attention, one row of each sequence.

    o = Sv' softmax(Sk' (scale q)) over slots, Sk = Sk Diag(exp(g)) + k s', Sv =
    Diag(exp(g)) Sv + s v'. Gated slot attention, Zhang 2024 (arXiv:2409.07146).
    """
    ...

def delta_rule(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, beta: torch.Tensor, *,
        cu_seqlens: torch.Tensor | None = None, initial_state: torch.Tensor | None = None,
        scale: float | None = None, qk_l2norm: bool = False, return_final_state: bool = False,
        out_dtype: Any = None, implementation: str | None = None) -> Any:
    """The delta rule.

    S_t = S_(t-1) + k_t (beta_t (v_t - S_(t-1)' k_t))', o_t = S_t' (scale q_t).
    DeltaNet, Yang 2024 (arXiv:2406.06484).
    """
    ...

def delta_rule_step(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, beta: torch.Tensor,
        state: torch.Tensor, *, state_slots: torch.Tensor | None = None, scale: float | None = None,
        qk_l2norm: bool = False, out_dtype: Any = None,
        implementation: str | None = None) -> torch.Tensor:
    """The delta rule, one row of each sequence.

    S_t = S_(t-1) + k_t (beta_t (v_t - S_(t-1)' k_t))', o_t = S_t' (scale q_t).
    DeltaNet, Yang 2024 (arXiv:2406.06484).
    """
    ...

def gated_delta_rule(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, g: torch.Tensor,
        beta: torch.Tensor, *, cu_seqlens: torch.Tensor | None = None,
        initial_state: torch.Tensor | None = None, scale: float | None = None,
        qk_l2norm: bool = False, return_final_state: bool = False, out_dtype: Any = None,
        implementation: str | None = None) -> Any:
    """The gated delta rule, a log decay for each row and head.

    R = exp(g_t) S_(t-1), S_t = R + k_t (beta_t (v_t - R' k_t))', o_t = S_t' (scale q_t).
    Gated DeltaNet, Yang 2024 (arXiv:2412.06464).
    """
    ...

def gated_delta_rule_step(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, g: torch.Tensor,
        beta: torch.Tensor, state: torch.Tensor, *, state_slots: torch.Tensor | None = None,
        scale: float | None = None, qk_l2norm: bool = False, out_dtype: Any = None,
        implementation: str | None = None) -> torch.Tensor:
    """The gated delta rule, a log decay for each row and head, one row of each sequence.

    R = exp(g_t) S_(t-1), S_t = R + k_t (beta_t (v_t - R' k_t))', o_t = S_t' (scale q_t).
    Gated DeltaNet, Yang 2024 (arXiv:2412.06464).
    """
    ...

def kda(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, g: torch.Tensor, beta: torch.Tensor, *,
        cu_seqlens: torch.Tensor | None = None, initial_state: torch.Tensor | None = None,
        scale: float | None = None, qk_l2norm: bool = False, return_final_state: bool = False,
        out_dtype: Any = None, implementation: str | None = None) -> Any:
    """Kimi delta attention, a log decay for each row and key dimension.

    R = Diag(exp(g_t)) S_(t-1), S_t = R + k_t (beta_t (v_t - R' k_t))', o_t = S_t' (scale q_t).
    Kimi Linear, 2025 (arXiv:2510.26692).
    """
    ...

def kda_step(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, g: torch.Tensor, beta: torch.Tensor,
        state: torch.Tensor, *, state_slots: torch.Tensor | None = None, scale: float | None = None,
        qk_l2norm: bool = False, out_dtype: Any = None,
        implementation: str | None = None) -> torch.Tensor:
    """Kimi delta attention, a log decay for each row and key dimension, one row of each sequence.

    R = Diag(exp(g_t)) S_(t-1), S_t = R + k_t (beta_t (v_t - R' k_t))', o_t = S_t' (scale q_t).
    Kimi Linear, 2025 (arXiv:2510.26692).
    """
    ...

def rwkv7(r: torch.Tensor, w: torch.Tensor, k: torch.Tensor, v: torch.Tensor, a: torch.Tensor,
        b: torch.Tensor, *, cu_seqlens: torch.Tensor | None = None,
        initial_state: torch.Tensor | None = None, scale: float | None = None,
        return_final_state: bool = False, out_dtype: Any = None,
        implementation: str | None = None) -> Any:
    """RWKV-7, diagonal decay plus a term of rank one.

    S_t = Diag(exp(w_t)) S_(t-1) + b_t (S_(t-1)' a_t)' + k_t v_t', o_t = S_t' (scale
    r_t), scale 1. Peng 2025 (arXiv:2503.14456).
    """
    ...

def rwkv7_step(r: torch.Tensor, w: torch.Tensor, k: torch.Tensor, v: torch.Tensor, a: torch.Tensor,
        b: torch.Tensor, state: torch.Tensor, *, state_slots: torch.Tensor | None = None,
        scale: float | None = None, out_dtype: Any = None,
        implementation: str | None = None) -> torch.Tensor:
    """RWKV-7, diagonal decay plus a term of rank one, one row of each sequence.

    S_t = Diag(exp(w_t)) S_(t-1) + b_t (S_(t-1)' a_t)' + k_t v_t', o_t = S_t' (scale
    r_t), scale 1. Peng 2025 (arXiv:2503.14456).
    """
    ...

def dplr_delta_rule(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, a: torch.Tensor,
        b: torch.Tensor, g: torch.Tensor, *, cu_seqlens: torch.Tensor | None = None,
        initial_state: torch.Tensor | None = None, scale: float | None = None,
        return_final_state: bool = False, out_dtype: Any = None,
        implementation: str | None = None) -> Any:
    """Diagonal decay plus a term of rank one.

    S_t = Diag(exp(g_t)) S_(t-1) + b_t (S_(t-1)' a_t)' + k_t v_t', o_t = S_t' (scale q_t).
    """
    ...

def dplr_delta_rule_step(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, a: torch.Tensor,
        b: torch.Tensor, g: torch.Tensor, state: torch.Tensor, *,
        state_slots: torch.Tensor | None = None, scale: float | None = None, out_dtype: Any = None,
        implementation: str | None = None) -> torch.Tensor:
    """Diagonal decay plus a term of rank one, one row of each sequence.

    S_t = Diag(exp(g_t)) S_(t-1) + b_t (S_(t-1)' a_t)' + k_t v_t', o_t = S_t' (scale q_t).
    """
    ...

def iplr_delta_rule(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, a: torch.Tensor,
        b: torch.Tensor, *, cu_seqlens: torch.Tensor | None = None,
        initial_state: torch.Tensor | None = None, scale: float | None = None,
        return_final_state: bool = False, out_dtype: Any = None,
        implementation: str | None = None) -> Any:
    """Identity plus a term of rank one.

    S_t = S_(t-1) + b_t (S_(t-1)' a_t)' + k_t v_t', o_t = S_t' (scale q_t).
    """
    ...

def iplr_delta_rule_step(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, a: torch.Tensor,
        b: torch.Tensor, state: torch.Tensor, *, state_slots: torch.Tensor | None = None,
        scale: float | None = None, out_dtype: Any = None,
        implementation: str | None = None) -> torch.Tensor:
    """Identity plus a term of rank one, one row of each sequence.

    S_t = S_(t-1) + b_t (S_(t-1)' a_t)' + k_t v_t', o_t = S_t' (scale q_t).
    """
    ...

def hgrn(x: torch.Tensor, g: torch.Tensor, *, cu_seqlens: torch.Tensor | None = None,
        initial_state: torch.Tensor | None = None, return_final_state: bool = False,
        out_dtype: Any = None, implementation: str | None = None) -> Any:
    """HGRN, a gated sum of each channel.

    S_t = exp(g_t) S_(t-1) + x_t, o_t = S_t, for each channel.
    Qin 2023 (arXiv:2311.04823).
    """
    ...

def hgrn_step(x: torch.Tensor, g: torch.Tensor, state: torch.Tensor, *,
        state_slots: torch.Tensor | None = None, out_dtype: Any = None,
        implementation: str | None = None) -> torch.Tensor:
    """HGRN, a gated sum of each channel, one row of each sequence.

    S_t = exp(g_t) S_(t-1) + x_t, o_t = S_t, for each channel.
    Qin 2023 (arXiv:2311.04823).
    """
    ...

def mamba1(u: torch.Tensor, dt: torch.Tensor, B: torch.Tensor, C: torch.Tensor, A: torch.Tensor, *,
        z: torch.Tensor | None = None, D: torch.Tensor | None = None,
        dt_bias: torch.Tensor | None = None, cu_seqlens: torch.Tensor | None = None,
        initial_state: torch.Tensor | None = None, dt_softplus: bool = False,
        return_final_state: bool = False, out_dtype: Any = None,
        implementation: str | None = None) -> Any:
    """Mamba's selective scan.

    S_n = exp(d A_n) S_n + d u B_n, o = (S . C + D u) silu(z), for each channel, with
    d = dt + dt_bias through softplus. Gu 2023 (arXiv:2312.00752).
    """
    ...

def mamba1_step(u: torch.Tensor, dt: torch.Tensor, B: torch.Tensor, C: torch.Tensor,
        A: torch.Tensor, state: torch.Tensor, *, z: torch.Tensor | None = None,
        D: torch.Tensor | None = None, dt_bias: torch.Tensor | None = None,
        state_slots: torch.Tensor | None = None, dt_softplus: bool = False, out_dtype: Any = None,
        implementation: str | None = None) -> torch.Tensor:
    """Mamba's selective scan, one row of each sequence.

    S_n = exp(d A_n) S_n + d u B_n, o = (S . C + D u) silu(z), for each channel, with
    d = dt + dt_bias through softplus. Gu 2023 (arXiv:2312.00752).
    """
    ...

def rwkv4(k: torch.Tensor, v: torch.Tensor, w: torch.Tensor, u_bonus: torch.Tensor, *,
        cu_seqlens: torch.Tensor | None = None, initial_state: torch.Tensor | None = None,
        return_final_state: bool = False, out_dtype: Any = None,
        implementation: str | None = None) -> Any:
    """RWKV-4, a weighted mean of each channel.

    o = (exp(eps - t) alpha + exp(u_bonus + k - t) v) / (the same with beta and 1), t =
    max(u_bonus + k, eps), for each channel. Peng 2023 (arXiv:2305.13048).
    """
    ...

def rwkv4_step(k: torch.Tensor, v: torch.Tensor, w: torch.Tensor, u_bonus: torch.Tensor,
        state: torch.Tensor, *, state_slots: torch.Tensor | None = None, out_dtype: Any = None,
        implementation: str | None = None) -> torch.Tensor:
    """RWKV-4, a weighted mean of each channel, one row of each sequence.

    o = (exp(eps - t) alpha + exp(u_bonus + k - t) v) / (the same with beta and 1), t =
    max(u_bonus + k, eps), for each channel. Peng 2023 (arXiv:2305.13048).
    """
    ...

def slstm(i: torch.Tensor, f: torch.Tensor, z: torch.Tensor, o: torch.Tensor, weight: torch.Tensor,
        *, cu_seqlens: torch.Tensor | None = None, initial_state: torch.Tensor | None = None,
        initial_norm: torch.Tensor | None = None, initial_max: torch.Tensor | None = None,
        initial_hidden: torch.Tensor | None = None, return_final_state: bool = False,
        out_dtype: Any = None, implementation: str | None = None) -> Any:
    """XLSTM's scalar memory.

    c = f c' + i tanh(z), n = f n' + i, h = sigmoid(o) c / n with an exponential input
    gate; every gate reads the row before through weight. Beck 2024 (arXiv:2405.04517).
    """
    ...

def slstm_step(i: torch.Tensor, f: torch.Tensor, z: torch.Tensor, o: torch.Tensor,
        weight: torch.Tensor, state: torch.Tensor, norm: torch.Tensor, max: torch.Tensor,
        hidden: torch.Tensor, *, state_slots: torch.Tensor | None = None, out_dtype: Any = None,
        implementation: str | None = None) -> torch.Tensor:
    """XLSTM's scalar memory, one row of each sequence.

    c = f c' + i tanh(z), n = f n' + i, h = sigmoid(o) c / n with an exponential input
    gate; every gate reads the row before through weight. Beck 2024 (arXiv:2405.04517).
    """
    ...

def short_conv(x: torch.Tensor, weight: torch.Tensor, *, bias: torch.Tensor | None = None,
        cu_seqlens: torch.Tensor | None = None, initial_state: torch.Tensor | None = None,
        silu: bool = False, residual: bool = False, return_final_state: bool = False,
        out_dtype: Any = None, implementation: str | None = None) -> Any:
    """Short causal convolution of each channel.

    out_t = sum over j of weight_j x_(t-W+1+j) + bias, for each channel.
    """
    ...

def short_conv_step(x: torch.Tensor, weight: torch.Tensor, state: torch.Tensor, *,
        bias: torch.Tensor | None = None, state_slots: torch.Tensor | None = None,
        silu: bool = False, residual: bool = False, out_dtype: Any = None,
        implementation: str | None = None) -> torch.Tensor:
    """Short causal convolution of each channel, one row of each sequence.

    out_t = sum over j of weight_j x_(t-W+1+j) + bias, for each channel.
    """
    ...

def log_decay_gate(x: torch.Tensor, *, bias: torch.Tensor | None = None,
        A_log: torch.Tensor | None = None, cu_seqlens: torch.Tensor | None = None,
        lower_bound: float | None = None, divisor: float | None = None, out_dtype: Any = None,
        implementation: str | None = None) -> torch.Tensor:
    """Log decays from what a layer projects.

    With y = x + bias: logsigmoid(y); with A_log -exp(A_log) softplus(y); with
    lower_bound lower_bound sigmoid(exp(A_log) y); over divisor.
    """
    ...

def gated_norm(x: torch.Tensor, *, z: torch.Tensor | None = None,
        weight: torch.Tensor | None = None, cu_seqlens: torch.Tensor | None = None,
        gate_first: bool = False, is_sigmoid: bool = False, eps: float | None = None,
        out_dtype: Any = None, implementation: str | None = None) -> torch.Tensor:
    """RMS norm of each head, with a gate.

    weight x / sqrt(mean of x^2 + eps) silu(z).
    """
    ...

def feature_map(x: torch.Tensor, *, cu_seqlens: torch.Tensor | None = None,
        feature_map: str | None = None, out_dtype: Any = None,
        implementation: str | None = None) -> torch.Tensor:
    """What makes queries and keys of linear attention positive.

    elu(x) + 1, relu(x), its square, or softmax over head_dim.
    """
    ...
