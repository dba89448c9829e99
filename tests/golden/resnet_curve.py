"""Writes resnet18_cifar_curve.json: the losses of fifty steps of ResNet-18 with a 3x3 stem in float64, from weights and
images of the hash in resnet.py, and how far PyTorch's own f32 run strays from them. Needs torchvision and a GPU.
usage: resnet_curve.py DIRECTORY"""
import json
import sys

import torch
import torch.nn.functional as F
import torchvision

from resnet_hash import fill, hashed

STEPS, BATCH, SIZE, LR, MOMENTUM = 50, 64, 16, 1e-4, 0.9


def losses(dtype):
    model = torchvision.models.resnet18(num_classes=10)
    model.conv1 = torch.nn.Conv2d(3, 64, 3, 1, 1, bias=False)
    model.maxpool = torch.nn.Identity()
    model = model.to(dtype)
    with torch.no_grad():
        fill(model)
    model.cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=LR, momentum=MOMENTUM)
    seen = []
    for step in range(STEPS):
        images = 4 * hashed(2000 + step, (BATCH, 3, SIZE, SIZE)).to(dtype).cuda()
        loss = F.cross_entropy(model(images), (torch.arange(BATCH) * 7 % 10).cuda())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        seen.append(loss.item())
    return seen


torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = False
exact, single = losses(torch.float64), losses(torch.float32)
with open(f"{sys.argv[1]}/resnet18_cifar_curve.json", "w") as f:
    json.dump({"lr": LR, "momentum": MOMENTUM, "batch": BATCH, "size": SIZE,
               "f32_deviation": float(f"{max(abs(a / b - 1) for a, b in zip(single, exact)):.3g}"),
               "losses": [float(f"{v:.10g}") for v in exact]}, f)
    f.write("\n")
