"""Python imports this file first in every process whose PYTHONPATH has its folder: the stand-in for
CUDA (cuda_stand_in.py)."""

import os

if os.environ.get("MARL_STAND_IN"):
    import cuda_stand_in

    cuda_stand_in.install()
