"""Optimizers, schedules, gradient clipping and a LeNet loss curve, all in float64."""

import gzip

import numpy as np
import torch
import torch.nn.functional as F
from torch.optim import lr_scheduler

from formula import values

STEPS = 10
SHAPES = [[2, 3, 3, 2], [3, 5], [4]]


def numbers(tensor):
    return [float(f"{v:.10g}") for v in tensor.detach().double().reshape(-1).tolist()]


def tensor_of(shape, seed, scale=1.0):
    return torch.from_numpy(values({"shape": shape, "seed": seed, "scale": scale}))


def parameters():
    return [tensor_of(shape, 100 + i).requires_grad_() for i, shape in enumerate(SHAPES)]


def give_gradients(params, step):
    for i, p in enumerate(params):
        p.grad = tensor_of(SHAPES[i], 200 + 10 * step + i)


def optimizer_case(kind, **options):
    """`decay_norm_and_bias` false: parameters of rank 1 form a group without decay."""
    params = parameters()
    torch_options = dict(options)
    everywhere = torch_options.pop("decay_norm_and_bias", True)
    if "beta1" in torch_options:
        torch_options["betas"] = (torch_options.pop("beta1"), torch_options.pop("beta2"))
    groups = [{"params": params}]
    if not everywhere:
        groups = [{"params": params[:2]}, {"params": params[2:], "weight_decay": 0.0}]
    optimizer = {"SGD": torch.optim.SGD, "AdamW": torch.optim.AdamW}[kind](groups, **torch_options)
    for step in range(STEPS):
        give_gradients(params, step)
        optimizer.step()
    return {"kind": kind, "options": options, "shapes": SHAPES, "steps": STEPS,
            "after": [numbers(p) for p in params]}


def optimizer_cases():
    return [
        optimizer_case("SGD", lr=0.1),
        optimizer_case("SGD", lr=0.1, momentum=0.9),
        optimizer_case("SGD", lr=0.1, momentum=0.9, nesterov=True),
        optimizer_case("SGD", lr=0.1, momentum=0.8, dampening=0.3),
        optimizer_case("SGD", lr=0.1, weight_decay=0.2),
        optimizer_case("SGD", lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.2),
        optimizer_case("SGD", lr=0.1, momentum=0.7, dampening=0.1, weight_decay=0.3, decay_norm_and_bias=False),
        optimizer_case("AdamW", lr=0.05),
        optimizer_case("AdamW", lr=0.05, weight_decay=0.0),
        optimizer_case("AdamW", lr=0.1, beta1=0.8, beta2=0.95, eps=1e-3, weight_decay=0.3),
        optimizer_case("AdamW", lr=0.1, weight_decay=0.5, decay_norm_and_bias=False),
    ]


def clip_case(max_norm):
    params = parameters()
    give_gradients(params, 0)
    norm = torch.nn.utils.clip_grad_norm_(params, max_norm)
    return {"shapes": SHAPES, "max_norm": max_norm, "norm": norm.item(), "after": [numbers(p.grad) for p in params]}


def rates(lr, make, steps):
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=lr)
    schedule = make(optimizer)
    seen = []
    for _ in range(steps):
        seen.append(float(f"{optimizer.param_groups[0]['lr']:.12g}"))
        optimizer.step()
        schedule.step()
    return seen


def warmed(make, steps, start):
    """LinearLR, then the schedule from its own step 0."""

    def build(optimizer):
        warmup = lr_scheduler.LinearLR(optimizer, start_factor=start, total_iters=steps)
        return lr_scheduler.SequentialLR(optimizer, [warmup, make(optimizer)], milestones=[steps])

    return build


def schedule_cases():
    def case(kind, lr, make, count, warmup=0, start=0.01, **options):
        if warmup:
            make = warmed(make, warmup, start)
        return {"kind": kind, "lr": lr, "options": options, "warmup": warmup, "start_factor": start,
                "rates": rates(lr, make, count)}

    def constant(optimizer):
        return lr_scheduler.LambdaLR(optimizer, lambda step: 1.0)

    def step(period, gamma):
        return lambda optimizer: lr_scheduler.StepLR(optimizer, period, gamma)

    def cosine(steps, low=0.0):
        return lambda optimizer: lr_scheduler.CosineAnnealingLR(optimizer, steps, low)

    def one_cycle(peak, steps, rise=0.3, div=25.0, final_div=1e4):
        return lambda optimizer: lr_scheduler.OneCycleLR(
            optimizer, peak, steps, pct_start=rise, div_factor=div, final_div_factor=final_div,
            anneal_strategy="cos", cycle_momentum=False)

    return [
        case("constant", 0.3, constant, 10),
        case("step", 0.5, step(3, 0.1), 10, period=3, gamma=0.1),
        case("step", 0.5, step(4, 0.7), 10, period=4, gamma=0.7),
        case("cosine", 0.2, cosine(10), 10, steps=10, min_lr=0.0),
        case("cosine", 0.2, cosine(9, 0.01), 10, steps=9, min_lr=0.01),
        case("one_cycle", 0.4, one_cycle(0.4, 10), 10, steps=10, rise=0.3, div=25.0, final_div=1e4),
        case("one_cycle", 1.5, one_cycle(1.5, 23, 0.25, 10.0, 100.0), 23, steps=23, rise=0.25, div=10.0,
             final_div=100.0),
        case("constant", 0.3, constant, 10, warmup=4, start=0.1),
        case("step", 0.5, step(3, 0.5), 12, warmup=3, start=0.2, period=3, gamma=0.5),
        case("cosine", 0.2, cosine(8), 12, warmup=4, start=0.01, steps=8, min_lr=0.0),
    ]


LENET = {  # PyTorch's names: shape of each parameter, in state_dict order
    "conv1.weight": [6, 1, 5, 5], "conv1.bias": [6], "conv2.weight": [16, 6, 5, 5], "conv2.bias": [16],
    "fc1.weight": [120, 400], "fc1.bias": [120], "fc2.weight": [84, 120], "fc2.bias": [84],
    "fc3.weight": [10, 84], "fc3.bias": [10],
}


def lenet(w, x):
    x = F.max_pool2d(F.relu(F.conv2d(x, w["conv1.weight"], w["conv1.bias"], padding=2)), 2)
    x = F.max_pool2d(F.relu(F.conv2d(x, w["conv2.weight"], w["conv2.bias"])), 2)
    x = F.relu(F.linear(torch.flatten(x, 1), w["fc1.weight"], w["fc1.bias"]))
    x = F.relu(F.linear(x, w["fc2.weight"], w["fc2.bias"]))
    return F.linear(x, w["fc3.weight"], w["fc3.bias"])


def idx(file, header):
    return torch.from_numpy(np.frombuffer(gzip.open(file).read(), np.uint8, offset=header).copy())


def lenet_curve(mnist, batch=32, steps=50, lr=0.05, momentum=0.9):
    """Batches of the training set in file order; weights uniform within 1/sqrt(fan-in)."""
    images = idx(mnist / "train-images-idx3-ubyte.gz", 16).reshape(-1, 1, 28, 28)[: batch * steps]
    labels = idx(mnist / "train-labels-idx1-ubyte.gz", 8)[: batch * steps].long()
    images = (images.double() / 255 - 0.1307) / 0.3081
    recipe, weights = [], {}
    for i, (name, shape) in enumerate(LENET.items()):
        scale = float(np.prod(LENET[name.replace("bias", "weight")][1:])) ** -0.5
        recipe.append({"name": name, "shape": shape, "seed": 300 + i, "scale": scale})
        weights[name] = tensor_of(shape, 300 + i, scale).requires_grad_()
    optimizer = torch.optim.SGD(weights.values(), lr=lr, momentum=momentum)
    losses = []
    for k in range(steps):
        rows = slice(k * batch, (k + 1) * batch)
        loss = F.cross_entropy(lenet(weights, images[rows]), labels[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(f"{loss.item():.10g}"))
    return {"batch": batch, "lr": lr, "momentum": momentum, "parameters": recipe, "losses": losses,
            "norms_after": {name: float(f"{w.norm().item():.10g}") for name, w in weights.items()}}


def all_lists(mnist):
    return {
        "optimizers": optimizer_cases(),
        "clips": [clip_case(1.0), clip_case(100.0)],
        "schedules": schedule_cases(),
        "lenet": [lenet_curve(mnist)],
    }
