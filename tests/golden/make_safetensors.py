"""Writes tests/golden/from_python.safetensors with the Python package: every dtype, ranks 0 to 4, an empty tensor.

Needs torch and safetensors. tests/safetensors_test.cpp knows the formulas.
"""
from pathlib import Path

import torch
from safetensors.torch import save_file

HERE = Path(__file__).parent


def ramp(shape, dtype):
    count = torch.Size(shape).numel()
    values = (torch.arange(count, dtype=torch.float64) * 3 - 5) / 4
    return values.reshape(shape).to(dtype)


tensors = {
    "conv.weight": ramp((2, 3, 2, 2), torch.float32),
    "fc.weight": ramp((2, 5), torch.float64),
    "half": ramp((7,), torch.float16),
    "brain": ramp((7,), torch.bfloat16),
    "ints": (torch.arange(6) - 3).to(torch.int32).reshape(1, 2, 3),
    "num_batches_tracked": torch.tensor(1 << 40, dtype=torch.int64),
    "bytes": torch.arange(250, 256).to(torch.uint8),
    "empty": torch.zeros((0, 4), dtype=torch.float32),
}
save_file(tensors, HERE / "from_python.safetensors", metadata={"format": "pt", "note": "grüße"})
