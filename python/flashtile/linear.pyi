# SPDX-License-Identifier: Apache-2.0
# Made by scripts/linear_stubs.py from the operator table.
from collections.abc import Sequence
from typing import Any

Array = Any

def linear_attention(q: Array, k: Array, v: Array, *, cu_seqlens: Array | None = None,
        initial_state: Array | None = None, initial_norm: Array | None = None,
        scale: float | None = None, normalize: bool = False, return_final_state: bool = False,
        out_dtype: Any = None, out: Array | None = None, max_workers: int = 0,
        implementation: str | None = None) -> Any:
    """Linear attention.

    S_t = S_(t-1) + k_t v_t', o_t = S_t' (scale q_t); with normalize over
    scale q_t . sum(k) + 1e-10. Katharopoulos 2020 (arXiv:2006.16236).
    """
    ...

def linear_attention_step(q: Array, k: Array, v: Array, state: Array, *,
        state_slots: Array | None = None, norm: Array | None = None, scale: float | None = None,
        normalize: bool = False, out_dtype: Any = None, out: Array | None = None,
        max_workers: int = 0, implementation: str | None = None) -> Array:
    """Linear attention, one row of each sequence.

    S_t = S_(t-1) + k_t v_t', o_t = S_t' (scale q_t); with normalize over
    scale q_t . sum(k) + 1e-10. Katharopoulos 2020 (arXiv:2006.16236).
    """
    ...

def linear_attention_backward(dout: Array, q: Array, k: Array, v: Array, *,
        cu_seqlens: Array | None = None, initial_state: Array | None = None,
        initial_norm: Array | None = None, dfinal_state: Array | None = None,
        dfinal_norm: Array | None = None, scale: float | None = None, normalize: bool = False,
        gradients: Sequence[str] | None = None, max_workers: int = 0,
        implementation: str | None = None) -> dict[str, Array]:
    """Gradients of linear_attention: of sum(out * dout) + sum(final * dfinal)."""
    ...

def retention(q: Array, k: Array, v: Array, *, cu_seqlens: Array | None = None,
        initial_state: Array | None = None, scale: float | None = None,
        return_final_state: bool = False, out_dtype: Any = None, out: Array | None = None,
        max_workers: int = 0, implementation: str | None = None) -> Any:
    """Retention, a constant decay for each head.

    S_t = (1 - 2^(-5-h)) S_(t-1) + k_t v_t' in head h, o_t = S_t' (scale q_t).
    RetNet, Sun 2023 (arXiv:2307.08621).
    """
    ...

def retention_step(q: Array, k: Array, v: Array, state: Array, *, state_slots: Array | None = None,
        scale: float | None = None, out_dtype: Any = None, out: Array | None = None,
        max_workers: int = 0, implementation: str | None = None) -> Array:
    """Retention, a constant decay for each head, one row of each sequence.

    S_t = (1 - 2^(-5-h)) S_(t-1) + k_t v_t' in head h, o_t = S_t' (scale q_t).
    RetNet, Sun 2023 (arXiv:2307.08621).
    """
    ...

def retention_backward(dout: Array, q: Array, k: Array, v: Array, *,
        cu_seqlens: Array | None = None, initial_state: Array | None = None,
        dfinal_state: Array | None = None, scale: float | None = None,
        gradients: Sequence[str] | None = None, max_workers: int = 0,
        implementation: str | None = None) -> dict[str, Array]:
    """Gradients of retention: of sum(out * dout) + sum(final * dfinal)."""
    ...

def lightning(q: Array, k: Array, v: Array, *, cu_seqlens: Array | None = None,
        initial_state: Array | None = None, scale: float | None = None, layer: int | None = None,
        layers: int | None = None, return_final_state: bool = False, out_dtype: Any = None,
        out: Array | None = None, max_workers: int = 0, implementation: str | None = None) -> Any:
    """Lightning attention, a constant decay for each head and layer.

    S_t = exp(-8/H (1 - layer/layers) h) S_(t-1) + k_t v_t' in head h of H, o_t = S_t' (scale q_t).
    Lightning attention, Qin 2024 (arXiv:2401.04658).
    """
    ...

def lightning_step(q: Array, k: Array, v: Array, state: Array, *, state_slots: Array | None = None,
        scale: float | None = None, layer: int | None = None, layers: int | None = None,
        out_dtype: Any = None, out: Array | None = None, max_workers: int = 0,
        implementation: str | None = None) -> Array:
    """Lightning attention, a constant decay for each head and layer, one row of each sequence.

    S_t = exp(-8/H (1 - layer/layers) h) S_(t-1) + k_t v_t' in head h of H, o_t = S_t' (scale q_t).
    Lightning attention, Qin 2024 (arXiv:2401.04658).
    """
    ...

def lightning_backward(dout: Array, q: Array, k: Array, v: Array, *,
        cu_seqlens: Array | None = None, initial_state: Array | None = None,
        dfinal_state: Array | None = None, scale: float | None = None, layer: int | None = None,
        layers: int | None = None, gradients: Sequence[str] | None = None, max_workers: int = 0,
        implementation: str | None = None) -> dict[str, Array]:
    """Gradients of lightning: of sum(out * dout) + sum(final * dfinal)."""
    ...

def simple_gla(q: Array, k: Array, v: Array, *, g: Array | None = None,
        g_gamma: Array | None = None, cu_seqlens: Array | None = None,
        initial_state: Array | None = None, scale: float | None = None,
        return_final_state: bool = False, out_dtype: Any = None, out: Array | None = None,
        max_workers: int = 0, implementation: str | None = None) -> Any:
    """Gated linear attention, a log decay for each row and head.

    S_t = exp(g_t + g_gamma) S_(t-1) + k_t v_t', o_t = S_t' (scale q_t).
    Yang 2024 (arXiv:2312.06635) with one decay for a head.
    """
    ...

def simple_gla_step(q: Array, k: Array, v: Array, state: Array, *, g: Array | None = None,
        g_gamma: Array | None = None, state_slots: Array | None = None, scale: float | None = None,
        out_dtype: Any = None, out: Array | None = None, max_workers: int = 0,
        implementation: str | None = None) -> Array:
    """Gated linear attention, a log decay for each row and head, one row of each sequence.

    S_t = exp(g_t + g_gamma) S_(t-1) + k_t v_t', o_t = S_t' (scale q_t).
    Yang 2024 (arXiv:2312.06635) with one decay for a head.
    """
    ...

def simple_gla_backward(dout: Array, q: Array, k: Array, v: Array, *, g: Array | None = None,
        g_gamma: Array | None = None, cu_seqlens: Array | None = None,
        initial_state: Array | None = None, dfinal_state: Array | None = None,
        scale: float | None = None, gradients: Sequence[str] | None = None, max_workers: int = 0,
        implementation: str | None = None) -> dict[str, Array]:
    """Gradients of simple_gla: of sum(out * dout) + sum(final * dfinal)."""
    ...

def mamba2(x: Array, dt: Array, B: Array, C: Array, A: Array, *, D: Array | None = None,
        dt_bias: Array | None = None, cu_seqlens: Array | None = None,
        initial_state: Array | None = None, dt_softplus: bool = False, dt_min: float | None = None,
        dt_max: float | None = None, return_final_state: bool = False, out_dtype: Any = None,
        out: Array | None = None, max_workers: int = 0, implementation: str | None = None) -> Any:
    """Mamba-2, state-space duality.

    S_t = exp(d A) S_(t-1) + d B_t x_t', o_t = S_t' C_t + D x_t, with d = dt + dt_bias
    through softplus and limits. State-space duality, Dao 2024 (arXiv:2405.21060).
    """
    ...

def mamba2_step(x: Array, dt: Array, B: Array, C: Array, A: Array, state: Array, *,
        D: Array | None = None, dt_bias: Array | None = None, state_slots: Array | None = None,
        dt_softplus: bool = False, dt_min: float | None = None, dt_max: float | None = None,
        out_dtype: Any = None, out: Array | None = None, max_workers: int = 0,
        implementation: str | None = None) -> Array:
    """Mamba-2, state-space duality, one row of each sequence.

    S_t = exp(d A) S_(t-1) + d B_t x_t', o_t = S_t' C_t + D x_t, with d = dt + dt_bias
    through softplus and limits. State-space duality, Dao 2024 (arXiv:2405.21060).
    """
    ...

def mamba2_backward(dout: Array, x: Array, dt: Array, B: Array, C: Array, A: Array, *,
        D: Array | None = None, dt_bias: Array | None = None, cu_seqlens: Array | None = None,
        initial_state: Array | None = None, dfinal_state: Array | None = None,
        dt_softplus: bool = False, dt_min: float | None = None, dt_max: float | None = None,
        gradients: Sequence[str] | None = None, max_workers: int = 0,
        implementation: str | None = None) -> dict[str, Array]:
    """Gradients of mamba2: of sum(out * dout) + sum(final * dfinal)."""
    ...

def mlstm_exp(q: Array, k: Array, v: Array, i: Array, f: Array, *, cu_seqlens: Array | None = None,
        initial_state: Array | None = None, initial_norm: Array | None = None,
        initial_max: Array | None = None, scale: float | None = None,
        return_final_state: bool = False, out_dtype: Any = None, out: Array | None = None,
        max_workers: int = 0, implementation: str | None = None) -> Any:
    """XLSTM's matrix memory with an exponential input gate.

    m_t = max(logsigmoid(f) + m', i), S_t = exp(logsigmoid(f) + m' - m) S_(t-1) +
    exp(i - m) k v'; o = S' (scale q) / (max(abs(q.n), exp(-m)) + 1e-6).
    xLSTM, Beck 2024 (arXiv:2405.04517).
    """
    ...

def mlstm_exp_step(q: Array, k: Array, v: Array, i: Array, f: Array, state: Array, norm: Array,
        max: Array, *, state_slots: Array | None = None, scale: float | None = None,
        out_dtype: Any = None, out: Array | None = None, max_workers: int = 0,
        implementation: str | None = None) -> Array:
    """XLSTM's matrix memory with an exponential input gate, one row of each sequence.

    m_t = max(logsigmoid(f) + m', i), S_t = exp(logsigmoid(f) + m' - m) S_(t-1) +
    exp(i - m) k v'; o = S' (scale q) / (max(abs(q.n), exp(-m)) + 1e-6).
    xLSTM, Beck 2024 (arXiv:2405.04517).
    """
    ...

def mlstm_exp_backward(dout: Array, q: Array, k: Array, v: Array, i: Array, f: Array, *,
        cu_seqlens: Array | None = None, initial_state: Array | None = None,
        initial_norm: Array | None = None, initial_max: Array | None = None,
        dfinal_state: Array | None = None, dfinal_norm: Array | None = None,
        scale: float | None = None, gradients: Sequence[str] | None = None, max_workers: int = 0,
        implementation: str | None = None) -> dict[str, Array]:
    """Gradients of mlstm_exp: of sum(out * dout) + sum(final * dfinal)."""
    ...

def mlstm_sig(q: Array, k: Array, v: Array, i: Array, f: Array, *, cu_seqlens: Array | None = None,
        initial_state: Array | None = None, initial_norm: Array | None = None,
        scale: float | None = None, normalize: bool = False, return_final_state: bool = False,
        out_dtype: Any = None, out: Array | None = None, max_workers: int = 0,
        implementation: str | None = None) -> Any:
    """XLSTM's matrix memory with a sigmoid input gate.

    S_t = sigmoid(f) S_(t-1) + sigmoid(i) k_t v_t', o_t = S_t' (scale q_t); with normalize over
    max(abs(q.n), 1) + 1e-6. Beck 2025 (arXiv:2503.14376).
    """
    ...

def mlstm_sig_step(q: Array, k: Array, v: Array, i: Array, f: Array, state: Array, *,
        state_slots: Array | None = None, norm: Array | None = None, scale: float | None = None,
        normalize: bool = False, out_dtype: Any = None, out: Array | None = None,
        max_workers: int = 0, implementation: str | None = None) -> Array:
    """XLSTM's matrix memory with a sigmoid input gate, one row of each sequence.

    S_t = sigmoid(f) S_(t-1) + sigmoid(i) k_t v_t', o_t = S_t' (scale q_t); with normalize over
    max(abs(q.n), 1) + 1e-6. Beck 2025 (arXiv:2503.14376).
    """
    ...

def mlstm_sig_backward(dout: Array, q: Array, k: Array, v: Array, i: Array, f: Array, *,
        cu_seqlens: Array | None = None, initial_state: Array | None = None,
        initial_norm: Array | None = None, dfinal_state: Array | None = None,
        dfinal_norm: Array | None = None, scale: float | None = None, normalize: bool = False,
        gradients: Sequence[str] | None = None, max_workers: int = 0,
        implementation: str | None = None) -> dict[str, Array]:
    """Gradients of mlstm_sig: of sum(out * dout) + sum(final * dfinal)."""
    ...

def gla(q: Array, k: Array, v: Array, g: Array, *, cu_seqlens: Array | None = None,
        initial_state: Array | None = None, scale: float | None = None,
        return_final_state: bool = False, out_dtype: Any = None, out: Array | None = None,
        max_workers: int = 0, implementation: str | None = None) -> Any:
    """Gated linear attention, a log decay for each row and key dimension.

    S_t = Diag(exp(g_t)) S_(t-1) + k_t v_t', o_t = S_t' (scale q_t).
    Yang 2024 (arXiv:2312.06635).
    """
    ...

def gla_step(q: Array, k: Array, v: Array, g: Array, state: Array, *,
        state_slots: Array | None = None, scale: float | None = None, out_dtype: Any = None,
        out: Array | None = None, max_workers: int = 0, implementation: str | None = None) -> Array:
    """Gated linear attention, a log decay for each row and key dimension, one row of each sequence.

    S_t = Diag(exp(g_t)) S_(t-1) + k_t v_t', o_t = S_t' (scale q_t).
    Yang 2024 (arXiv:2312.06635).
    """
    ...

def gla_backward(dout: Array, q: Array, k: Array, v: Array, g: Array, *,
        cu_seqlens: Array | None = None, initial_state: Array | None = None,
        dfinal_state: Array | None = None, scale: float | None = None,
        gradients: Sequence[str] | None = None, max_workers: int = 0,
        implementation: str | None = None) -> dict[str, Array]:
    """Gradients of gla: of sum(out * dout) + sum(final * dfinal)."""
    ...

def rwkv6(r: Array, k: Array, v: Array, w: Array, u_bonus: Array, *,
        cu_seqlens: Array | None = None, initial_state: Array | None = None,
        scale: float | None = None, return_final_state: bool = False, out_dtype: Any = None,
        out: Array | None = None, max_workers: int = 0, implementation: str | None = None) -> Any:
    """RWKV-6, vector decay with a bonus for the row itself.

    S_t = Diag(exp(w_t)) S_(t-1) + k_t v_t', o_t = (S_(t-1) + Diag(u_bonus) k_t v_t')'
    (scale r_t). Peng 2024 (arXiv:2404.05892).
    """
    ...

def rwkv6_step(r: Array, k: Array, v: Array, w: Array, u_bonus: Array, state: Array, *,
        state_slots: Array | None = None, scale: float | None = None, out_dtype: Any = None,
        out: Array | None = None, max_workers: int = 0, implementation: str | None = None) -> Array:
    """RWKV-6, vector decay with a bonus for the row itself, one row of each sequence.

    S_t = Diag(exp(w_t)) S_(t-1) + k_t v_t', o_t = (S_(t-1) + Diag(u_bonus) k_t v_t')'
    (scale r_t). Peng 2024 (arXiv:2404.05892).
    """
    ...

def rwkv6_backward(dout: Array, r: Array, k: Array, v: Array, w: Array, u_bonus: Array, *,
        cu_seqlens: Array | None = None, initial_state: Array | None = None,
        dfinal_state: Array | None = None, scale: float | None = None,
        gradients: Sequence[str] | None = None, max_workers: int = 0,
        implementation: str | None = None) -> dict[str, Array]:
    """Gradients of rwkv6: of sum(out * dout) + sum(final * dfinal)."""
    ...

def gsa(q: Array, k: Array, v: Array, s: Array, g: Array, *, cu_seqlens: Array | None = None,
        initial_state_k: Array | None = None, initial_state_v: Array | None = None,
        scale: float | None = None, return_final_state: bool = False, out_dtype: Any = None,
        out: Array | None = None, max_workers: int = 0, implementation: str | None = None) -> Any:
    """Gated slot attention.

    o = Sv' softmax(Sk' (scale q)) over slots, Sk = Sk Diag(exp(g)) + k s', Sv =
    Diag(exp(g)) Sv + s v'. Gated slot attention, Zhang 2024 (arXiv:2409.07146).
    """
    ...

def gsa_step(q: Array, k: Array, v: Array, s: Array, g: Array, state_k: Array, state_v: Array, *,
        state_slots: Array | None = None, scale: float | None = None, out_dtype: Any = None,
        out: Array | None = None, max_workers: int = 0, implementation: str | None = None) -> Array:
    """Gated slot attention, one row of each sequence.

    o = Sv' softmax(Sk' (scale q)) over slots, Sk = Sk Diag(exp(g)) + k s', Sv =
    Diag(exp(g)) Sv + s v'. Gated slot attention, Zhang 2024 (arXiv:2409.07146).
    """
    ...

def gsa_backward(dout: Array, q: Array, k: Array, v: Array, s: Array, g: Array, *,
        cu_seqlens: Array | None = None, initial_state_k: Array | None = None,
        initial_state_v: Array | None = None, dfinal_state_k: Array | None = None,
        dfinal_state_v: Array | None = None, scale: float | None = None,
        gradients: Sequence[str] | None = None, max_workers: int = 0,
        implementation: str | None = None) -> dict[str, Array]:
    """Gradients of gsa: of sum(out * dout) + sum(final * dfinal)."""
    ...

def delta_rule(q: Array, k: Array, v: Array, beta: Array, *, cu_seqlens: Array | None = None,
        initial_state: Array | None = None, scale: float | None = None, qk_l2norm: bool = False,
        return_final_state: bool = False, out_dtype: Any = None, out: Array | None = None,
        max_workers: int = 0, implementation: str | None = None) -> Any:
    """The delta rule.

    S_t = S_(t-1) + k_t (beta_t (v_t - S_(t-1)' k_t))', o_t = S_t' (scale q_t).
    DeltaNet, Yang 2024 (arXiv:2406.06484).
    """
    ...

def delta_rule_step(q: Array, k: Array, v: Array, beta: Array, state: Array, *,
        state_slots: Array | None = None, scale: float | None = None, qk_l2norm: bool = False,
        out_dtype: Any = None, out: Array | None = None, max_workers: int = 0,
        implementation: str | None = None) -> Array:
    """The delta rule, one row of each sequence.

    S_t = S_(t-1) + k_t (beta_t (v_t - S_(t-1)' k_t))', o_t = S_t' (scale q_t).
    DeltaNet, Yang 2024 (arXiv:2406.06484).
    """
    ...

def delta_rule_backward(dout: Array, q: Array, k: Array, v: Array, beta: Array, *,
        cu_seqlens: Array | None = None, initial_state: Array | None = None,
        dfinal_state: Array | None = None, scale: float | None = None, qk_l2norm: bool = False,
        gradients: Sequence[str] | None = None, max_workers: int = 0,
        implementation: str | None = None) -> dict[str, Array]:
    """Gradients of delta_rule: of sum(out * dout) + sum(final * dfinal)."""
    ...

def gated_delta_rule(q: Array, k: Array, v: Array, g: Array, beta: Array, *,
        cu_seqlens: Array | None = None, initial_state: Array | None = None,
        scale: float | None = None, qk_l2norm: bool = False, return_final_state: bool = False,
        out_dtype: Any = None, out: Array | None = None, max_workers: int = 0,
        implementation: str | None = None) -> Any:
    """The gated delta rule, a log decay for each row and head.

    R = exp(g_t) S_(t-1), S_t = R + k_t (beta_t (v_t - R' k_t))', o_t = S_t' (scale q_t).
    Gated DeltaNet, Yang 2024 (arXiv:2412.06464).
    """
    ...

def gated_delta_rule_step(q: Array, k: Array, v: Array, g: Array, beta: Array, state: Array, *,
        state_slots: Array | None = None, scale: float | None = None, qk_l2norm: bool = False,
        out_dtype: Any = None, out: Array | None = None, max_workers: int = 0,
        implementation: str | None = None) -> Array:
    """The gated delta rule, a log decay for each row and head, one row of each sequence.

    R = exp(g_t) S_(t-1), S_t = R + k_t (beta_t (v_t - R' k_t))', o_t = S_t' (scale q_t).
    Gated DeltaNet, Yang 2024 (arXiv:2412.06464).
    """
    ...

def gated_delta_rule_backward(dout: Array, q: Array, k: Array, v: Array, g: Array, beta: Array, *,
        cu_seqlens: Array | None = None, initial_state: Array | None = None,
        dfinal_state: Array | None = None, scale: float | None = None, qk_l2norm: bool = False,
        gradients: Sequence[str] | None = None, max_workers: int = 0,
        implementation: str | None = None) -> dict[str, Array]:
    """Gradients of gated_delta_rule: of sum(out * dout) + sum(final * dfinal)."""
    ...

def kda(q: Array, k: Array, v: Array, g: Array, beta: Array, *, cu_seqlens: Array | None = None,
        initial_state: Array | None = None, scale: float | None = None, qk_l2norm: bool = False,
        return_final_state: bool = False, out_dtype: Any = None, out: Array | None = None,
        max_workers: int = 0, implementation: str | None = None) -> Any:
    """Kimi delta attention, a log decay for each row and key dimension.

    R = Diag(exp(g_t)) S_(t-1), S_t = R + k_t (beta_t (v_t - R' k_t))', o_t = S_t' (scale q_t).
    Kimi Linear, 2025 (arXiv:2510.26692).
    """
    ...

def kda_step(q: Array, k: Array, v: Array, g: Array, beta: Array, state: Array, *,
        state_slots: Array | None = None, scale: float | None = None, qk_l2norm: bool = False,
        out_dtype: Any = None, out: Array | None = None, max_workers: int = 0,
        implementation: str | None = None) -> Array:
    """Kimi delta attention, a log decay for each row and key dimension, one row of each sequence.

    R = Diag(exp(g_t)) S_(t-1), S_t = R + k_t (beta_t (v_t - R' k_t))', o_t = S_t' (scale q_t).
    Kimi Linear, 2025 (arXiv:2510.26692).
    """
    ...

def kda_backward(dout: Array, q: Array, k: Array, v: Array, g: Array, beta: Array, *,
        cu_seqlens: Array | None = None, initial_state: Array | None = None,
        dfinal_state: Array | None = None, scale: float | None = None, qk_l2norm: bool = False,
        gradients: Sequence[str] | None = None, max_workers: int = 0,
        implementation: str | None = None) -> dict[str, Array]:
    """Gradients of kda: of sum(out * dout) + sum(final * dfinal)."""
    ...

def rwkv7(r: Array, w: Array, k: Array, v: Array, a: Array, b: Array, *,
        cu_seqlens: Array | None = None, initial_state: Array | None = None,
        scale: float | None = None, return_final_state: bool = False, out_dtype: Any = None,
        out: Array | None = None, max_workers: int = 0, implementation: str | None = None) -> Any:
    """RWKV-7, diagonal decay plus a term of rank one.

    S_t = Diag(exp(w_t)) S_(t-1) + b_t (S_(t-1)' a_t)' + k_t v_t', o_t = S_t' (scale
    r_t), scale 1. Peng 2025 (arXiv:2503.14456).
    """
    ...

def rwkv7_step(r: Array, w: Array, k: Array, v: Array, a: Array, b: Array, state: Array, *,
        state_slots: Array | None = None, scale: float | None = None, out_dtype: Any = None,
        out: Array | None = None, max_workers: int = 0, implementation: str | None = None) -> Array:
    """RWKV-7, diagonal decay plus a term of rank one, one row of each sequence.

    S_t = Diag(exp(w_t)) S_(t-1) + b_t (S_(t-1)' a_t)' + k_t v_t', o_t = S_t' (scale
    r_t), scale 1. Peng 2025 (arXiv:2503.14456).
    """
    ...

def rwkv7_backward(dout: Array, r: Array, w: Array, k: Array, v: Array, a: Array, b: Array, *,
        cu_seqlens: Array | None = None, initial_state: Array | None = None,
        dfinal_state: Array | None = None, scale: float | None = None,
        gradients: Sequence[str] | None = None, max_workers: int = 0,
        implementation: str | None = None) -> dict[str, Array]:
    """Gradients of rwkv7: of sum(out * dout) + sum(final * dfinal)."""
    ...

def dplr_delta_rule(q: Array, k: Array, v: Array, a: Array, b: Array, g: Array, *,
        cu_seqlens: Array | None = None, initial_state: Array | None = None,
        scale: float | None = None, return_final_state: bool = False, out_dtype: Any = None,
        out: Array | None = None, max_workers: int = 0, implementation: str | None = None) -> Any:
    """Diagonal decay plus a term of rank one.

    S_t = Diag(exp(g_t)) S_(t-1) + b_t (S_(t-1)' a_t)' + k_t v_t', o_t = S_t' (scale q_t).
    """
    ...

def dplr_delta_rule_step(q: Array, k: Array, v: Array, a: Array, b: Array, g: Array, state: Array,
        *, state_slots: Array | None = None, scale: float | None = None, out_dtype: Any = None,
        out: Array | None = None, max_workers: int = 0, implementation: str | None = None) -> Array:
    """Diagonal decay plus a term of rank one, one row of each sequence.

    S_t = Diag(exp(g_t)) S_(t-1) + b_t (S_(t-1)' a_t)' + k_t v_t', o_t = S_t' (scale q_t).
    """
    ...

def dplr_delta_rule_backward(dout: Array, q: Array, k: Array, v: Array, a: Array, b: Array,
        g: Array, *, cu_seqlens: Array | None = None, initial_state: Array | None = None,
        dfinal_state: Array | None = None, scale: float | None = None,
        gradients: Sequence[str] | None = None, max_workers: int = 0,
        implementation: str | None = None) -> dict[str, Array]:
    """Gradients of dplr_delta_rule: of sum(out * dout) + sum(final * dfinal)."""
    ...

def iplr_delta_rule(q: Array, k: Array, v: Array, a: Array, b: Array, *,
        cu_seqlens: Array | None = None, initial_state: Array | None = None,
        scale: float | None = None, return_final_state: bool = False, out_dtype: Any = None,
        out: Array | None = None, max_workers: int = 0, implementation: str | None = None) -> Any:
    """Identity plus a term of rank one.

    S_t = S_(t-1) + b_t (S_(t-1)' a_t)' + k_t v_t', o_t = S_t' (scale q_t).
    """
    ...

def iplr_delta_rule_step(q: Array, k: Array, v: Array, a: Array, b: Array, state: Array, *,
        state_slots: Array | None = None, scale: float | None = None, out_dtype: Any = None,
        out: Array | None = None, max_workers: int = 0, implementation: str | None = None) -> Array:
    """Identity plus a term of rank one, one row of each sequence.

    S_t = S_(t-1) + b_t (S_(t-1)' a_t)' + k_t v_t', o_t = S_t' (scale q_t).
    """
    ...

def iplr_delta_rule_backward(dout: Array, q: Array, k: Array, v: Array, a: Array, b: Array, *,
        cu_seqlens: Array | None = None, initial_state: Array | None = None,
        dfinal_state: Array | None = None, scale: float | None = None,
        gradients: Sequence[str] | None = None, max_workers: int = 0,
        implementation: str | None = None) -> dict[str, Array]:
    """Gradients of iplr_delta_rule: of sum(out * dout) + sum(final * dfinal)."""
    ...

def hgrn(x: Array, g: Array, *, cu_seqlens: Array | None = None, initial_state: Array | None = None,
        return_final_state: bool = False, out_dtype: Any = None, out: Array | None = None,
        max_workers: int = 0, implementation: str | None = None) -> Any:
    """HGRN, a gated sum of each channel.

    S_t = exp(g_t) S_(t-1) + x_t, o_t = S_t, for each channel.
    Qin 2023 (arXiv:2311.04823).
    """
    ...

def hgrn_step(x: Array, g: Array, state: Array, *, state_slots: Array | None = None,
        out_dtype: Any = None, out: Array | None = None, max_workers: int = 0,
        implementation: str | None = None) -> Array:
    """HGRN, a gated sum of each channel, one row of each sequence.

    S_t = exp(g_t) S_(t-1) + x_t, o_t = S_t, for each channel.
    Qin 2023 (arXiv:2311.04823).
    """
    ...

def hgrn_backward(dout: Array, x: Array, g: Array, *, cu_seqlens: Array | None = None,
        initial_state: Array | None = None, dfinal_state: Array | None = None,
        gradients: Sequence[str] | None = None, max_workers: int = 0,
        implementation: str | None = None) -> dict[str, Array]:
    """Gradients of hgrn: of sum(out * dout) + sum(final * dfinal)."""
    ...

def mamba1(u: Array, dt: Array, B: Array, C: Array, A: Array, *, z: Array | None = None,
        D: Array | None = None, dt_bias: Array | None = None, cu_seqlens: Array | None = None,
        initial_state: Array | None = None, dt_softplus: bool = False,
        return_final_state: bool = False, out_dtype: Any = None, out: Array | None = None,
        max_workers: int = 0, implementation: str | None = None) -> Any:
    """Mamba's selective scan.

    S_n = exp(d A_n) S_n + d u B_n, o = (S . C + D u) silu(z), for each channel, with
    d = dt + dt_bias through softplus. Gu 2023 (arXiv:2312.00752).
    """
    ...

def mamba1_step(u: Array, dt: Array, B: Array, C: Array, A: Array, state: Array, *,
        z: Array | None = None, D: Array | None = None, dt_bias: Array | None = None,
        state_slots: Array | None = None, dt_softplus: bool = False, out_dtype: Any = None,
        out: Array | None = None, max_workers: int = 0, implementation: str | None = None) -> Array:
    """Mamba's selective scan, one row of each sequence.

    S_n = exp(d A_n) S_n + d u B_n, o = (S . C + D u) silu(z), for each channel, with
    d = dt + dt_bias through softplus. Gu 2023 (arXiv:2312.00752).
    """
    ...

def mamba1_backward(dout: Array, u: Array, dt: Array, B: Array, C: Array, A: Array, *,
        z: Array | None = None, D: Array | None = None, dt_bias: Array | None = None,
        cu_seqlens: Array | None = None, initial_state: Array | None = None,
        dfinal_state: Array | None = None, dt_softplus: bool = False,
        gradients: Sequence[str] | None = None, max_workers: int = 0,
        implementation: str | None = None) -> dict[str, Array]:
    """Gradients of mamba1: of sum(out * dout) + sum(final * dfinal)."""
    ...

def rwkv4(k: Array, v: Array, w: Array, u_bonus: Array, *, cu_seqlens: Array | None = None,
        initial_state: Array | None = None, return_final_state: bool = False, out_dtype: Any = None,
        out: Array | None = None, max_workers: int = 0, implementation: str | None = None) -> Any:
    """RWKV-4, a weighted mean of each channel.

    o = (exp(eps - t) alpha + exp(u_bonus + k - t) v) / (the same with beta and 1), t =
    max(u_bonus + k, eps), for each channel. Peng 2023 (arXiv:2305.13048).
    """
    ...

def rwkv4_step(k: Array, v: Array, w: Array, u_bonus: Array, state: Array, *,
        state_slots: Array | None = None, out_dtype: Any = None, out: Array | None = None,
        max_workers: int = 0, implementation: str | None = None) -> Array:
    """RWKV-4, a weighted mean of each channel, one row of each sequence.

    o = (exp(eps - t) alpha + exp(u_bonus + k - t) v) / (the same with beta and 1), t =
    max(u_bonus + k, eps), for each channel. Peng 2023 (arXiv:2305.13048).
    """
    ...

def rwkv4_backward(dout: Array, k: Array, v: Array, w: Array, u_bonus: Array, *,
        cu_seqlens: Array | None = None, initial_state: Array | None = None,
        dfinal_state: Array | None = None, gradients: Sequence[str] | None = None,
        max_workers: int = 0, implementation: str | None = None) -> dict[str, Array]:
    """Gradients of rwkv4: of sum(out * dout) + sum(final * dfinal)."""
    ...

def slstm(i: Array, f: Array, z: Array, o: Array, weight: Array, *, cu_seqlens: Array | None = None,
        initial_state: Array | None = None, initial_norm: Array | None = None,
        initial_max: Array | None = None, initial_hidden: Array | None = None,
        return_final_state: bool = False, out_dtype: Any = None, out: Array | None = None,
        max_workers: int = 0, implementation: str | None = None) -> Any:
    """XLSTM's scalar memory.

    c = f c' + i tanh(z), n = f n' + i, h = sigmoid(o) c / n with an exponential input
    gate; every gate reads the row before through weight. Beck 2024 (arXiv:2405.04517).
    """
    ...

def slstm_step(i: Array, f: Array, z: Array, o: Array, weight: Array, state: Array, norm: Array,
        max: Array, hidden: Array, *, state_slots: Array | None = None, out_dtype: Any = None,
        out: Array | None = None, max_workers: int = 0, implementation: str | None = None) -> Array:
    """XLSTM's scalar memory, one row of each sequence.

    c = f c' + i tanh(z), n = f n' + i, h = sigmoid(o) c / n with an exponential input
    gate; every gate reads the row before through weight. Beck 2024 (arXiv:2405.04517).
    """
    ...

def slstm_backward(dout: Array, i: Array, f: Array, z: Array, o: Array, weight: Array, *,
        cu_seqlens: Array | None = None, initial_state: Array | None = None,
        initial_norm: Array | None = None, initial_max: Array | None = None,
        initial_hidden: Array | None = None, dfinal_state: Array | None = None,
        dfinal_norm: Array | None = None, dfinal_hidden: Array | None = None,
        gradients: Sequence[str] | None = None, max_workers: int = 0,
        implementation: str | None = None) -> dict[str, Array]:
    """Gradients of slstm: of sum(out * dout) + sum(final * dfinal)."""
    ...

def short_conv(x: Array, weight: Array, *, bias: Array | None = None,
        cu_seqlens: Array | None = None, initial_state: Array | None = None, silu: bool = False,
        residual: bool = False, return_final_state: bool = False, out_dtype: Any = None,
        out: Array | None = None, max_workers: int = 0, implementation: str | None = None) -> Any:
    """Short causal convolution of each channel.

    out_t = sum over j of weight_j x_(t-W+1+j) + bias, for each channel.
    """
    ...

def short_conv_step(x: Array, weight: Array, state: Array, *, bias: Array | None = None,
        state_slots: Array | None = None, silu: bool = False, residual: bool = False,
        out_dtype: Any = None, out: Array | None = None, max_workers: int = 0,
        implementation: str | None = None) -> Array:
    """Short causal convolution of each channel, one row of each sequence.

    out_t = sum over j of weight_j x_(t-W+1+j) + bias, for each channel.
    """
    ...

def short_conv_backward(dout: Array, x: Array, weight: Array, *, bias: Array | None = None,
        cu_seqlens: Array | None = None, initial_state: Array | None = None,
        dfinal_state: Array | None = None, silu: bool = False, residual: bool = False,
        gradients: Sequence[str] | None = None, max_workers: int = 0,
        implementation: str | None = None) -> dict[str, Array]:
    """Gradients of short_conv: of sum(out * dout) + sum(final * dfinal)."""
    ...

def log_decay_gate(x: Array, *, bias: Array | None = None, A_log: Array | None = None,
        cu_seqlens: Array | None = None, lower_bound: float | None = None,
        divisor: float | None = None, out_dtype: Any = None, out: Array | None = None,
        max_workers: int = 0, implementation: str | None = None) -> Array:
    """Log decays from what a layer projects.

    With y = x + bias: logsigmoid(y); with A_log -exp(A_log) softplus(y); with
    lower_bound lower_bound sigmoid(exp(A_log) y); over divisor.
    """
    ...

def log_decay_gate_backward(dout: Array, x: Array, *, bias: Array | None = None,
        A_log: Array | None = None, cu_seqlens: Array | None = None,
        lower_bound: float | None = None, divisor: float | None = None,
        gradients: Sequence[str] | None = None, max_workers: int = 0,
        implementation: str | None = None) -> dict[str, Array]:
    """Gradients of log_decay_gate: of sum(out * dout)."""
    ...

def gated_norm(x: Array, *, z: Array | None = None, weight: Array | None = None,
        cu_seqlens: Array | None = None, gate_first: bool = False, is_sigmoid: bool = False,
        eps: float | None = None, out_dtype: Any = None, out: Array | None = None,
        max_workers: int = 0, implementation: str | None = None) -> Array:
    """RMS norm of each head, with a gate.

    weight x / sqrt(mean of x^2 + eps) silu(z).
    """
    ...

def gated_norm_backward(dout: Array, x: Array, *, z: Array | None = None,
        weight: Array | None = None, cu_seqlens: Array | None = None, gate_first: bool = False,
        is_sigmoid: bool = False, eps: float | None = None, gradients: Sequence[str] | None = None,
        max_workers: int = 0, implementation: str | None = None) -> dict[str, Array]:
    """Gradients of gated_norm: of sum(out * dout)."""
    ...

def feature_map(x: Array, *, cu_seqlens: Array | None = None, feature_map: str | None = None,
        out_dtype: Any = None, out: Array | None = None, max_workers: int = 0,
        implementation: str | None = None) -> Array:
    """What makes queries and keys of linear attention positive.

    elu(x) + 1, relu(x), its square, or softmax over head_dim.
    """
    ...

def feature_map_backward(dout: Array, x: Array, *, cu_seqlens: Array | None = None,
        feature_map: str | None = None, gradients: Sequence[str] | None = None,
        max_workers: int = 0, implementation: str | None = None) -> dict[str, Array]:
    """Gradients of feature_map: of sum(out * dout)."""
    ...
