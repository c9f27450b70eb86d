"""Run MiniLM as a sentence encoder: load, embed (mean pooling, normalised), compare.

Imported by infer_minilm.py, minilm_fakequant.py and ../interop.py.
"""

import torch
from transformers import AutoModel, AutoTokenizer


def load(folder, **options):
    """Returns (tokenizer, model in f32) of a Hugging Face directory."""
    model = AutoModel.from_pretrained(folder, dtype=torch.float32, **options).eval()
    return AutoTokenizer.from_pretrained(folder), model


@torch.inference_mode()
def embed(tokenizer, model, sentences):
    """Returns embeddings [n, width], each row of length 1."""
    batch = tokenizer(sentences, padding=True, truncation=True, return_tensors="pt")
    hidden = model(**batch).last_hidden_state.float()
    kept = batch["attention_mask"].unsqueeze(-1).float()
    return torch.nn.functional.normalize((hidden * kept).sum(1) / kept.sum(1), dim=1)


def cosines(embeddings, reference):
    """Returns the cosine of each sentence's two embeddings."""
    return (embeddings * reference).sum(1)
