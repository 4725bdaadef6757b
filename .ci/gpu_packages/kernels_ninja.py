"""Writes build.ninja for kernels that are compiled for Hopper GPUs (capability 9.0) on a machine
without one: the part of flash-attn that trains models in bfloat16 with heads of at most 128, and
DeepSpeed's FusedAdam.

`kernels_ninja.py FLASH_ATTN DEEPSPEED_OPS FOLDER`, by a Python that has torch and NVIDIA's compiler
from PyPI; FOLDER then has flash_attn_2_cuda.so and fused_adam_op.so. All of flash-attn takes hours;
this takes a quarter of one on two cores. Dropout, ALiBi, soft caps and sliding windows are left out
by flash-attn's own macros; other types and lengths of heads by its two switches, which are
replaced.
"""

import sys
import sysconfig
from pathlib import Path

LEFT_OUT = ("DROPOUT", "ALIBI", "SOFTCAP", "LOCAL")
HEADS = (64, 128)
SWITCHES = r"""
#undef FP16_SWITCH
#undef HEADDIM_SWITCH
#define FP16_SWITCH(COND, ...) [&] { \
    using elem_type = cutlass::bfloat16_t; return __VA_ARGS__(); }()
#define HEADDIM_SWITCH(HEADDIM, ...) [&] { \
    if (HEADDIM <= 64) { constexpr static int kHeadDim = 64; return __VA_ARGS__(); } \
    constexpr static int kHeadDim = 128; return __VA_ARGS__(); \
  }()
"""
packages = Path(sysconfig.get_paths()["purelib"])
torch, cuda = packages / "torch", packages / "nvidia" / "cu13"
half = " ".join(
    f"-U__CUDA_NO_{name}__"
    for name in ("HALF_OPERATORS", "HALF_CONVERSIONS", "HALF2_OPERATORS", "BFLOAT16_CONVERSIONS")
)
device = (
    f"{half} --expt-relaxed-constexpr --expt-extended-lambda --use_fast_math -gencode "
    "arch=compute_90,code=sm_90"
)
libraries = "-lc10 -lc10_cuda -ltorch -ltorch_cpu -ltorch_cuda -ltorch_python -l:libcudart.so.13"


def module(name: str, sources: list[Path], included: list[Path], defined: list[str]) -> list[str]:
    """The lines for one extension: how each source is compiled, and how all are linked."""
    flags = [
        *("-O3", "-std=c++17", "-w", f"-DTORCH_EXTENSION_NAME={name}"),
        *(f"-D{each}" for each in defined),
        *(f"-I{path}" for path in included),
        *(f"-I{torch}/include{part}" for part in ("", "/torch/csrc/api/include")),
        *(f"-I{cuda}/include{part}" for part in ("", "/cccl")),
        f"-I{sysconfig.get_paths()['include']}",
    ]
    rule = {".cu": f"device flags = {' '.join(flags)}", ".cpp": f"host flags = {' '.join(flags)}"}
    objects = [f"made/{name}/{source.stem}.o" for source in sources]
    lines = []
    for source, made in zip(sources, objects, strict=True):
        kind, _, value = rule[source.suffix].partition(" ")
        lines += [f"build {made}: {kind} {source}", f"  {value}"]
    return [*lines, f"build {name}.so: link {' '.join(objects)}"]


flash, operators, folder = (Path(word).absolute() for word in sys.argv[1:])
kernels = flash / "csrc/flash_attn/src"
switches = kernels / "static_switch.h"
if SWITCHES not in switches.read_text():
    switches.write_text(switches.read_text() + SWITCHES)
parts = [
    kernels / f"flash_{kind}_hdim{head}_bf16{causal}_sm80.cu"
    for kind in ("fwd", "bwd", "fwd_split")
    for head in HEADS
    for causal in ("", "_causal")
]
adam = operators / "csrc/adam"
lines = [
    "rule device",
    f"  command = {cuda}/bin/nvcc $flags {device} -Xcompiler -fPIC -c $in -o $out",
    "rule host",
    "  command = g++ $flags -fPIC -c $in -o $out",
    "rule link",
    f"  command = g++ -shared -o $out $in -L{torch}/lib -L{cuda}/lib {libraries}",
    *module(
        "flash_attn_2_cuda",
        [flash / "csrc/flash_attn/flash_api.cpp", *parts],
        [flash / "csrc/flash_attn", kernels, flash / "csrc/cutlass/include"],
        [f"FLASHATTENTION_DISABLE_{name}" for name in LEFT_OUT],
    ),
    *module(
        "fused_adam_op",
        [adam / "fused_adam_frontend.cpp", adam / "multi_tensor_adam.cu"],
        [operators / "csrc/includes", adam],
        ["VERSION_GE_1_1", "VERSION_GE_1_3", "VERSION_GE_1_5", "BF16_AVAILABLE"],
    ),
]
folder.mkdir(exist_ok=True)
(folder / "build.ninja").write_text("\n".join(lines) + "\n")
