"""Which ops are compared on which shapes. An op is a function of (inputs by name, options); the C++ twin of the table
OPS is tests/support/op_cases.hpp."""

import torch
import torch.nn.functional as F

OPS = {
    "conv2d": lambda i, o: activated(
        F.conv2d(i["x"], i["weight"], i.get("bias"), o["stride"], o["padding"], o["dilation"], o["groups"]), i, o
    ),
    "linear": lambda i, o: activated(F.linear(i["x"], i["weight"], i.get("bias")), i, o),
    "max_pool2d": lambda i, o: F.max_pool2d(
        i["x"], o["kernel"], o["stride"], o["padding"], o["dilation"], o["ceil_mode"]
    ),
    "avg_pool2d": lambda i, o: F.avg_pool2d(
        i["x"], o["kernel"], o["stride"], o["padding"], o["ceil_mode"], o["count_include_pad"]
    ),
    "adaptive_avg_pool2d": lambda i, o: F.adaptive_avg_pool2d(i["x"], o["output"]),
    "global_avg_pool2d": lambda i, o: F.adaptive_avg_pool2d(i["x"], 1),
    "relu": lambda i, o: F.relu(i["x"]),
    "relu_": lambda i, o: F.relu_(i["x"].clone()),
    "relu6": lambda i, o: F.relu6(i["x"]),
    "relu6_": lambda i, o: F.relu6(i["x"].clone(), inplace=True),
    "add": lambda i, o: i["a"] + i["b"],
    "add_": lambda i, o: i["a"].clone().add_(i["b"]),
    "mul": lambda i, o: i["x"] * o["factor"],
    "sum": lambda i, o: i["x"].sum(),
    "mean": lambda i, o: i["x"].mean(),
    "batch_norm2d": lambda i, o: batch_norm(i, o),
    "flatten": lambda i, o: torch.flatten(i["x"], o["start"]),
    "reshape": lambda i, o: i["x"].reshape(o["shape"]),
    "slice": lambda i, o: i["x"][o["begin"] : o["end"]],
    "clone": lambda i, o: i["x"].clone(),
    "log_softmax": lambda i, o: F.log_softmax(i["x"], -1),
    "softmax": lambda i, o: F.softmax(i["x"], -1),
    "cross_entropy": lambda i, o: F.cross_entropy(
        i["x"], i["targets"], reduction=o["reduction"], label_smoothing=o["label_smoothing"]
    ),
}


def batch_norm(i, o):
    y = F.batch_norm(
        i["x"],
        i.get("running_mean"),
        i.get("running_var"),
        i.get("weight"),
        i.get("bias"),
        o["training"],
        o["momentum"],
        o["eps"],
    )
    return activated(y, i, o)


def activated(y, i, o):
    """What may follow an op in the same call."""
    if "residual" in i:
        y = y + i["residual"]
    return {"relu": F.relu, "relu6": F.relu6}[o["then"]](y) if "then" in o else y


def tensor(name, shape, seed, **how):
    """A differentiable input; `how` may hold scale, shift, coarse (ties)."""
    return {"name": name, "shape": list(shape), "seed": seed, "grad": True, **how}


def case(name, op, inputs, **options):
    """Gradients are only checked by finite differences where the function has them: not where inputs have ties."""
    smooth = not any(spec.get("coarse") for spec in inputs)
    return {"name": f"{op}: {name}", "op": op, "options": options, "smooth": smooth, "inputs": inputs}


def conv(name, x, filters, kernel, bias=True, stride=(1, 1), padding=(0, 0), dilation=(1, 1), groups=1, residual=None,
         then=None, **how):
    """`residual` is the result's shape; `how` is about the weight."""
    inputs = [tensor("x", x, 11), tensor("weight", (filters, x[1] // groups, *kernel), 12, **how)]
    if bias:
        inputs.append(tensor("bias", (filters,), 13))
    if residual:
        inputs.append(tensor("residual", residual, 14))
    options = {"stride": list(stride), "padding": list(padding), "dilation": list(dilation), "groups": groups}
    return case(name, "conv2d", inputs, **options, **({"then": then} if then else {}))


def conv_cases():
    return [
        conv("3x3, pad 1, batch 5", (5, 3, 7, 6), 4, (3, 3), padding=(1, 1)),
        conv("3x3, no padding, no bias", (2, 3, 5, 9), 5, (3, 3), bias=False),
        conv("3x3, stride 2, pad 1, odd size", (1, 5, 9, 7), 6, (3, 3), stride=(2, 2), padding=(1, 1)),
        conv("3x3, stride 2, last row and column unused", (2, 3, 8, 6), 4, (3, 3), stride=(2, 2)),
        conv("1x1", (5, 7, 3, 5), 9, (1, 1)),
        conv("1x1, stride 2, no bias", (2, 6, 7, 8), 5, (1, 1), bias=False, stride=(2, 2)),
        conv("1x1, stride 3, pad 1", (1, 3, 5, 4), 2, (1, 1), stride=(3, 3), padding=(1, 1)),
        conv("stride larger than the kernel (case 10)", (64, 3, 32, 32), 16, (1, 1), stride=(2, 2)),
        conv("2x2, stride 3", (2, 3, 8, 7), 4, (2, 2), stride=(3, 3)),
        conv("5x5, pad 2, one channel", (3, 1, 11, 13), 6, (5, 5), padding=(2, 2)),
        conv("5x5, no padding", (2, 6, 14, 14), 16, (5, 5)),
        conv("7x7, stride 2, pad 3", (2, 3, 15, 17), 8, (7, 7), bias=False, stride=(2, 2), padding=(3, 3)),
        conv("3x5, strides 2 and 1, pads 0 and 2", (2, 4, 9, 8), 3, (3, 5), stride=(2, 1), padding=(0, 2)),
        conv("1x7, pad 0 and 3", (1, 5, 4, 9), 5, (1, 7), padding=(0, 3)),
        conv("4x2, strides 1 and 3, pads 2 and 1", (2, 3, 6, 7), 5, (4, 2), stride=(1, 3), padding=(2, 1)),
        conv("dilation 2", (2, 3, 9, 8), 4, (3, 3), padding=(2, 2), dilation=(2, 2)),
        conv("dilations 3 and 1, stride 2", (1, 4, 11, 7), 6, (3, 3), stride=(2, 2), padding=(3, 1), dilation=(3, 1)),
        conv("2 groups", (2, 6, 7, 5), 8, (3, 3), padding=(1, 1), groups=2),
        conv("3 groups, 1x1, stride 2", (2, 9, 6, 5), 6, (1, 1), bias=False, stride=(2, 2), groups=3),
        conv("4 groups, dilation 2", (1, 8, 8, 9), 12, (3, 3), padding=(2, 2), dilation=(2, 2), groups=4),
        conv("depthwise", (3, 5, 7, 9), 5, (3, 3), padding=(1, 1), groups=5),
        conv("depthwise, stride 2, no bias", (2, 19, 9, 8), 19, (3, 3), False, (2, 2), (1, 1), groups=19),
        conv("depthwise, 5x5, dilation 2", (1, 6, 11, 10), 6, (5, 5), padding=(4, 4), dilation=(2, 2), groups=6),
        conv("depthwise, multiplier 2", (2, 5, 6, 7), 10, (3, 3), padding=(1, 1), groups=5),
        conv("one input and one output channel", (2, 1, 5, 6), 1, (3, 3), padding=(1, 1)),
        conv("as large as the input", (3, 4, 5, 4), 7, (5, 4)),
        conv("padding beyond the kernel", (1, 2, 3, 3), 3, (2, 2), padding=(3, 3)),
        conv("209 channels (case 1)", (1, 209, 2, 2), 209, (3, 3), stride=(2, 2), padding=(1, 1)),
        conv("many channels", (2, 67, 9, 10), 130, (3, 3), padding=(1, 1)),
        conv("a large image", (1, 3, 61, 67), 11, (3, 3), padding=(1, 1)),
        conv("batch 37", (37, 2, 6, 6), 3, (3, 3), padding=(1, 1)),
        conv("relu", (3, 4, 7, 6), 5, (3, 3), padding=(1, 1), then="relu"),
        conv("relu, no bias, stride 2", (2, 3, 9, 8), 6, (3, 3), bias=False, stride=(2, 2), then="relu"),
        conv("relu, depthwise", (2, 5, 6, 7), 5, (3, 3), padding=(1, 1), groups=5, then="relu"),
        conv("relu6, some above", (2, 4, 6, 5), 7, (3, 3), then="relu6", scale=5.0),
        conv("residual", (2, 3, 5, 6), 4, (1, 1), residual=(2, 4, 5, 6)),
        conv("residual, relu", (2, 3, 5, 6), 4, (3, 3), padding=(1, 1), residual=(2, 4, 5, 6), then="relu"),
    ]


def linear_cases():
    def linear(name, x, outputs, bias=True, residual=False, then=None, **how):
        inputs = [tensor("x", x, 21), tensor("weight", (outputs, x[-1]), 22, **how)]
        if bias:
            inputs.append(tensor("bias", (outputs,), 23))
        if residual:
            inputs.append(tensor("residual", (*x[:-1], outputs), 24))
        return case(name, "linear", inputs, **({"then": then} if then else {}))

    return [
        linear("7 to 3, batch 5", (5, 7), 3),
        linear("one row", (1, 13), 6),
        linear("no bias", (4, 9), 10, bias=False),
        linear("one output", (6, 5), 1),
        linear("one input", (6, 1), 4),
        linear("rank 3", (2, 3, 5), 4),
        linear("rank 1", (5,), 4),
        linear("wide", (33, 400), 120),
        linear("relu", (9, 12), 7, then="relu"),
        linear("relu, no bias", (6, 11), 5, bias=False, then="relu"),
        linear("relu, rank 3", (2, 4, 7), 5, then="relu"),
        linear("relu6, some above", (8, 16), 9, then="relu6", scale=6.0),
        linear("residual, relu, rank 3", (3, 2, 6), 5, residual=True, then="relu"),
    ]


def pool_cases():
    def pool(op, name, x, kernel, coarse=False, **options):
        how = {"coarse": True} if coarse else {}
        options = {"kernel": [kernel, kernel] if isinstance(kernel, int) else list(kernel), **options}
        options.setdefault("stride", options["kernel"])
        options.setdefault("padding", [0, 0])
        options.setdefault("ceil_mode", False)
        if op == "max_pool2d":
            options.setdefault("dilation", [1, 1])
        else:
            options.setdefault("count_include_pad", True)
        return case(name, op, [tensor("x", x, 31, **how)], **options)

    def both(name, x, kernel, **options):
        return [pool(op, name, x, kernel, **options) for op in ("max_pool2d", "avg_pool2d")]

    return [
        *both("2x2", (3, 5, 8, 6), 2),
        *both("2x2, odd size", (2, 3, 7, 5), 2),
        *both("2x2, odd size, ceil", (2, 3, 7, 5), 2, ceil_mode=True),
        *both("3x3, stride 2, pad 1", (2, 5, 9, 8), 3, stride=[2, 2], padding=[1, 1]),
        *both("3x3, stride 2, ceil", (1, 4, 8, 9), 3, stride=[2, 2], ceil_mode=True),
        *both("3x3, stride 2, pad 1, ceil", (2, 4, 6, 8), 3, stride=[2, 2], padding=[1, 1], ceil_mode=True),
        *both("ceil, a window in the padding alone is dropped", (1, 2, 5, 4), 2, padding=[1, 1], ceil_mode=True),
        *both("overlapping, 3x3, stride 1", (2, 3, 6, 5), 3, stride=[1, 1]),
        *both("stride larger than the kernel", (2, 3, 9, 11), 2, stride=[4, 3]),
        *both("3x2, strides 2 and 1, pads 1 and 0", (2, 7, 8, 7), (3, 2), stride=[2, 1], padding=[1, 0]),
        *both("whole input", (5, 6, 4, 3), (4, 3)),
        *both("20 channels", (2, 20, 6, 6), 2),
        *both("one channel, 28x28", (2, 1, 28, 28), 2),
        pool("max_pool2d", "dilation 2", (2, 3, 9, 8), 3, stride=[1, 1], dilation=[2, 2]),
        pool("max_pool2d", "dilations 2 and 3, pad 1, stride 2", (1, 5, 10, 11), 3, stride=[2, 2], padding=[1, 1],
             dilation=[2, 3], ceil_mode=True),
        pool("max_pool2d", "ties go to the first", (2, 3, 8, 8), 2, coarse=True),
        pool("max_pool2d", "ties, overlapping", (2, 9, 7, 7), 3, coarse=True, stride=[2, 2], padding=[1, 1]),
        pool("max_pool2d", "more than 256 places in a window", (1, 2, 20, 35), (17, 17), stride=[3, 5]),
        pool("avg_pool2d", "padding not counted", (2, 3, 7, 6), 3, stride=[2, 2], padding=[1, 1],
             count_include_pad=False),
        pool("avg_pool2d", "padding not counted, ceil", (2, 3, 8, 6), 3, stride=[2, 2], padding=[1, 1],
             ceil_mode=True, count_include_pad=False),
    ]


def adaptive_cases():
    def adaptive(name, x, output):
        return case(name, "adaptive_avg_pool2d", [tensor("x", x, 41)], output=list(output))

    return [
        adaptive("7x7 to 7x7", (1, 3, 7, 7), (7, 7)),
        adaptive("8x6 to 4x3", (2, 5, 8, 6), (4, 3)),
        adaptive("7x10 to 3x4, windows overlap", (2, 3, 7, 10), (3, 4)),
        adaptive("3x2 to 5x7, larger than the input", (1, 4, 3, 2), (5, 7)),
        adaptive("5x9 to 1x2", (3, 2, 5, 9), (1, 2)),
        case("5x7", "global_avg_pool2d", [tensor("x", (3, 6, 5, 7), 42)]),
        case("1x1", "global_avg_pool2d", [tensor("x", (2, 3, 1, 1), 42)]),
    ]


def elementwise_cases():
    four, odd = (2, 3, 5, 7), (3, 11)
    return [
        case("4-D", "relu", [tensor("x", four, 51)]),
        case("zeros and negatives", "relu", [tensor("x", odd, 51, coarse=True)]),
        case("4-D", "relu_", [tensor("x", four, 51)]),
        case("rank 2", "relu_", [tensor("x", odd, 51)]),
        case("4-D", "relu6", [tensor("x", four, 51, scale=5.0, shift=3.0)]),
        case("values at 0 and at 6", "relu6", [tensor("x", odd, 51, coarse=True, scale=12.0)]),
        case("4-D", "relu6_", [tensor("x", four, 51, scale=5.0, shift=3.0)]),
        case("4-D", "add", [tensor("a", four, 52), tensor("b", four, 53)]),
        case("rank 1", "add", [tensor("a", (17,), 52), tensor("b", (17,), 53)]),
        case("4-D", "add_", [tensor("a", four, 52), tensor("b", four, 53)]),
        case("rank 2", "add_", [tensor("a", odd, 52), tensor("b", odd, 53)]),
        case("by -1.5", "mul", [tensor("x", four, 54)], factor=-1.5),
        case("by 0", "mul", [tensor("x", odd, 54)], factor=0.0),
        case("4-D", "sum", [tensor("x", four, 55)]),
        case("scalar", "sum", [tensor("x", (), 55)]),
        case("many elements", "sum", [tensor("x", (37, 1031), 55, shift=0.25)]),
        case("4-D", "mean", [tensor("x", four, 56)]),
        case("many elements", "mean", [tensor("x", (5, 3, 61, 53), 56, shift=0.25)]),
    ]


def batch_norm_cases():
    def norm(name, x, training=True, affine=True, running=True, momentum=0.1, eps=1e-5, residual=False, then=None,
             weight=None, **how):
        channels = (x[1],)
        inputs = [tensor("x", x, 61, **how)]
        if affine:
            inputs += [tensor("weight", channels, 62, **(weight or {"shift": 0.5})), tensor("bias", channels, 63)]
        if running:
            for name_, seed, shift in (("running_mean", 64, 0.0), ("running_var", 65, 1.25)):
                spec = {"name": name_, "shape": list(channels), "seed": seed, "shift": shift, "changes": True}
                inputs.append(spec)
        if residual:
            inputs.append(tensor("residual", x, 66))
        options = {"then": then} if then else {}
        return case(name, "batch_norm2d", inputs, training=training, momentum=momentum, eps=eps, **options)

    return [
        norm("training", (4, 3, 5, 6)),
        norm("training, batch 1", (1, 5, 3, 4)),
        norm("training, 1x1 images", (5, 7, 1, 1)),
        norm("training, one channel", (2, 1, 4, 3)),
        norm("training, no affine", (3, 4, 5, 2), affine=False),
        norm("training, no running statistics", (3, 4, 5, 2), running=False),
        norm("training, neither", (2, 6, 3, 3), affine=False, running=False),
        norm("training, momentum 0.3, eps 0.1", (2, 3, 7, 5), momentum=0.3, eps=0.1),
        norm("training, far from zero", (8, 3, 9, 7), shift=10.0),
        norm("training, 33 channels, large", (3, 33, 17, 19), scale=3.0),
        norm("evaluation", (4, 3, 5, 6), training=False),
        norm("evaluation, batch 1, 1x1", (1, 9, 1, 1), training=False),
        norm("evaluation, no affine", (2, 5, 3, 3), training=False, affine=False),
        norm("training, relu", (3, 5, 4, 3), then="relu"),
        norm("training, relu, no affine", (2, 7, 3, 3), then="relu", affine=False),
        norm("training, residual", (3, 4, 5, 2), residual=True),
        norm("training, residual, relu", (4, 3, 5, 6), residual=True, then="relu"),
        # weights from 3 to 9 put some values above 6
        norm("training, relu6, some above", (3, 8, 5, 5), then="relu6", weight={"scale": 3.0, "shift": 6.0}),
        norm("training, residual, relu6", (2, 6, 3, 4), residual=True, then="relu6", weight={"scale": 3.0, "shift": 6.0}),
        norm("evaluation, relu", (2, 5, 3, 3), training=False, then="relu"),
        norm("evaluation, residual", (1, 9, 1, 1), training=False, residual=True),
        norm("evaluation, residual, relu6", (4, 3, 5, 6), training=False, residual=True, then="relu6"),
    ]


def shape_cases():
    x = [tensor("x", (2, 3, 4, 5), 71)]
    return [
        case("from 1", "flatten", x, start=1),
        case("from 0", "flatten", x, start=0),
        case("from 2", "flatten", x, start=2),
        case("one channel", "flatten", [tensor("x", (3, 1, 4, 5), 71)], start=1),
        case("1x1 images", "flatten", [tensor("x", (3, 7, 1, 1), 71)], start=1),
        case("4-D to 4-D", "reshape", x, shape=[6, 2, 2, 5]),
        case("rank 2 to 4-D", "reshape", [tensor("x", (6, 20), 72)], shape=[2, 3, 4, 5]),
        case("one size open", "reshape", x, shape=[4, -1]),
        case("to rank 5", "reshape", x, shape=[2, 3, 2, 2, 5]),
        case("4-D", "slice", [tensor("x", (5, 3, 2, 4), 73)], begin=1, end=4),
        case("rank 2, the last rows", "slice", [tensor("x", (7, 3), 73)], begin=5, end=7),
        case("4-D", "clone", x),
    ]


def classification_cases():
    def softmaxes(name, x, **how):
        return [case(name, op, [tensor("x", x, 81, **how)]) for op in ("log_softmax", "softmax")]

    def entropy(name, rows, classes, smoothing=0.0, reduction="mean", **how):
        targets = {"name": "targets", "shape": [rows], "seed": 82, "classes": classes}
        inputs = [tensor("x", (rows, classes), 83, **how), targets]
        return case(name, "cross_entropy", inputs, label_smoothing=smoothing, reduction=reduction)

    return [
        *softmaxes("5x7", (5, 7)),
        *softmaxes("one class", (3, 1)),
        *softmaxes("logits near 200", (4, 10), scale=3.0, shift=200.0),
        # not for softmax: the gradient of a saturated one is lost to rounding in float32, whoever computes it
        case("logits up to 200", "log_softmax", [tensor("x", (4, 10), 81, scale=200.0)]),
        *softmaxes("1000 classes", (3, 1000), scale=5.0),
        entropy("mean", 5, 10, scale=3.0),
        entropy("sum", 5, 10, reduction="sum", scale=3.0),
        entropy("mean, smoothing 0.1", 7, 11, 0.1, scale=3.0),
        entropy("sum, smoothing 0.3", 4, 3, 0.3, "sum"),
        entropy("one row", 1, 10),
        entropy("one class", 3, 1),
        entropy("logits up to 200", 6, 9, scale=200.0),
        entropy("1000 classes, smoothing 0.1", 3, 1000, 0.1, scale=5.0),
    ]


def all_cases():
    return [
        *conv_cases(),
        *linear_cases(),
        *pool_cases(),
        *adaptive_cases(),
        *elementwise_cases(),
        *batch_norm_cases(),
        *shape_cases(),
        *classification_cases(),
    ]
