#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Draws the results of bench/cpu_linear.py: time and memory by length, shares of the peak.

    bench/plot_cpu_linear.py [--results bench/results/cpu_linear.jsonl] [--out docs/cpu_linear.png]

Needs matplotlib.
"""

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt  # pylint: disable=wrong-import-position

from cpu_plot import read_results, save  # pylint: disable=wrong-import-position

COLOURS = {"attention": "#999999", "simple_gla": "#1b6ca8", "gated_delta_rule": "#e07b39"}
NAMES = {"attention": "softmax attention, causal"}


def draw_lengths(axes, lines, what, value, label):
    """A line of each op over the lengths, both axes logarithmic."""
    for op, colour in COLOURS.items():
        points = [(line["seqlen"], value(line)) for line in lines
                  if line["op"] == op and line["pass"] == what]
        axes.plot(*zip(*points), marker="o", markersize=3, color=colour, label=NAMES.get(op, op))
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_title(what.replace("fwd", "forward").replace("+bwd", " + backward"), fontsize=10)
    axes.set_xlabel("rows", fontsize=8)
    axes.set_ylabel(label, fontsize=8)


def draw_shares(axes, lines):
    """Bars of the share of the peak, forward and forward + backward of each op."""
    ops = list(dict.fromkeys(line["op"] for line in lines))
    for i, (what, colour) in enumerate((("fwd", "#1b6ca8"), ("fwd+bwd", "#6aa84f"))):
        shares = {line["op"]: 100 * line["share"] for line in lines if line["pass"] == what}
        axes.bar([x - 0.2 + 0.4 * i for x in range(len(ops))], [shares[op] for op in ops], 0.38,
                 label=what.replace("fwd", "forward").replace("+bwd", " + backward"), color=colour)
    axes.set_xticks(range(len(ops)), [op.replace("_", "\n", 1) for op in ops], fontsize=7)
    axes.set_title("4096 rows, 8 heads, float32", fontsize=10)
    axes.set_ylabel("% of the peak", fontsize=8)
    axes.legend(fontsize=7, frameon=False)


def main():
    arguments, about, lines = read_results(__doc__, "cpu_linear")
    lengths = [line for line in lines if line["part"] == "lengths"]
    grid = [line for line in lines if line["part"] == "grid" and line["dtype"] == "f32"]
    figure, places = plt.subplots(1, 4, figsize=(16, 4), layout="constrained")
    draw_lengths(places[0], lengths, "fwd", lambda line: line["flashtile_ms"][0], "ms")
    draw_lengths(places[1], lengths, "fwd+bwd", lambda line: line["flashtile_ms"][0], "ms")
    draw_lengths(places[2], lengths, "fwd+bwd", lambda line: max(line["added_mb"], 0.1),
                 "MB that a call adds")
    draw_shares(places[3], grid)
    for axes in places:
        axes.tick_params(labelsize=8)
        axes.spines[["top", "right"]].set_visible(False)
    places[0].legend(fontsize=7, frameon=False)
    save(figure, arguments, about, "Linear attention", ", one head of 128")


if __name__ == "__main__":
    main()
