"""Inputs that both sides compute: tests/support/formula.hpp holds the same formulas, so no input is ever stored."""

import numpy as np

SKETCH_SUMS = 32
STORED_IN_FULL = 256  # elements; a larger tensor is kept as its sketch


def mix(index, seed):
    """splitmix64 of (seed, index): 64 well-mixed bits for each element of `index` (uint64)."""
    with np.errstate(over="ignore"):
        z = index * np.uint64(0x9E3779B97F4A7C15) + np.uint64(seed) * np.uint64(0xD1342543DE82EF95)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return z ^ (z >> np.uint64(31))


def bits(count, seed):
    return mix(np.arange(1, count + 1, dtype=np.uint64), seed)


def values(spec):
    """float64 array of the spec's shape whose elements are exact in float32 (or int64 targets)."""
    shape = spec["shape"]
    hashed = bits(int(np.prod(shape, dtype=np.int64)), spec["seed"])
    if "classes" in spec:
        return (hashed % np.uint64(spec["classes"])).astype(np.int64).reshape(shape)
    # 24 bits: uniform in [-1, 1), every value exact in float32
    uniform = (hashed >> np.uint64(40)).astype(np.float64) * 2.0**-23 - 1.0
    if spec.get("coarse"):
        uniform = np.floor(uniform * 4.0) / 4.0
    scaled = uniform * spec.get("scale", 1.0) + spec.get("shift", 0.0)
    return scaled.astype(np.float32).astype(np.float64).reshape(shape)


def sketch(array):
    """Euclidean norm, then signed sums over all elements with 32 independent sign patterns. For another array, the
    root mean square difference of the sums estimates the norm of the difference of the arrays."""
    flat = np.asarray(array, dtype=np.float64).reshape(-1)
    hashed = bits(flat.size, 0)
    sums = [
        np.sum(np.where((hashed >> np.uint64(k)) & np.uint64(1), flat, -flat)) for k in range(SKETCH_SUMS)
    ]
    return np.array([np.linalg.norm(flat), *sums])
