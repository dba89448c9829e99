"""What models_test.cpp compares models with: names and shapes of torchvision's state_dict, and results in float64
for weights and images that both sides compute from the same hash.
usage: resnet.py DIRECTORY   (writes NAME_state.txt and NAME_results.txt there)"""
import sys

import torch
import torchvision

from resnet_hash import fill, hashed


def results(model):
    images, labels = 4 * hashed(1000, (2, 3, 64, 64)), torch.tensor([3, 7])
    logits = model.train()(images)
    loss = torch.nn.functional.cross_entropy(logits, labels)
    loss.backward()
    yield "train_logits", logits
    yield "loss", loss
    for name in ["conv1.weight", "layer1.0.bn1.weight", "layer3.0.downsample.0.weight", "layer4.1.conv2.weight", "fc.bias"]:
        yield "grad_norm:" + name, model.get_parameter(name).grad.norm()
    yield "eval_logits", model.eval()(images)


for name in ["resnet18", "resnet50"]:
    make = getattr(torchvision.models, name)
    with open(f"{sys.argv[1]}/{name}_state.txt", "w") as f:
        for key, t in make().state_dict().items():
            f.write(f"{key} [{','.join(map(str, t.shape))}]\n")
    model = make(num_classes=10).double()
    fill(model)
    with open(f"{sys.argv[1]}/{name}_results.txt", "w") as f:
        for key, t in results(model):
            f.write(key + " " + " ".join(f"{v:.12g}" for v in t.detach().flatten().tolist()) + "\n")

for name in ["vgg11_bn", "vgg16_bn", "mobilenet_v2"]:
    with open(f"{sys.argv[1]}/{name}_state.txt", "w") as f:
        for key, t in getattr(torchvision.models, name)().state_dict().items():
            f.write(f"{key} [{','.join(map(str, t.shape))}]\n")

# Its dropout draws other masks than PyTorch's while training: evaluation mode, gradients included.
model = torchvision.models.mobilenet_v2(num_classes=10).double().eval()
fill(model)
with open(f"{sys.argv[1]}/mobilenet_v2_results.txt", "w") as f:
    logits = model(4 * hashed(1000, (2, 3, 64, 64)))
    torch.nn.functional.cross_entropy(logits, torch.tensor([3, 7])).backward()
    f.write("eval_logits " + " ".join(f"{v:.12g}" for v in logits.detach().flatten().tolist()) + "\n")
    for name in ["features.0.0.weight", "features.2.conv.1.0.weight", "features.5.conv.3.weight", "features.18.1.bias", "classifier.1.bias"]:
        f.write(f"grad_norm:{name} {model.get_parameter(name).grad.norm():.12g}\n")
