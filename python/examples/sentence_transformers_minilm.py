"""Embeds sentences with a compressed MiniLM. Usage: python sentence_transformers_minilm.py models/minilm out/small"""

import sys

import briquette
from sentence_transformers import SentenceTransformer

model = SentenceTransformer(sys.argv[1], device="cpu")
state = briquette.load_state_dict(sys.argv[2])
state.pop("embeddings.position_ids")  # positions that transformers computes itself
model[0].auto_model.load_state_dict(state)
embeddings = model.encode(["A cat sleeps.", "A kitten is asleep.", "Rates rise again."])
print(model.similarity(embeddings, embeddings))
