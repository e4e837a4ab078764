# golden_resnet.py - SGD steps of residual networks: losses, gradients, parameters, statistics.
"""resnet8_a.safetensors holds everything in full: the start ("start.<name>"), the batches ("x.<step>",
"y.<step>"), all gradients of step 0 ("grad.<name>") and the end ("end.<name>"), whose values come from a
float64 run and are stored in float32; "losses" [steps] and "grad_norms" [steps, parameters] in float64,
"losses_f32" from a float32 run.

The other networks are too large for that. Their start is a formula (see `formula`), and of every gradient and
parameter the file keeps `SAMPLES` entries at even distances in float64 ("grad.<name>" of step 0, "end.<name>").
Metadata "run": options, parameter names in order, and how far float32 is from float64.
"""
import numpy as np
import torch
import torch.nn.functional as F
import torchvision
from torch import nn

import golden_io

SAMPLES = 16
SGD = dict(momentum=0.9, weight_decay=1e-4)


def formula(count, stream):
    """`count` numbers in [-1, 1), multiples of 2^-23: splitmix64 of (stream << 32) + i, top 24 bits."""
    with np.errstate(over="ignore"):
        z = (np.arange(count, dtype=np.uint64) + np.uint64(stream << 32)) * np.uint64(0x9E3779B97F4A7C15)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        z = z ^ (z >> np.uint64(31))
    return (z >> np.uint64(40)).astype(np.float64) / 2.0 ** 23 - 1.0


class CifarBlock(nn.Module):
    """Two 3x3 convolutions; where the shape changes, shortcut "a" subsamples and pads with zeros, "b"
    projects with a 1x1 convolution and a batch norm (He et al. 2015, section 4.2)."""

    def __init__(self, fan_in, width, stride, option):
        super().__init__()
        self.conv1 = nn.Conv2d(fan_in, width, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.pad = (width - fan_in) // 2
        self.shortcut = nn.Sequential()
        if stride != 1 and option == "b":
            self.shortcut = nn.Sequential(nn.Conv2d(fan_in, width, 1, stride, bias=False),
                                          nn.BatchNorm2d(width))
        self.subsample = stride != 1 and option == "a"

    def forward(self, x):
        out = self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x)))))
        if self.subsample:
            return F.relu(out + F.pad(x[:, :, ::2, ::2], (0, 0, 0, 0, self.pad, self.pad)))
        return F.relu(out + self.shortcut(x))


class CifarResNet(nn.Module):
    """Widths 16, 32, 64; depth 6n+2."""

    def __init__(self, n, option):
        super().__init__()
        self.conv1 = nn.Conv2d(3, 16, 3, 1, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(16)
        fan_in = 16
        for stage, width in enumerate((16, 32, 64)):
            blocks = []
            for i in range(n):
                blocks.append(CifarBlock(fan_in, width, 2 if stage and not i else 1, option))
                fan_in = width
            setattr(self, f"layer{stage + 1}", nn.Sequential(*blocks))
        self.linear = nn.Linear(64, 10)

    def forward(self, x):
        x = F.relu(self.bn1(self.conv1(x)))
        x = self.layer3(self.layer2(self.layer1(x)))
        return self.linear(x.mean((2, 3)))


def torchvision_net(name, stem):
    net = getattr(torchvision.models, name)(num_classes=10)
    if stem == "cifar":
        net.conv1 = nn.Conv2d(3, 64, 3, 1, 1, bias=False)
        net.maxpool = nn.Identity()
    return net


def initialise(net):
    """Weights by formula: He-like for matrices and filters, 1 + noise and noise for batch norms."""
    with torch.no_grad():
        for stream, (name, p) in enumerate(net.named_parameters()):
            values = torch.from_numpy(formula(p.numel(), stream).reshape(p.shape))
            if p.dim() > 1:
                fan_in = p[0].numel()
                values = values * np.float64(np.float32((6.0 / fan_in) ** 0.5))
            elif name.endswith("weight"):
                values = 1 + values / 4
            else:
                values = values / 4
            p.copy_(values.float())


def batches(steps, shape):
    """Noise around one fixed pattern per class, so that there is something to learn."""
    patterns = formula(10 * int(np.prod(shape[1:])), 1000).reshape(10, *shape[1:])
    for step in range(steps):
        y = np.arange(shape[0], dtype=np.int64) * 7 % 10 + step
        noise = formula(int(np.prod(shape)), 2000 + step).reshape(shape)
        yield (patterns[y % 10] + noise).astype(np.float32), y % 10


def train(net, data, lr, dtype):
    """SGD over the batches: losses, gradients of step 0, gradient norms [steps, parameters]."""
    net = net.to(dtype).train()
    optimizer = torch.optim.SGD(net.parameters(), lr=lr, foreach=False, **SGD)
    losses, norms, first = [], [], None
    for x, y in data:
        optimizer.zero_grad(set_to_none=True)
        loss = F.cross_entropy(net(torch.from_numpy(x).to(dtype)), torch.from_numpy(y))
        loss.backward()
        losses.append(loss.item())
        norms.append([p.grad.norm().item() for p in net.parameters()])
        if first is None:
            first = {name: p.grad.clone().double() for name, p in net.named_parameters()}
        optimizer.step()
    return losses, norms, first


def sampled(value):
    """Entries 0, d, 2d, ... with d = ceil(n / SAMPLES)."""
    flat = value.detach().double().reshape(-1)
    return flat[::-(-flat.numel() // SAMPLES)]


def write_run(path, make, steps, shape, lr, full=False):
    data = list(batches(steps, shape))
    net, net32 = make(), make()
    initialise(net)
    initialise(net32)
    start = {name: value.clone() for name, value in net.state_dict().items()}
    losses, norms, grads = train(net, data, lr, torch.float64)
    losses32, _, grads32 = train(net32, data, lr, torch.float32)
    keep = (lambda value: value.float()) if full else (sampled)
    tensors = {"losses": np.array(losses), "losses_f32": np.array(losses32), "grad_norms": np.array(norms)}
    for name, grad in grads.items():
        tensors[f"grad.{name}"] = keep(grad)
    for name, value in net.state_dict().items():
        if value.is_floating_point():
            tensors[f"end.{name}"] = keep(value)
    if full:
        tensors.update({f"start.{name}": value for name, value in start.items()
                        if value.is_floating_point()})
        for step, (x, y) in enumerate(data):
            tensors[f"x.{step}"], tensors[f"y.{step}"] = x, y
    drift = max(abs(a - b) for a, b in zip(losses, losses32))
    worst = max(((grads[n] - grads32[n]).norm() / grads[n].norm()).item() for n in grads)
    print(f"{path.name}: losses {losses[0]:.4f} -> {losses[-1]:.4f}; float32 is off by {drift:.1e} in the "
          f"losses and {worst:.1e} in the first gradients")
    golden_io.save(path, tensors, {"run": {
        "steps": steps, "shape": list(shape), "samples": 0 if full else SAMPLES, "sgd": {"lr": lr, **SGD},
        "parameters": [name for name, _ in net.named_parameters()],
        "f32_loss_error": drift, "f32_grad_error": worst}})


def write(out_dir):
    torch.set_num_threads(1)
    runs = [("resnet8_b", lambda: CifarResNet(1, "b"), 10, (8, 3, 16, 16), 0.1),
            ("resnet18_cifar", lambda: torchvision_net("resnet18", "cifar"), 3, (4, 3, 12, 12), 0.002),
            ("resnet50_imagenet", lambda: torchvision_net("resnet50", "imagenet"), 1, (2, 3, 48, 48), 1e-4)]
    write_run(out_dir / "resnet8_a.safetensors", lambda: CifarResNet(1, "a"), 10, (8, 3, 16, 16), 0.1, True)
    for name, make, steps, shape, lr in runs:
        write_run(out_dir / f"{name}.safetensors", make, steps, shape, lr)
