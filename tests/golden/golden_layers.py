# golden_layers.py - cases that the operator database lacks: running statistics, odd windows, weights.
"""layers.safetensors: operator cases as in ops_*.safetensors (metadata "cases"), and trajectories of
batch norm modules (metadata "batch_norm"); all in float64."""
import torch
import torch.nn.functional as F

import golden_io

F64 = torch.float64


def leaf(*shape):
    return torch.randn(*shape, dtype=F64).requires_grad_()


def conv_cases(writer):
    conv = lambda x, w, b, **kwargs: F.conv2d(x, w, b, **kwargs)
    table = [  # x, weight, bias?, options
        ((2, 4, 7, 6), (6, 2, 3, 3), True, dict(groups=2)),
        ((2, 4, 7, 6), (8, 1, 3, 3), True, dict(groups=4, padding=1)),  # depthwise, multiplier 2
        ((2, 3, 9, 8), (5, 3, 3, 3), True, dict(dilation=2, padding=2)),
        ((2, 3, 9, 8), (5, 3, 3, 3), False, dict(stride=2, padding=1)),
        ((2, 3, 9, 8), (5, 3, 1, 5), True, dict(padding=[0, 2])),
        ((2, 3, 9, 8), (5, 3, 4, 2), True, dict(stride=[3, 1], padding=[1, 0], dilation=[1, 3])),
        ((1, 4, 8, 8), (6, 2, 3, 2), True, dict(stride=2, padding=1, dilation=[2, 1], groups=2)),
        ((2, 3, 8, 8), (4, 3, 1, 1), True, dict(stride=2)),
        ((2, 16, 9, 10), (16, 16, 3, 3), True, dict(padding=1)),  # the shape Winograd takes
        ((1, 16, 5, 4), (32, 16, 3, 3), False, dict(padding=1)),
        ((1, 3, 12, 12), (4, 3, 7, 7), False, dict(stride=2, padding=3)),
        ((2, 3, 3, 3), (4, 3, 3, 3), True, dict()),  # one output pixel
        ((2, 3, 4, 4), (4, 3, 3, 3), True, dict(padding=2)),
    ]
    for i, (x, w, bias, options) in enumerate(table):
        torch.manual_seed(100 + i)
        args = (leaf(*w), leaf(w[0]) if bias else None)
        writer.add("nn.functional.conv2d", i, "f64", conv, leaf(*x), args, options, cot_seed=i)


def pool_cases(writer):
    max_pool = [
        ((2, 3, 7, 8), dict(kernel_size=3, stride=2, padding=1)),
        ((2, 3, 7, 8), dict(kernel_size=2, stride=2, ceil_mode=True)),
        ((1, 2, 7, 7), dict(kernel_size=3, stride=3, padding=1, ceil_mode=True)),
        ((1, 2, 9, 9), dict(kernel_size=3, stride=2, dilation=2)),
        ((1, 2, 9, 8), dict(kernel_size=[2, 3], stride=[1, 2], padding=[1, 1], dilation=[3, 1])),
        ((1, 1, 5, 5), dict(kernel_size=2, stride=4, ceil_mode=True)),
    ]
    for i, (shape, options) in enumerate(max_pool):
        torch.manual_seed(200 + i)
        writer.add("nn.functional.max_pool2d", i, "f64", F.max_pool2d, leaf(*shape), (), options, i)
    ties = torch.tensor([[1., 1, 2, 2], [1, 1, 2, 2], [3, 3, 0, 0], [3, 3, 0, 0]], dtype=F64)
    low = torch.full((1, 1, 3, 3), -torch.inf, dtype=F64)  # the padding must not beat an infinity
    for i, x in enumerate((ties.reshape(1, 1, 4, 4), low)):
        options = dict(kernel_size=2, stride=2, padding=i)
        writer.add("nn.functional.max_pool2d", 6 + i, "f64", F.max_pool2d, x.requires_grad_(), (),
                   options, i, note="ties go to the first element of the window")
    avg_pool = [
        ((2, 3, 7, 8), dict(kernel_size=3, stride=2, padding=1)),
        ((2, 3, 7, 8), dict(kernel_size=3, stride=2, padding=1, count_include_pad=False)),
        ((2, 3, 7, 8), dict(kernel_size=[2, 3], stride=[2, 2], padding=[1, 0], ceil_mode=True)),
        ((1, 1, 5, 5), dict(kernel_size=2, stride=2, ceil_mode=True)),
        ((1, 2, 6, 6), dict(kernel_size=2, divisor_override=3)),
    ]
    for i, (shape, options) in enumerate(avg_pool):
        torch.manual_seed(300 + i)
        writer.add("nn.functional.avg_pool2d", i, "f64", F.avg_pool2d, leaf(*shape), (), options, i)
    for i, (shape, size) in enumerate([((2, 3, 5, 7), [3, 4]), ((1, 2, 7, 7), [1, 1]),
                                       ((2, 1, 3, 2), [5, 7]), ((1, 3, 10, 9), [7, 2])]):
        torch.manual_seed(400 + i)
        writer.add("nn.functional.adaptive_avg_pool2d", i, "f64", F.adaptive_avg_pool2d,
                   leaf(*shape), (size,), {}, i)


def loss_cases(writer):
    number = 0
    for weighted in (False, True):
        for smoothing in (0.0, 0.1):
            for reduction in ("mean", "sum", "none"):
                for ignored in (False, True):
                    torch.manual_seed(500 + number)
                    target = torch.randint(5, (7,))
                    if ignored:
                        target[[1, 4]] = -100
                    weight = torch.rand(5, dtype=F64) + 0.5 if weighted else None
                    options = dict(weight=weight, label_smoothing=smoothing, reduction=reduction)
                    writer.add("nn.functional.cross_entropy", number, "f64", F.cross_entropy, leaf(7, 5),
                               (target,), options, number)
                    number += 1
    torch.manual_seed(550)
    target = torch.randint(4, (2, 3, 2))
    target[0, 1, 1] = 3
    options = dict(ignore_index=3, label_smoothing=0.2)
    writer.add("nn.functional.cross_entropy", number, "f64", F.cross_entropy, leaf(2, 4, 3, 2), (target,),
               options, number, note="classes in dimension 1 of [2, 4, 3, 2]")
    ignored = torch.full((3,), -100)
    writer.add("nn.functional.cross_entropy", number + 1, "f64", F.cross_entropy, leaf(3, 4), (ignored,),
               dict(reduction="sum"), number, note="every target ignored")
    big = torch.tensor([[10000001., 10000000, 9999999], [1e8, 1e8, 0]], dtype=F64).requires_grad_()
    writer.add("nn.functional.cross_entropy", number + 2, "f64", F.cross_entropy, big,
               (torch.tensor([2, 1]),), dict(reduction="none"), number, note="large logits")


def batch_norm_trajectories(tensors):
    """Three training batches, then one in eval mode, through each BatchNorm module."""
    table = [
        ("BatchNorm1d", (6, 3), {}), ("BatchNorm1d", (2, 3, 5), {}), ("BatchNorm2d", (2, 4, 3, 5), {}),
        ("BatchNorm2d", (3, 2, 4, 4), dict(momentum=None)),
        ("BatchNorm2d", (3, 2, 4, 4), dict(momentum=0.3, eps=1e-2)),
        ("BatchNorm2d", (3, 2, 4, 4), dict(affine=False)),
        ("BatchNorm2d", (3, 2, 4, 4), dict(track_running_stats=False)),
    ]
    entries = []
    for i, (layer, shape, options) in enumerate(table):
        torch.manual_seed(600 + i)
        module = getattr(torch.nn, layer)(shape[1], **options).double()
        key = f"batch_norm.{i}"
        if module.affine:
            with torch.no_grad():
                module.weight.copy_(torch.randn(shape[1]) + 1)
                module.bias.copy_(torch.randn(shape[1]))
            tensors[f"{key}/weight"], tensors[f"{key}/bias"] = (golden_io.array(module.weight),
                                                                golden_io.array(module.bias))
        for step in range(4):
            module.train(step < 3)
            x = (torch.randn(*shape, dtype=F64) * (step + 1) + step).requires_grad_()
            cot = torch.randn(*shape, dtype=F64)
            module.zero_grad(set_to_none=True)
            out = module(x)
            out.backward(cot)
            found = dict(x=x, out=out, cot=cot, grad_x=x.grad)
            if module.affine:
                found.update(grad_weight=module.weight.grad, grad_bias=module.bias.grad)
            if module.track_running_stats:
                found.update(running_mean=module.running_mean, running_var=module.running_var)
            for name, value in found.items():
                tensors[f"{key}/{step}/{name}"] = golden_io.array(value)
        entries.append({"id": key, "layer": layer, "features": shape[1], "options": options,
                        "training": [True, True, True, False]})
    return entries


def write(out_dir):
    writer = golden_io.CaseWriter()
    conv_cases(writer)
    pool_cases(writer)
    loss_cases(writer)
    entries = batch_norm_trajectories(writer.tensors)
    golden_io.save(out_dir / "layers.safetensors", writer.tensors,
                   {"cases": writer.cases, "batch_norm": entries})
