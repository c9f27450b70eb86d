#!/usr/bin/env python3
"""Check that transformers runs compressed-tensors outputs of each model family.

usage: interop_families.py BRIQUETTE_BINARY WORKDIR [--only bert,t5,...]

Needs bench/peers/requirements.txt. Makes a tiny model with random weights of each family and compresses it with each scheme.
transformers loads the output as the class that saved it, and as the bare model. Its outputs must match the outputs of the dense
export of the same codes. If the scheme quantizes activations, the reference quantizes them in the same way.

The largest difference is at most 1e-5 of the largest output. With quantized activations it is 5e-3, because a tie that rounds
the other way changes one code. No weight may be missing that the dense export has. Models that transformers cannot load must
be refused with exit code 6. Writes, and overwrites, only WORKDIR/families (a few MB). Exit code 1 if any check fails.
"""

import argparse
import contextlib
import io
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import warnings

os.environ["HF_HUB_OFFLINE"] = "1"
warnings.filterwarnings("ignore")

import torch
import transformers
from transformers import AutoModel

transformers.logging.set_verbosity_error()
transformers.logging.disable_progress_bar()

HIDDEN, INNER, WORDS, LENGTH = 128, 256, 192, 64
SCHEMES = ["int8", "int8-dynamic", "int8-dynamic-sym", "int4-g32", "mixed"]
PACKED = {"int8", "int4-g32", "mixed"}
NOTES = ["missing_keys", "unexpected_keys", "mismatched_keys", "error_msgs"]

ENCODER = dict(
    vocab_size=WORDS, hidden_size=HIDDEN, intermediate_size=INNER, num_hidden_layers=2, num_attention_heads=2,
    max_position_embeddings=LENGTH + 2, initializer_range=0.1,
)
DECODER = ENCODER | dict(num_key_value_heads=1, head_dim=64, bos_token_id=1, eos_token_id=2, pad_token_id=0)
PICTURE = dict(
    hidden_size=HIDDEN, intermediate_size=INNER, num_hidden_layers=2, num_attention_heads=2, image_size=32, patch_size=8,
    initializer_range=0.1,
)
DISTILBERT = dict(
    vocab_size=WORDS, dim=HIDDEN, hidden_dim=INNER, n_layers=2, n_heads=2, max_position_embeddings=LENGTH,
    initializer_range=0.1,
)
T5 = dict(vocab_size=WORDS, d_model=HIDDEN, d_kv=64, d_ff=INNER, num_layers=2, num_heads=2)
OPT = dict(
    vocab_size=WORDS, hidden_size=HIDDEN, ffn_dim=INNER, num_hidden_layers=2, num_attention_heads=2,
    max_position_embeddings=LENGTH, word_embed_proj_dim=64, init_std=0.1,
)
WHISPER = dict(
    vocab_size=WORDS, d_model=HIDDEN, encoder_layers=2, decoder_layers=2, encoder_attention_heads=2,
    decoder_attention_heads=2, encoder_ffn_dim=INNER, decoder_ffn_dim=INNER, num_mel_bins=64, max_source_positions=32,
    max_target_positions=32, bos_token_id=1, eos_token_id=2, pad_token_id=0, decoder_start_token_id=1, init_std=0.1,
)
CLIP = dict(
    text_config=ENCODER | dict(projection_dim=64, bos_token_id=1, eos_token_id=2, pad_token_id=0),
    vision_config=PICTURE | dict(projection_dim=64),
    projection_dim=64,
)
WAV2VEC2 = dict(
    vocab_size=WORDS, hidden_size=HIDDEN, intermediate_size=INNER, num_hidden_layers=2, num_attention_heads=2,
    conv_dim=(64, 64), conv_stride=(5, 2), conv_kernel=(10, 3), num_feat_extract_layers=2, num_conv_pos_embeddings=16,
    num_conv_pos_embedding_groups=4, initializer_range=0.1,
)
DEBERTA = dict(
    relative_attention=True, position_buckets=8, pos_att_type=["p2c", "c2p"], norm_rel_ebd="layer_norm", share_att_key=True,
)
BART = dict(
    vocab_size=WORDS, d_model=HIDDEN, encoder_layers=2, decoder_layers=2, encoder_attention_heads=2,
    decoder_attention_heads=2, encoder_ffn_dim=INNER, decoder_ffn_dim=INNER, max_position_embeddings=LENGTH,
    bos_token_id=1, eos_token_id=2, pad_token_id=0, decoder_start_token_id=2, forced_eos_token_id=2, init_std=0.1,
)
SPECIAL = dict(bos_token_id=1, eos_token_id=2, pad_token_id=0)
GPT2 = dict(vocab_size=WORDS, n_embd=HIDDEN, n_layer=2, n_head=2, n_positions=LENGTH)
GPTJ = dict(vocab_size=WORDS, n_embd=HIDDEN, n_layer=2, n_head=4, n_positions=LENGTH, rotary_dim=16) | SPECIAL
GPT_NEO = dict(
    vocab_size=WORDS, hidden_size=HIDDEN, num_layers=2, num_heads=2, max_position_embeddings=LENGTH,
    attention_types=[[["global", "local"], 1]], intermediate_size=INNER, window_size=8,
) | SPECIAL
BLOOM = dict(vocab_size=WORDS, hidden_size=HIDDEN, n_layer=2, n_head=2) | SPECIAL
FALCON = dict(vocab_size=WORDS, hidden_size=HIDDEN, num_hidden_layers=2, num_attention_heads=2) | SPECIAL
MPT = dict(vocab_size=WORDS, d_model=HIDDEN, n_heads=2, n_layers=2, max_seq_len=LENGTH) | SPECIAL
XGLM = dict(
    vocab_size=WORDS, d_model=HIDDEN, ffn_dim=INNER, num_layers=2, attention_heads=2, max_position_embeddings=LENGTH,
) | SPECIAL
XLM = dict(vocab_size=WORDS, emb_dim=HIDDEN, n_layers=2, n_heads=2, max_position_embeddings=LENGTH)
XLNET = dict(vocab_size=WORDS, d_model=HIDDEN, n_layer=2, n_head=2, d_inner=INNER) | SPECIAL
FUNNEL = dict(
    vocab_size=WORDS, block_sizes=[1, 1], num_decoder_layers=1, d_model=HIDDEN, n_head=2, d_head=64, d_inner=INNER,
)
SPEECH = {key: value for key, value in BART.items() if key != "max_position_embeddings"} | dict(
    max_source_positions=64, max_target_positions=64, input_feat_per_channel=16, conv_channels=32, num_conv_layers=2,
)
MOONSHINE = dict(
    vocab_size=WORDS, hidden_size=HIDDEN, intermediate_size=INNER, encoder_num_hidden_layers=2,
    decoder_num_hidden_layers=2, encoder_num_attention_heads=2, decoder_num_attention_heads=2,
    max_position_embeddings=LENGTH,
) | SPECIAL
SIGLIP = dict(text_config=ENCODER | SPECIAL | dict(projection_size=HIDDEN), vision_config=PICTURE)
LED = {key: value for key, value in BART.items() if key != "max_position_embeddings"} | dict(
    max_encoder_position_embeddings=LENGTH, max_decoder_position_embeddings=LENGTH, attention_window=8,
)
BLIP = dict(
    text_config=ENCODER | SPECIAL | dict(encoder_hidden_size=HIDDEN, sep_token_id=2, projection_dim=64),
    vision_config=PICTURE, projection_dim=64,
)
IMAGE_TOKEN, IMAGE_TOKENS = 150, 16
LLAVA = dict(
    text_config=DECODER | dict(model_type="llama"),
    vision_config=PICTURE | dict(model_type="clip_vision_model", projection_dim=64),
    image_token_index=IMAGE_TOKEN,
)
PALIGEMMA = dict(
    text_config=DECODER | dict(model_type="gemma"),
    vision_config=PICTURE | dict(model_type="siglip_vision_model", projection_dim=HIDDEN),
    projection_dim=HIDDEN, image_token_index=IMAGE_TOKEN,
)
MASKED = ["ForMaskedLM", "ForSequenceClassification", "Model"]
CAUSAL = ["ForCausalLM", "Model"]

# Family: configuration, its values, classes.
FAMILIES = {
    "BERT": ("Bert", ENCODER, ["ForMaskedLM", "ForSequenceClassification", "ForPreTraining", "Model"]),
    "ALBERT": ("Albert", ENCODER | dict(embedding_size=64), ["ForMaskedLM", "ForSequenceClassification", "Model"]),
    "DistilBERT": ("DistilBert", DISTILBERT, ["ForMaskedLM", "ForSequenceClassification", "Model"]),
    "RoBERTa": ("Roberta", ENCODER, ["ForMaskedLM", "ForSequenceClassification", "Model"]),
    "XLM-RoBERTa": ("XLMRoberta", ENCODER, ["ForMaskedLM", "Model"]),
    "CamemBERT": ("Camembert", ENCODER, ["ForMaskedLM"]),
    "ModernBERT": ("ModernBert", ENCODER | SPECIAL, ["ForMaskedLM", "ForSequenceClassification", "Model"]),
    "MPNet": ("MPNet", ENCODER, ["ForMaskedLM", "ForSequenceClassification", "Model"]),
    "ELECTRA": ("Electra", ENCODER | dict(embedding_size=64), ["ForMaskedLM", "ForPreTraining", "Model"]),
    "DeBERTa v2": ("DebertaV2", ENCODER | DEBERTA, ["ForMaskedLM", "ForSequenceClassification", "Model"]),
    "GPT-2": ("GPT2", GPT2, ["LMHeadModel"]),
    "GPT-NeoX": ("GPTNeoX", ENCODER, ["ForCausalLM", "Model"]),
    "OPT": ("OPT", OPT, ["ForCausalLM", "Model"]),
    "T5": ("T5", T5, ["ForConditionalGeneration", "EncoderModel"]),
    "T5 v1.1": ("T5", T5 | dict(feed_forward_proj="gated-gelu", tie_word_embeddings=False), ["ForConditionalGeneration"]),
    "BART": ("Bart", BART, ["ForConditionalGeneration", "Model"]),
    "Whisper": ("Whisper", WHISPER, ["ForConditionalGeneration"]),
    "Llama": ("Llama", DECODER, ["ForCausalLM", "ForSequenceClassification", "Model"]),
    "Llama, tied": ("Llama", DECODER | dict(tie_word_embeddings=True), ["ForCausalLM"]),
    "Qwen2": ("Qwen2", DECODER, ["ForCausalLM"]),
    "Qwen3": ("Qwen3", DECODER, ["ForCausalLM", "Model"]),
    "Gemma": ("Gemma", DECODER, ["ForCausalLM"]),
    "Gemma 2": ("Gemma2", DECODER, ["ForCausalLM"]),
    "Gemma 3": ("Gemma3", DECODER, ["ForCausalLM"]),
    "Granite": ("Granite", DECODER, ["ForCausalLM"]),
    "OLMo 2": ("Olmo2", DECODER, ["ForCausalLM"]),
    "SmolLM3": ("SmolLM3", DECODER, ["ForCausalLM"]),
    "Phi-3": ("Phi3", DECODER | dict(num_key_value_heads=2), ["ForCausalLM"]),
    "Mistral": ("Mistral", DECODER, ["ForCausalLM"]),
    "Mixtral": ("Mixtral", DECODER | dict(num_local_experts=4), ["ForCausalLM"]),
    "Qwen3-MoE": (
        "Qwen3Moe",
        DECODER | dict(num_experts=4, num_experts_per_tok=2, moe_intermediate_size=64, mlp_only_layers=[0]),
        ["ForCausalLM"],
    ),
    "Qwen2-MoE": (
        "Qwen2Moe",
        DECODER | dict(num_experts=4, num_experts_per_tok=2, moe_intermediate_size=64, shared_expert_intermediate_size=64),
        ["ForCausalLM"],
    ),
    "OLMoE": ("Olmoe", DECODER | dict(num_experts=4, num_experts_per_tok=2), ["ForCausalLM"]),
    "gpt-oss": ("GptOss", DECODER | dict(num_local_experts=4, num_experts_per_tok=2), ["ForCausalLM"]),
    "ViT": ("ViT", PICTURE, ["ForImageClassification", "Model"]),
    "CLIP": ("CLIP", CLIP, ["Model"]),
    "wav2vec2": ("Wav2Vec2", WAV2VEC2, ["ForCTC", "Model"]),
    "HuBERT": ("Hubert", WAV2VEC2, ["ForCTC", "Model"]),
    "ERNIE": ("Ernie", ENCODER, MASKED),
    "Megatron-BERT": ("MegatronBert", ENCODER, MASKED),
    "LayoutLM": ("LayoutLM", ENCODER | dict(max_2d_position_embeddings=64), MASKED),
    "BigBird": ("BigBird", ENCODER | dict(attention_type="original_full"), MASKED),
    "Nystromformer": ("Nystromformer", ENCODER | dict(num_landmarks=4, segment_means_seq_len=12), MASKED),
    "RoFormer": ("RoFormer", ENCODER | dict(embedding_size=HIDDEN), MASKED),
    "DeBERTa": ("Deberta", ENCODER | dict(relative_attention=True, pos_att_type=["p2c", "c2p"]), MASKED),
    "FNet": ("FNet", ENCODER, MASKED),
    "Longformer": ("Longformer", ENCODER | dict(attention_window=[8, 8]), MASKED),
    "data2vec text": ("Data2VecText", ENCODER, MASKED),
    "RoBERTa-PreLayerNorm": ("RobertaPreLayerNorm", ENCODER, MASKED),
    "XLM-RoBERTa-XL": ("XLMRobertaXL", ENCODER, MASKED),
    "Funnel": ("Funnel", FUNNEL, ["ForMaskedLM", "Model"]),
    "XLNet": ("XLNet", XLNET, ["LMHeadModel", "ForSequenceClassification", "Model"]),
    "XLM": ("XLM", XLM, ["WithLMHeadModel", "ForSequenceClassification", "Model"]),
    "FlauBERT": ("Flaubert", XLM, ["WithLMHeadModel", "ForSequenceClassification", "Model"]),
    "StableLM": ("StableLm", DECODER, CAUSAL),
    "Cohere": ("Cohere", DECODER, CAUSAL),
    "Cohere 2": ("Cohere2", DECODER, CAUSAL),
    "OLMo": ("Olmo", DECODER, CAUSAL),
    "OLMo 3": ("Olmo3", DECODER, CAUSAL),
    "Helium": ("Helium", DECODER, CAUSAL),
    "ERNIE 4.5": ("Ernie4_5", DECODER, CAUSAL),
    "Seed-OSS": ("SeedOss", DECODER, CAUSAL),
    "Apertus": ("Apertus", DECODER, CAUSAL),
    "EXAONE 4": ("Exaone4", DECODER, CAUSAL),
    "Arcee": ("Arcee", DECODER, CAUSAL),
    "Ministral": ("Ministral", DECODER, CAUSAL),
    "Hunyuan": ("HunYuanDenseV1", DECODER, CAUSAL),
    "VaultGemma": ("VaultGemma", DECODER, CAUSAL),
    "CWM": ("Cwm", DECODER, CAUSAL),
    "Jais 2": ("Jais2", DECODER, CAUSAL),
    "Nemotron": ("Nemotron", DECODER | dict(num_key_value_heads=2), CAUSAL),
    "GLM": ("Glm", DECODER, CAUSAL),
    "GLM-4": ("Glm4", DECODER, CAUSAL),
    "Phi": ("Phi", DECODER | dict(num_key_value_heads=2), CAUSAL),
    "StarCoder2": ("Starcoder2", DECODER, CAUSAL),
    "Persimmon": ("Persimmon", DECODER | dict(num_key_value_heads=2), CAUSAL),
    "LFM2": ("Lfm2", DECODER, CAUSAL),
    "XGLM": ("XGLM", XGLM, CAUSAL),
    "BioGPT": ("BioGpt", ENCODER | SPECIAL, CAUSAL),
    "GPT-J": ("GPTJ", GPTJ, CAUSAL),
    "CodeGen": ("CodeGen", GPTJ | dict(n_ctx=LENGTH), CAUSAL),
    "GPT-Neo": ("GPTNeo", GPT_NEO, CAUSAL),
    "GPT-BigCode": ("GPTBigCode", GPT2 | SPECIAL, CAUSAL),
    "BLOOM": ("Bloom", BLOOM, CAUSAL),
    "Falcon": ("Falcon", FALCON, CAUSAL),
    "MPT": ("Mpt", MPT, CAUSAL),
    "GPT-NeoX Japanese": ("GPTNeoXJapanese", ENCODER | dict(intermediate_multiple_size=2) | SPECIAL, CAUSAL),
    "mT5": ("MT5", T5 | dict(tie_word_embeddings=False), ["ForConditionalGeneration", "EncoderModel"]),
    "UMT5": ("UMT5", T5, ["ForConditionalGeneration", "EncoderModel"]),
    "LongT5": ("LongT5", T5 | dict(local_radius=7), ["ForConditionalGeneration"]),
    "mBART": ("MBart", BART, ["ForConditionalGeneration", "Model"]),
    "Marian": ("Marian", BART | dict(decoder_start_token_id=0), ["MTModel", "Model"]),
    "Pegasus": ("Pegasus", BART, ["ForConditionalGeneration", "Model"]),
    "M2M100": ("M2M100", BART, ["ForConditionalGeneration", "Model"]),
    "Blenderbot": ("Blenderbot", BART, ["ForConditionalGeneration"]),
    "Blenderbot Small": ("BlenderbotSmall", BART, ["ForConditionalGeneration"]),
    "PLBart": ("PLBart", BART, ["ForConditionalGeneration"]),
    "BigBird-Pegasus": ("BigBirdPegasus", BART | dict(attention_type="original_full"), ["ForConditionalGeneration"]),
    "Speech2Text": ("Speech2Text", SPEECH, ["ForConditionalGeneration"]),
    "Moonshine": ("Moonshine", MOONSHINE, ["ForConditionalGeneration"]),
    "CLIP text": ("CLIPText", CLIP["text_config"], ["ModelWithProjection", "Model"]),
    "CLIP vision": ("CLIPVision", CLIP["vision_config"], ["ModelWithProjection", "Model"]),
    "SigLIP": ("Siglip", SIGLIP, ["Model"]),
    "UniSpeech": ("UniSpeech", WAV2VEC2, ["ForCTC", "Model"]),
    "UniSpeech-SAT": ("UniSpeechSat", WAV2VEC2, ["ForCTC", "Model"]),
    "data2vec audio": (
        "Data2VecAudio", WAV2VEC2 | dict(conv_pos_kernel_size=5, num_conv_pos_embeddings=2), ["ForCTC", "Model"],
    ),
    "LED": ("LED", LED, ["ForConditionalGeneration", "Model"]),
    "BLIP": ("Blip", BLIP, ["ForConditionalGeneration", "ForImageTextRetrieval", "Model"]),
    "LLaVA": ("Llava", LLAVA, ["ForConditionalGeneration", "Model"]),
    "PaliGemma": ("PaliGemma", PALIGEMMA, ["ForConditionalGeneration", "Model"]),
    "SEW": ("SEW", WAV2VEC2 | dict(squeeze_factor=2), ["ForCTC", "Model"]),
}
# Configurations whose names differ from their classes.
CONFIGS = {"Gemma3": "Gemma3TextConfig"}
# Schemes that briquette refuses, because transformers cannot load them.
REFUSED = {
    "GPT-2": set(SCHEMES),
    "ModernBERT": PACKED,
    "T5": PACKED,
    "T5 v1.1": PACKED,
    "mT5": PACKED,
    "UMT5": PACKED,
    "LongT5": PACKED,
    "GPT-BigCode": PACKED,
    "Falcon": PACKED,
    "SigLIP": PACKED,
    "PaliGemma": PACKED,
    "Mixtral": {"int8-dynamic", "int8-dynamic-sym"},
    "Qwen2-MoE": {"int8-dynamic", "int8-dynamic-sym"},
    "Qwen3-MoE": {"int8-dynamic", "int8-dynamic-sym"},
    "OLMoE": {"int8-dynamic", "int8-dynamic-sym"},
}
# Families whose bare model has other parts than the classes with a head, so that AutoModel cannot load those.
OTHER_PARTS = ["BLIP"]
# Families whose own results vary in the last bit. With symmetric codes, each token may have a tie, which then changes a code.
TIES = {("LED", "int8-dynamic-sym"): 2e-2}
# Families with experts: in "mixed", all experts have one packed scheme, and other tensors have another.
EXPERTS = ["Mixtral", "Qwen2-MoE", "Qwen3-MoE", "OLMoE"]


def quietly():
    return contextlib.redirect_stderr(io.StringIO())


def make(folder, name, cls):
    """Makes a model of random weights, including norms and biases, and saves it with transformers."""
    config, values, _ = FAMILIES[name]
    torch.manual_seed(7)
    settings = getattr(transformers, CONFIGS.get(config, f"{config}Config"))(**values)
    model = getattr(transformers, config + cls)(settings)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter.add_(0.1 * torch.randn_like(parameter))
            elif parameter.abs().max() == 0:
                parameter.normal_(0, 0.1)
    model.save_pretrained(folder)
    return type(model)


def recipe(name, scheme, model, out):
    """Returns a recipe that gives some tensors another scheme, which flags cannot express."""
    first, include, second = ("int8-dynamic", ["**.experts.**"], "int8")
    if name not in EXPERTS:
        first, include, second = ("int8", ["**.0.**"], "int4-g32")
    return (
        f"[model]\npath = {json.dumps(str(model))}\n[output]\npath = {json.dumps(str(out))}\n"
        f'format = "compressed-tensors"\n[[stage]]\nkind = "quantize"\nscheme = "{first}"\n'
        f'overrides = [{{ include = {json.dumps(include)}, scheme = "{second}" }}]\n'
    )


def briquette(*words):
    done = subprocess.run([str(args.binary.resolve()), *map(str, words)], capture_output=True, text=True)
    return done.returncode, done.stderr.strip()


def compress(name, scheme, model, out):
    if scheme != "mixed":
        words = ["--quantize", scheme, "--format", "compressed-tensors"]
        return briquette("compress", model, "-o", out, *words, "--force", "--quiet")
    path = out.with_suffix(".toml")
    path.write_text(recipe(name, scheme, model, out))
    return briquette("run", path, "--force", "--quiet")


def inputs(model):
    generator = torch.Generator().manual_seed(3)
    words = torch.randint(3, WORDS, (2, 12), generator=generator)
    words[:, -1] = 2
    noise = lambda *shape: torch.randn(*shape, generator=generator)
    name, kind = type(model).__name__, model.config.model_type
    if kind in ("llava", "paligemma"):
        words[words == IMAGE_TOKEN] += 1
        words = torch.cat([torch.full((2, IMAGE_TOKENS), IMAGE_TOKEN), words], 1)
    if kind in ("clip", "siglip", "blip", "llava", "paligemma"):
        return {"input_ids": words, "pixel_values": noise(2, 3, 32, 32)}
    if kind == "whisper":
        return {"input_features": noise(2, 64, 64), "decoder_input_ids": words}
    if kind == "speech_to_text":
        return {"input_features": noise(2, 64, 16), "decoder_input_ids": words}
    if kind == "moonshine":
        return {"input_values": noise(2, 4000), "decoder_input_ids": words}
    if model.main_input_name == "pixel_values":
        return {"pixel_values": noise(2, 3, 32, 32)}
    if model.main_input_name == "input_values":
        return {"input_values": noise(2, 400)}
    if model.config.is_encoder_decoder and "Encoder" not in name:
        return {"input_ids": words, "decoder_input_ids": words}
    if kind == "layoutlm":
        return {"input_ids": words, "bbox": torch.zeros(2, 12, 4, dtype=torch.long)}
    if kind == "fnet":
        return {"input_ids": words}
    return {"input_ids": words, "attention_mask": torch.ones_like(words)}


def output(model):
    with torch.no_grad():
        found = model(**inputs(model))
    for key in ("logits", "prediction_logits", "logits_per_text", "last_hidden_state", "text_embeds", "image_embeds",
                "itm_score"):
        if getattr(found, key, None) is not None:
            return getattr(found, key).double()
    raise AssertionError(f"{type(model).__name__} has no output that is compared")


def load(cls, folder):
    with quietly():
        model, notes = cls.from_pretrained(folder, dtype=torch.float32, output_loading_info=True)
    strip = lambda key: re.sub(r"(_packed|_scale|_shape|_zero_point)$", "", str(key))
    return model.eval(), {kind: {strip(key) for key in notes.get(kind) or ()} for kind in NOTES}


def rounds_activations(coded, dense):
    """Quantizes the activations that the compressed model quantizes: per token, to int8."""
    n_coded, modules = 0, dict(dense.named_modules())
    for name, module in coded.named_modules():
        scheme = getattr(module, "quantization_scheme", None)
        n_coded += scheme is not None
        if scheme is not None and scheme.input_activations is not None:
            is_symmetric = scheme.input_activations.symmetric
            modules[name].register_forward_pre_hook(lambda _, given, s=is_symmetric: (rounded(given[0], s), *given[1:]))
    return n_coded


def rounded(x, is_symmetric):
    """Quantizes per token like compressed-tensors: a matrix, such as a pooled state, counts as one token."""
    rows = x if x.dim() > 2 else x.reshape(1, -1)
    return rounded_rows(rows, is_symmetric).reshape(x.shape)


def rounded_rows(x, is_symmetric):
    if is_symmetric:
        scale = (x.abs().amax(-1, keepdim=True) / 127.5).clamp_min(torch.finfo(x.dtype).eps)
        return (x / scale).round().clamp(-128, 127) * scale
    low, high = x.amin(-1, keepdim=True).clamp_max(0), x.amax(-1, keepdim=True).clamp_min(0)
    scale = ((high - low) / 255).clamp_min(torch.finfo(x.dtype).eps)
    zero = (-128 - low / scale).round().clamp(-128, 127)
    return ((x / scale + zero).round().clamp(-128, 127) - zero) * scale


def compare(name, cls, coded_folder, dense_folder, scheme):
    """Returns (an error or None, figures) of one class."""
    coded, notes = load(cls, coded_folder)
    dense, expected = load(cls, dense_folder)
    n_coded = rounds_activations(coded, dense)
    if notes != expected:
        differ = {kind: sorted(notes[kind] ^ expected[kind])[:3] for kind in NOTES if notes[kind] != expected[kind]}
        return f"loading differs from dense: {differ}", None
    if n_coded == 0:
        return "no module is quantized", None
    found, wanted = output(coded), output(dense)
    if not torch.isfinite(found).all():
        return "NaN or infinity", None
    apart = ((found - wanted).abs().max() / wanted.abs().max()).item()
    limit = TIES.get((name, scheme), 5e-3 if "dynamic" in scheme or scheme == "mixed" else 1e-5)
    return (None if apart <= limit else f"{apart:.1e} of the largest output apart"), apart


def cosine(cls, one, other):
    one, other = output(load(cls, one)[0]).flatten(), output(load(cls, other)[0]).flatten()
    return torch.nn.functional.cosine_similarity(one, other, dim=0).item()


def check(name, cls, scheme, work):
    """Returns (an error or None, a word on the outcome)."""
    model, out, dense = work / "model", work / scheme, work / f"{scheme}-dense"
    kind = make(model, name, cls)
    code, said = compress(name, scheme, model, out)
    if scheme in REFUSED.get(name, ()):
        holds = code == 6 and "transformers" in said and "were not tested" not in said
        return (None, "refused") if holds else (f"expected a refusal, exit {code}: {said}", "")
    if code != 0:
        return f"exit {code}: {said}", ""
    code, said = briquette("export", out, "--to", "dense", "-o", dense, "--force", "--quiet")
    if code != 0:
        return f"exit {code}: {said}", ""
    figures = []
    is_bare = cls in ("Model", "EncoderModel", "ModelWithProjection") or name in OTHER_PARTS
    for loaded in [kind] if is_bare else [kind, AutoModel]:
        wrong, apart = compare(name, loaded, out, dense, scheme)
        if wrong:
            return f"as {loaded.__name__}: {wrong}", ""
        figures.append(apart)
    return None, f"{max(figures):.0e}, cosine to f32 {cosine(kind, dense, model):.5f}"


def checks(chosen):
    for name, (config, _, classes) in FAMILIES.items():
        if chosen and name.lower() not in chosen:
            continue
        for cls in classes:
            for scheme in SCHEMES:
                yield name, config, cls, scheme


def run():
    root = args.workdir / "families"
    chosen = set(filter(None, args.only.lower().split(",")))
    n_failed = n_run = 0
    for name, config, cls, scheme in checks(chosen):
        work = root / (config + cls)
        shutil.rmtree(work, ignore_errors=True)
        work.mkdir(parents=True)
        try:
            with quietly():
                wrong, outcome = check(name, cls, scheme, work)
        except Exception as error:
            wrong, outcome = f"{type(error).__name__}: {error}".replace("\n", " | ")[:400], ""
        n_run, n_failed = n_run + 1, n_failed + (wrong is not None)
        print(f"{'FAIL' if wrong else 'PASS'} {name:<12} {config + cls:<32} {scheme:<16} {wrong or outcome}", flush=True)
    print(f"{n_run - n_failed} of {n_run} passed")
    return 1 if n_failed or not n_run else 0


parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("binary", type=pathlib.Path)
parser.add_argument("workdir", type=pathlib.Path)
parser.add_argument("--only", default="", help="comma list of families")
args = parser.parse_args()
sys.exit(run())
