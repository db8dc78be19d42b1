#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Draws the results of bench/cpu_peers.py: GFLOP/s by problem, a bar for each library.

    bench/plot_cpu_peers.py [--results bench/results/cpu_peers.jsonl] [--out docs/cpu_peers.png]

Needs matplotlib.
"""

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt  # pylint: disable=wrong-import-position

from cpu_plot import read_results, save  # pylint: disable=wrong-import-position

COLOURS = {"flashtile": "#1b6ca8", "torch": "#e07b39", "jax": "#6aa84f", "onnxruntime": "#8e7cc3",
           "openvino": "#999999"}


def label_of(line):
    mask = "causal" if line["causal"] else "full"
    return f"{line['seqlen']}\n{mask}\nd {line['head_dim']}"


def draw(axes, lines, title):
    """One group of bars a line."""
    names = [name for name in COLOURS if any(name in line for line in lines)]
    width = 0.8 / len(names)
    for i, name in enumerate(names):
        bars = [(x, line[name]["gflops"]) for x, line in enumerate(lines) if name in line]
        axes.bar([x - 0.4 + (i + 0.5) * width for x, _ in bars], [rate for _, rate in bars], width,
                 label=name, color=COLOURS[name])
    axes.set_title(title, fontsize=10)
    axes.set_ylabel("GFLOP/s", fontsize=8)
    axes.set_xticks(range(len(lines)), [label_of(line) for line in lines], fontsize=7)
    axes.tick_params(axis="y", labelsize=8)
    axes.spines[["top", "right"]].set_visible(False)


def main():
    arguments, about, lines = read_results(__doc__, "cpu_peers")
    lines = [line for line in lines if line["part"] == "grid"]
    figure, grid = plt.subplots(2, 2, figsize=(13, 7), layout="constrained")
    for row, dtype in zip(grid, ("f32", "bf16")):
        for axes, op in zip(row, ("fwd", "fwd+bwd")):
            chosen = [line for line in lines if line["dtype"] == dtype and line["op"] == op]
            chosen.sort(key=lambda line: (line["head_dim"], line["causal"], line["seqlen"]))
            draw(axes, chosen, f"{dtype}, {'forward' if op == 'fwd' else 'forward + backward'}")
    handles, names = grid[0][0].get_legend_handles_labels()
    figure.legend(handles, names, fontsize=9, frameon=False, ncols=len(names),
                  loc="outside lower center")
    save(figure, arguments, about, "Attention")


if __name__ == "__main__":
    main()
