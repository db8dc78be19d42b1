# SPDX-License-Identifier: Apache-2.0
"""What each operator of linear attention computes, in a line or two, with its source.

S is the state (head_dim, head_dim_v), R the decayed one, ' a transpose. docs/linear.md has more."""

_OUT = "o_t = S_t' (scale q_t)"

FORMULAS = {
    "linear_attention": f"S_t = S_(t-1) + k_t v_t', {_OUT}; with normalize over\n"
                        "scale q_t . sum(k) + 1e-10. Katharopoulos 2020 (arXiv:2006.16236).",
    "retention": f"S_t = (1 - 2^(-5-h)) S_(t-1) + k_t v_t' in head h, {_OUT}.\n"
                 "RetNet, Sun 2023 (arXiv:2307.08621).",
    "lightning": f"S_t = exp(-8/H (1 - layer/layers) h) S_(t-1) + k_t v_t' in head h of H, {_OUT}."
                 "\nLightning attention, Qin 2024 (arXiv:2401.04658).",
    "simple_gla": f"S_t = exp(g_t + g_gamma) S_(t-1) + k_t v_t', {_OUT}.\n"
                  "Yang 2024 (arXiv:2312.06635) with one decay for a head.",
    "mamba2": "S_t = exp(d A) S_(t-1) + d B_t x_t', o_t = S_t' C_t + D x_t, with d = dt + dt_bias\n"
              "through softplus and limits. State-space duality, Dao 2024 (arXiv:2405.21060).",
    "mlstm_exp": "m_t = max(logsigmoid(f) + m', i), S_t = exp(logsigmoid(f) + m' - m) S_(t-1) +\n"
                 "exp(i - m) k v'; o = S' (scale q) / (max(abs(q.n), exp(-m)) + 1e-6).\n"
                 "xLSTM, Beck 2024 (arXiv:2405.04517).",
    "mlstm_sig": f"S_t = sigmoid(f) S_(t-1) + sigmoid(i) k_t v_t', {_OUT}; with normalize over\n"
                 "max(abs(q.n), 1) + 1e-6. Beck 2025 (arXiv:2503.14376).",
    "gla": f"S_t = Diag(exp(g_t)) S_(t-1) + k_t v_t', {_OUT}.\nYang 2024 (arXiv:2312.06635).",
    "rwkv6": "S_t = Diag(exp(w_t)) S_(t-1) + k_t v_t', o_t = (S_(t-1) + Diag(u_bonus) k_t v_t')'\n"
             "(scale r_t). Peng 2024 (arXiv:2404.05892).",
    "gsa": "o = Sv' softmax(Sk' (scale q)) over slots, Sk = Sk Diag(exp(g)) + k s', Sv =\n"
           "Diag(exp(g)) Sv + s v'. Gated slot attention, Zhang 2024 (arXiv:2409.07146).",
    "delta_rule": f"S_t = S_(t-1) + k_t (beta_t (v_t - S_(t-1)' k_t))', {_OUT}.\n"
                  "DeltaNet, Yang 2024 (arXiv:2406.06484).",
    "gated_delta_rule": f"R = exp(g_t) S_(t-1), S_t = R + k_t (beta_t (v_t - R' k_t))', {_OUT}.\n"
                        "Gated DeltaNet, Yang 2024 (arXiv:2412.06464).",
    "kda": f"R = Diag(exp(g_t)) S_(t-1), S_t = R + k_t (beta_t (v_t - R' k_t))', {_OUT}.\n"
           "Kimi Linear, 2025 (arXiv:2510.26692).",
    "rwkv7": "S_t = Diag(exp(w_t)) S_(t-1) + b_t (S_(t-1)' a_t)' + k_t v_t', o_t = S_t' (scale\n"
             "r_t), scale 1. Peng 2025 (arXiv:2503.14456).",
    "dplr_delta_rule": f"S_t = Diag(exp(g_t)) S_(t-1) + b_t (S_(t-1)' a_t)' + k_t v_t', {_OUT}.",
    "iplr_delta_rule": f"S_t = S_(t-1) + b_t (S_(t-1)' a_t)' + k_t v_t', {_OUT}.",
    "hgrn": "S_t = exp(g_t) S_(t-1) + x_t, o_t = S_t, for each channel.\n"
            "Qin 2023 (arXiv:2311.04823).",
    "mamba1": "S_n = exp(d A_n) S_n + d u B_n, o = (S . C + D u) silu(z), for each channel, with\n"
              "d = dt + dt_bias through softplus. Gu 2023 (arXiv:2312.00752).",
    "rwkv4": "o = (exp(eps - t) alpha + exp(u_bonus + k - t) v) / (the same with beta and 1), t =\n"
             "max(u_bonus + k, eps), for each channel. Peng 2023 (arXiv:2305.13048).",
    "slstm": "c = f c' + i tanh(z), n = f n' + i, h = sigmoid(o) c / n with an exponential input\n"
             "gate; every gate reads the row before through weight. Beck 2024 (arXiv:2405.04517).",
    "short_conv": "out_t = sum over j of weight_j x_(t-W+1+j) + bias, for each channel.",
    "log_decay_gate": "With y = x + bias: logsigmoid(y); with A_log -exp(A_log) softplus(y); with\n"
                      "lower_bound lower_bound sigmoid(exp(A_log) y); over divisor.",
    "gated_norm": "weight x / sqrt(mean of x^2 + eps) silu(z).",
    "feature_map": "elu(x) + 1, relu(x), its square, or softmax over head_dim.",
}
