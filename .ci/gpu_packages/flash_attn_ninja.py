"""Writes FOLDER/build.ninja for the part of flash-attn that trains models in bfloat16 with heads of
at most 128 on Hopper GPUs.

`flash_attn_ninja.py FOLDER`, by a Python that has torch and NVIDIA's compiler from PyPI. All of
flash-attn takes hours; this takes a quarter of one on two cores. Dropout, ALiBi, soft caps and
sliding windows are left out by flash-attn's own macros; other types and lengths of heads by its two
switches, which are replaced.
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

folder = Path(sys.argv[1])
packages = Path(sysconfig.get_paths()["purelib"])
torch, cuda, sources = packages / "torch", packages / "nvidia" / "cu13", "csrc/flash_attn/src"
switches = folder / sources / "static_switch.h"
if SWITCHES not in switches.read_text():
    switches.write_text(switches.read_text() + SWITCHES)

included = [
    "csrc/flash_attn",
    sources,
    "csrc/cutlass/include",
    torch / "include",
    torch / "include/torch/csrc/api/include",
    cuda / "include",
    cuda / "include/cccl",
    sysconfig.get_paths()["include"],
]
defined = [
    *(f"FLASHATTENTION_DISABLE_{name}" for name in LEFT_OUT),
    "TORCH_EXTENSION_NAME=flash_attn_2_cuda",
]
common = " ".join(
    [
        "-O3",
        "-std=c++17",
        "-w",
        *(f"-D{name}" for name in defined),
        *(f"-I{path}" for path in included),
    ]
)
half = " ".join(
    f"-U__CUDA_NO_{name}__"
    for name in ("HALF_OPERATORS", "HALF_CONVERSIONS", "HALF2_OPERATORS", "BFLOAT16_CONVERSIONS")
)
device = (
    f"{half} --expt-relaxed-constexpr --expt-extended-lambda --use_fast_math -gencode "
    "arch=compute_90,code=sm_90"
)
libraries = "-lc10 -lc10_cuda -ltorch -ltorch_cpu -ltorch_cuda -ltorch_python -l:libcudart.so.13"
kernels = [
    f"flash_{kind}_hdim{head}_bf16{causal}_sm80"
    for kind in ("fwd", "bwd", "fwd_split")
    for head in HEADS
    for causal in ("", "_causal")
]
lines = [
    "rule device",
    f"  command = {cuda}/bin/nvcc {common} {device} -Xcompiler -fPIC -c $in -o $out",
    "rule host",
    f"  command = g++ {common} -fPIC -c $in -o $out",
    "rule link",
    f"  command = g++ -shared -o $out $in -L{torch}/lib -L{cuda}/lib {libraries}",
    "build made/api.o: host csrc/flash_attn/flash_api.cpp",
    *(f"build made/{name}.o: device {sources}/{name}.cu" for name in kernels),
    f"build flash_attn_2_cuda.so: link made/api.o {' '.join(f'made/{name}.o' for name in kernels)}",
]
(folder / "build.ninja").write_text("\n".join(lines) + "\n")
