"""Makes a folder that upstream and vLLM load of a quantised model: `model.py FILE.gguf FOLDER`.

Weights are in bfloat16. Needs transformers and the package gguf.
"""

import sys
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

file, folder = map(Path, sys.argv[1:])
source = {"pretrained_model_name_or_path": file.parent, "gguf_file": file.name}
tokenizer = AutoTokenizer.from_pretrained(**source)
model = AutoModelForCausalLM.from_pretrained(**source, dtype=torch.bfloat16)
tokenizer.save_pretrained(folder)
model.save_pretrained(folder)
print(f"{sum(p.numel() for p in model.parameters()) / 1e6:.1f} M parameters in {folder}")
