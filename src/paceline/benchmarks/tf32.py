"""TF32 computes what is called fp32 with fewer bits: allowed where it is asked for, and nowhere else."""

from __future__ import annotations


def set_fp32_mode(precision: str) -> None:
    """Let fp32 products and convolutions run in TF32 for the precision `tf32`; true fp32 for every other."""
    import torch

    tf32 = precision == "tf32"
    torch.set_float32_matmul_precision("high" if tf32 else "highest")
    torch.backends.cudnn.allow_tf32 = tf32
