"""PyTorch's side of bench/compare_cpu.sh: times a training step on the CPU and prints one JSON line.
usage: torch_lenet.py [--model lenet|resnet18_cifar] [--batch N] [--steps N] [--threads N] [--layout nhwc|nchw]
                      [--data DIR]
lenet trains on the MNIST set in DIR (default data/mnist beside this folder), resnet18_cifar on random images."""

import argparse
import gzip
import json
import pathlib
import resource
import statistics
import time

import numpy
import torch
import torch.nn.functional as F
from torch import nn


class LeNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(1, 32, 3, padding=1), nn.Conv2d(32, 64, 3, padding=1)
        self.fc1, self.fc2 = nn.Linear(64 * 7 * 7, 128), nn.Linear(128, 10)

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.conv1(x), inplace=True), 2)
        x = F.max_pool2d(F.relu(self.conv2(x), inplace=True), 2)
        return self.fc2(F.relu(self.fc1(torch.flatten(x, 1)), inplace=True))


class BasicBlock(nn.Module):
    def __init__(self, channels_in, channels, stride):
        super().__init__()
        self.conv1 = nn.Conv2d(channels_in, channels, 3, stride, 1, bias=False)
        self.conv2 = nn.Conv2d(channels, channels, 3, 1, 1, bias=False)
        self.bn1, self.bn2 = nn.BatchNorm2d(channels), nn.BatchNorm2d(channels)
        self.downsample = None
        if stride != 1 or channels_in != channels:
            self.downsample = nn.Sequential(nn.Conv2d(channels_in, channels, 1, stride, bias=False),
                                            nn.BatchNorm2d(channels))

    def forward(self, x):
        shortcut = x if self.downsample is None else self.downsample(x)
        x = F.relu(self.bn1(self.conv1(x)), inplace=True)
        x = self.bn2(self.conv2(x))
        x += shortcut
        return F.relu(x, inplace=True)


class ResNet18Cifar(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(3, 64, 3, 1, 1, bias=False), nn.BatchNorm2d(64)
        blocks, channels_in = [], 64
        for channels, stride in ((64, 1), (64, 1), (128, 2), (128, 1), (256, 2), (256, 1), (512, 2), (512, 1)):
            blocks.append(BasicBlock(channels_in, channels, stride))
            channels_in = channels
        self.blocks, self.fc = nn.Sequential(*blocks), nn.Linear(512, 10)

    def forward(self, x):
        x = self.blocks(F.relu(self.bn1(self.conv1(x)), inplace=True))
        return self.fc(x.mean((2, 3)))


def read_idx(path, header):
    return numpy.frombuffer(gzip.decompress(path.read_bytes()), numpy.uint8, offset=header)


def mnist(folder, count):
    images = read_idx(folder / "train-images-idx3-ubyte.gz", 16).reshape(-1, 1, 28, 28)[:count]
    labels = read_idx(folder / "train-labels-idx1-ubyte.gz", 8)[:count]
    return (torch.from_numpy(images.astype(numpy.float32) / 255 - 0.1307) / 0.3081,
            torch.from_numpy(labels.astype(numpy.int64)))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=("lenet", "resnet18_cifar"), default="lenet")
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--layout", choices=("nhwc", "nchw"), default="nhwc")
    parser.add_argument("--data", type=pathlib.Path, default=pathlib.Path(__file__).parents[1] / "data" / "mnist")
    args = parser.parse_args()

    torch.set_num_threads(args.threads)
    torch.manual_seed(0)
    layout = torch.channels_last if args.layout == "nhwc" else torch.contiguous_format
    if args.model == "lenet":
        model, (images, labels) = LeNet(), mnist(args.data, args.batch)
    else:
        model, images, labels = ResNet18Cifar(), torch.randn(args.batch, 3, 32, 32), torch.randint(0, 10, (args.batch,))
    model, images = model.to(memory_format=layout), images.to(memory_format=layout)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)

    def step():
        optimizer.zero_grad(set_to_none=True)
        F.cross_entropy(model(images), labels).backward()
        optimizer.step()

    for _ in range(3):
        step()
    seconds = []
    for _ in range(args.steps):
        start = time.perf_counter()
        step()
        seconds.append(time.perf_counter() - start)
    median = statistics.median(seconds)
    print(json.dumps({
        "model": args.model, "batch": args.batch, "layout": args.layout.upper(), "ms": 1e3 * median,
        "fastest_ms": 1e3 * min(seconds), "images_per_s": args.batch / median,
        "peak_rss_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        "threads": torch.get_num_threads(), "torch": torch.__version__}))


if __name__ == "__main__":
    main()
