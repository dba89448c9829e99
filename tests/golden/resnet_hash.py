"""Weights and images of a hash, the twin of tests/support/hashed.hpp."""
import numpy as np
import torch


def hashed(index: int, shape) -> torch.Tensor:
    """Values in [-0.5, 0.5), the same as in models_test.cpp."""
    count = int(np.prod(shape, dtype=np.int64))
    h = np.arange(1, count + 1, dtype=np.uint32) * np.uint32(2654435761) ^ np.uint32(index * 0x9E3779B9 % 2**32)
    h ^= h >> np.uint32(16)
    h *= np.uint32(0x85EBCA6B)
    h ^= h >> np.uint32(13)
    return torch.from_numpy(h.astype(np.float64) / 2**32 - 0.5).reshape(shape)


def fill(model):
    for index, (name, t) in enumerate(model.state_dict().items()):
        u = hashed(index, t.shape)
        if t.dim() > 1:
            t.copy_(u * (24 / t[0].numel()) ** 0.5)
        elif name.endswith(("weight", "running_var")):
            t.copy_(1 + 0.4 * u)
        elif t.dim() == 1:
            t.copy_(0.4 * u)
