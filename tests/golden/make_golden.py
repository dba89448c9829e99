#!/usr/bin/env python3
"""Writes ops.json, ops.f32 and train.json: what PyTorch computes, in float64, for the cases of op_cases.py and
train_cases.py. Needs torch and numpy; run it from anywhere after changing a case."""

import json
import pathlib

import numpy as np
import torch

import op_cases
import train_cases
from formula import STORED_IN_FULL, sketch, values

HERE = pathlib.Path(__file__).resolve().parent


class Store:
    """One file of little-endian float32 values; tensors are found by their offset in it."""

    def __init__(self):
        self.parts, self.size = [], 0

    def put(self, name, tensor):
        array = tensor.detach().double().numpy()
        whole = array.size <= STORED_IN_FULL
        data = (array.reshape(-1) if whole else sketch(array)).astype("<f4")
        record = {"name": name, "shape": list(array.shape), "at": self.size, "sketch": not whole}
        self.parts.append(data)
        self.size += data.size
        return record

    def write(self, path):
        path.write_bytes(np.concatenate(self.parts).tobytes())


def run(case, store):
    inputs = {}
    for spec in case["inputs"]:
        tensor = torch.from_numpy(values(spec))
        inputs[spec["name"]] = tensor.requires_grad_(spec.get("grad", False))
    output = op_cases.OPS[case["op"]](inputs, case["options"])
    gradient = {"shape": list(output.shape), "seed": 999}
    output.backward(torch.from_numpy(values(gradient)))
    expected = [store.put("output", output)]
    for spec in case["inputs"]:
        name = spec["name"]
        if spec.get("grad"):
            expected.append(store.put("grad " + name, inputs[name].grad))
        if spec.get("changes"):
            expected.append(store.put("after " + name, inputs[name]))
    return {**case, "gradient": gradient, "expected": expected}


def write_json(path, lists):
    """One case a line, so that a difference shows the case."""
    body = []
    for key, items in lists.items():
        lines = ",\n".join(json.dumps(item, separators=(",", ":")) for item in items)
        body.append(f'"{key}": [\n{lines}\n]')
    path.write_text("{\n" + ",\n".join(body) + "\n}\n")


def main():
    torch.set_default_dtype(torch.float64)
    store = Store()
    done = [run(case, store) for case in op_cases.all_cases()]
    names = [case["name"] for case in done]
    assert len(set(names)) == len(names), "two cases have one name"
    store.write(HERE / "ops.f32")
    write_json(HERE / "ops.json", {"cases": done})
    write_json(HERE / "train.json", train_cases.all_lists(HERE.parent.parent / "data" / "mnist"))
    for name in ("ops.json", "ops.f32", "train.json"):
        print(f"{name}: {(HERE / name).stat().st_size} bytes")


if __name__ == "__main__":
    main()
