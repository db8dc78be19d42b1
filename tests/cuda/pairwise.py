#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Problems and architectures such that every two values of different factors meet somewhere: what
kernel_budget.tsv is made of. Prints "ARCH<tab>PROBLEM" lines.

    tests/cuda/pairwise.py > list.tsv
    tests/cuda/pairwise.py --all > all.tsv      every value with every other, tens of thousands
    FLASHTILE_TEST_KERNELS=all.tsv cuda_tests --gtest_filter='*KernelBudgetFull*'   compiles those

A new option of kernels is a new factor (or value) here; then tests/cuda/kernel_budget.tsv is made
again: run cuda_tests --gtest_filter='*KernelBudgetFull*', which leaves the table as it is now in
kernel_budget_found.tsv of the folder it runs in.
"""

import itertools
import random
import sys

FACTORS = {
    "arch": ["sm_80", "sm_86", "sm_89", "sm_90a", "sm_100", "sm_120"],
    "dtype": ["bf16", "f16", "f32"],
    "dims": ["d64", "d128", "d256", "d32", "d96:dv64", "d80", "d192:dv128", "d512"],
    "lengths": ["b4:hq16:sq2048", "b4:hq16:hkv4:sq1:sk8192", "b4:hq16:hkv4:sq16:sk4096",
                "b2:hq8:cu_seqlens_q={0,300,700}:cu_seqlens_k={0,300,700}"],
    "mask": ["", "causal", "window_left=100:window_right=0", "attention_chunk=256:causal",
             "mask='k_idx < 4 || (q_idx - k_idx) % 3 == 0'"],
    "score": ["", "softcap=30", "alibi_slopes[hq]", "bias[1,hq,sq,sk]",
              "score='score + 0.5 * tanh(score)'", "softcap=20:alibi_slopes[hq]"],
    "keys": ["", "paged"],
    "dropout": ["", "dropout_p=0.1"],
    "results": ["lse", "lse:max_logit", "lse:out=f32"],
}

BACKWARD_FACTORS = {
    "arch": ["sm_80", "sm_86", "sm_90a", "sm_120"],
    "dtype": ["bf16", "f16", "f32"],
    "dims": ["d64", "d128", "d256", "d80", "d512"],
    "lengths": ["b4:hq16:sq2048", "b4:hq16:hkv4:sq300:sk4096",
                "b2:hq8:cu_seqlens_q={0,300,700}:cu_seqlens_k={0,300,700}"],
    "mask": ["", "causal", "window_left=100:window_right=0",
             "mask='k_idx < 4 || (q_idx - k_idx) % 3 == 0'"],
    "score": ["", "softcap=30", "alibi_slopes[hq]", "bias[1,hq,sq,sk]",
              "score='score + 0.5 * tanh(score)'", "aux.t[64]:score='score + t[k_idx % 64]'"],
    "dropout": ["", "dropout_p=0.1"],
    "sums": ["", "deterministic"],
}


def conflicts(row):
    """Values that the operator table does not let meet."""
    packed = "cu_seqlens" in row["lengths"]
    if row.get("keys") == "paged" and packed:
        return True
    return packed and row["score"].startswith("bias")


def problem_text(row):
    lengths = row["lengths"]
    parts = ["attention_fwd"]
    if row["keys"] == "paged":
        words = lengths.split(":")
        batch = int(words[0][1:])
        keys = [word for word in words if word.startswith(("sk", "sq"))][-1]
        pages = int(keys[2:]) // 16
        words = [word for word in words if not word.startswith("sk")]
        parts += words + [f"ps16:np{batch * pages}:pp{pages}", row["dims"], "block_table"]
    else:
        parts += [lengths, row["dims"]]
    parts += [row[name] for name in ("mask", "score", "dropout") if row[name]]
    if row["keys"] == "paged" and row["score"].startswith("bias"):
        parts = [part.replace("bias[1,hq,sq,sk]", f"bias[1,hq,sq,{pages * 16}]") for part in parts]
    parts += [row["results"].replace(":out=f32", ""), row["dtype"]]
    text = ":".join(parts)
    return text.replace(":lse:", ":lse:out.f32:", 1) if "out=f32" in row["results"] else text


def backward_text(row):
    parts = ["attention_bwd", row["lengths"], row["dims"]]
    parts += [row[name] for name in ("mask", "score", "dropout", "sums") if row[name]]
    return ":".join(parts + [row["dtype"]])


def pairwise(factors):
    draw = random.Random(7)
    names = list(factors)
    missing = {(a, x, b, y) for a, b in itertools.combinations(names, 2)
               for x in factors[a] for y in factors[b]}

    def covered(row):
        return {(a, row[a], b, row[b]) for a, b in itertools.combinations(names, 2)} & missing

    rows = []
    while missing:
        best, best_gain = None, set()
        for _ in range(400):
            seed = draw.choice(sorted(missing))
            row = {name: draw.choice(factors[name]) for name in names}
            row[seed[0]], row[seed[2]] = seed[1], seed[3]
            if conflicts(row):
                continue
            gain = covered(row)
            if len(gain) > len(best_gain):
                best, best_gain = row, gain
        if best is None:  # what is left are conflicts
            break
        rows.append(best)
        missing -= best_gain
    return rows


def product(factors):
    for values in itertools.product(*factors.values()):
        row = dict(zip(factors, values))
        if not conflicts(row):
            yield row


def main():
    rows_of = product if sys.argv[1:] == ["--all"] else pairwise
    for row in rows_of(FACTORS):
        print(f"{row['arch']}\t{problem_text(row)}")
    for row in rows_of(BACKWARD_FACTORS):
        print(f"{row['arch']}\t{backward_text(row)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
