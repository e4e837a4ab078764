#!/usr/bin/python3
# peer_torch.py - the training steps and operators of tarn-bench, run in PyTorch tuned as well as it goes.
"""Peer benchmark: same flags and same keys as tarn-bench, measured with PyTorch.

    peer_torch.py train --model resnet18 --stem cifar --input 3x32x32 --batch 64 --threads 2 --json
    peer_torch.py ops --json
    peer_torch.py collectives          # all-reduce between two processes over Gloo

Best tuned means, in the order of what it buys: glibc's malloc keeps freed memory and asks for huge
pages (fresh pages cost more than the arithmetic), convolution nets run in channels_last, OpenBLAS
uses the kernels of this CPU's vector unit (left alone, it does not know a CPU newer than itself and
runs at a fifth), gradients are dropped instead of zeroed. Those of them that are environment variables
must be set before the process starts, so the script executes itself once. Matrix products need OpenBLAS
(libopenblas0-openmp): with Debian's reference BLAS they are a hundred times slower, and the script
says so. --plain measures PyTorch as it comes.
"""
import argparse
import json
import os
import resource
import statistics
import sys
import tempfile
import time

KEEP = str(8 << 30)  # bytes: above this malloc may still return memory to the system
TUNED_ENV = {
    "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1",
    "MALLOC_MMAP_THRESHOLD_": KEEP,
    "MALLOC_TRIM_THRESHOLD_": KEEP,
    "MALLOC_TOP_PAD_": str(256 << 20),
}
MARK = "TARN_PEER_TUNED"


def parse_args():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    commands = parser.add_subparsers(dest="command", required=True)
    train = commands.add_parser("train", help="time full training steps")
    train.add_argument("--model", choices=["resnet18", "resnet50", "mlp", "gpt", "gpt2"],
                       default="resnet18")
    train.add_argument("--stem", choices=["cifar", "imagenet"], default="cifar")
    train.add_argument("--input", default="3x32x32", help="CxHxW (ResNets)")
    train.add_argument("--batch", type=int, default=64)
    train.add_argument("--block", type=int, default=256, help="tokens per text (GPTs)")
    train.add_argument("--steps", type=int, default=0, help="timed steps (default: by model)")
    ops = commands.add_parser("ops", help="time single operators")
    ops.add_argument("--filter", default="", help="only operators whose name contains this")
    collectives = commands.add_parser("collectives", help="time torch.distributed's all-reduce over Gloo")
    collectives.add_argument("--json", action="store_true", help="JSON instead of a line of text")
    for command in (train, ops):
        command.add_argument("--device", default="cpu", help="cpu or cuda[:i]")
        command.add_argument("--tf32", action="store_true", help="on a GPU: TF32 products")
        command.add_argument("--dtype", choices=["float32", "bfloat16"], default="float32")
        command.add_argument("--threads", type=int, default=2)
        command.add_argument("--json", action="store_true", help="JSON instead of a line of text")
        command.add_argument("--plain", action="store_true", help="default malloc, no tuning")
    return parser.parse_args()


def openblas_core():
    """OpenBLAS's name for the best kernels this CPU runs."""
    with open("/proc/cpuinfo") as info:
        flags = info.read()
    return "SkylakeX" if "avx512f" in flags else "Haswell" if "avx2" in flags else None


def restart_tuned(args):
    """Executes this script again under the tuned environment; returns in the second process."""
    if os.environ.get(MARK):
        return
    env = {k: v for k, v in os.environ.items() if args.plain or not k.startswith("OPENBLAS_")}
    if not args.plain:
        env.update(TUNED_ENV)
        if openblas_core():
            env["OPENBLAS_CORETYPE"] = openblas_core()
    env.update({"OMP_NUM_THREADS": str(args.threads), MARK: "1"})
    sys.stdout.flush()
    os.execve(sys.executable, [sys.executable] + sys.argv, env)


def import_torch():
    try:
        import torch
        import torchvision
    except ImportError as error:
        sys.exit(f"peer_torch: {sys.executable} cannot import PyTorch ({error}); "
                 "install python3-torch and python3-torchvision and run with that python3")
    with open("/proc/self/maps") as maps:
        if "openblas" not in maps.read():
            print("peer_torch: PyTorch runs on a BLAS other than OpenBLAS; install libopenblas0-openmp "
                  "for matrix products at full speed", file=sys.stderr)
    return torch, torchvision


def make_gpt(torch, vocab, block, layers, heads, size):
    """GPT-2 as tarn's nn/models/gpt.h: pre-norm blocks, tanh GELU, tied embedding, no dropout."""
    nn, functional = torch.nn, torch.nn.functional
    mask = torch.full((block, block), float("-inf")).triu(1)

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.ln_1, self.ln_2 = nn.LayerNorm(size), nn.LayerNorm(size)
            self.c_attn, self.proj = nn.Linear(size, 3 * size), nn.Linear(size, size)
            self.c_fc, self.c_proj = nn.Linear(size, 4 * size), nn.Linear(4 * size, size)

        def attend(self, x):
            b, t, _ = x.shape
            q, k, v = (y.view(b, t, heads, -1).transpose(1, 2).reshape(b * heads, t, -1)
                       for y in self.c_attn(x).split(size, dim=2))
            # One pass fewer than a product, a scale and a masked_fill.
            scores = torch.baddbmm(mask[:t, :t].to(q.dtype), q, k.transpose(1, 2),
                                   alpha=q.shape[-1] ** -0.5)
            y = torch.bmm(scores.softmax(-1), v)
            return self.proj(y.view(b, heads, t, -1).transpose(1, 2).reshape(b, t, size))

        def forward(self, x):
            x = x + self.attend(self.ln_1(x))
            return x + self.c_proj(functional.gelu(self.c_fc(self.ln_2(x)), approximate="tanh"))

    class Gpt(nn.Module):
        def __init__(self):
            super().__init__()
            self.wte, self.wpe = nn.Embedding(vocab, size), nn.Embedding(block, size)
            self.blocks = nn.Sequential(*(Block() for _ in range(layers)))
            self.ln_f = nn.LayerNorm(size)
            for p in self.parameters():
                if p.dim() == 2:
                    nn.init.normal_(p, std=0.02)

        def forward(self, tokens):
            x = self.wte(tokens) + self.wpe.weight[:tokens.shape[1]]
            return functional.linear(self.ln_f(self.blocks(x)), self.wte.weight).view(-1, vocab)

    return Gpt()


def build_net(torch, torchvision, args):
    """Returns the network, one fixed batch (x, y) and the name of the step."""
    torch.manual_seed(0)
    nn = torch.nn
    if args.model.startswith("gpt"):
        vocab = 65 if args.model == "gpt" else 50257
        net = (make_gpt(torch, vocab, args.block, 6, 6, 384) if args.model == "gpt" else
               make_gpt(torch, vocab, 1024, 12, 12, 768))
        x, y = (torch.randint(vocab, (args.batch, args.block)) for _ in range(2))
        return net.train(), x, y.view(-1), f"{args.model}-b{args.batch}x{args.block}"
    if args.model == "mlp":
        net = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 10))
        x, classes, name = torch.randn(args.batch, 32), 10, f"mlp-32-64-10-b{args.batch}"
    else:
        channels, height, width = (int(v) for v in args.input.split("x"))
        classes = 10 if args.stem == "cifar" else 1000
        net = getattr(torchvision.models, args.model)(num_classes=classes)
        if args.stem == "cifar":
            net.conv1 = nn.Conv2d(channels, 64, 3, stride=1, padding=1, bias=False)
            net.maxpool = nn.Identity()
        elif channels != 3:
            sys.exit("peer_torch: --stem imagenet needs an input of 3 channels")
        net = net.to(memory_format=torch.channels_last)
        x = torch.randn(args.batch, channels, height, width)
        x = x.contiguous(memory_format=torch.channels_last)
        name = f"{args.model}-{args.stem}-{args.input}-b{args.batch}"
    return net.train(), x, torch.randint(classes, (args.batch,)), name


def bench_train(torch, torchvision, args):
    net, x, y, name = build_net(torch, torchvision, args)
    gpu = args.device.startswith("cuda")
    net, x, y = net.to(args.device), x.to(args.device), y.to(args.device)
    if gpu:
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = args.tf32
        torch.backends.cudnn.benchmark = True
    momentum = 0.0 if args.model == "mlp" else 0.9
    if args.model.startswith("gpt"):
        optimizer = torch.optim.AdamW(net.parameters(), lr=3e-4, betas=(0.9, 0.95), weight_decay=0.1)
    else:
        optimizer = torch.optim.SGD(net.parameters(), lr=0.01, momentum=momentum, foreach=False)
    half = args.dtype == "bfloat16"

    def step():
        optimizer.zero_grad(set_to_none=True)
        if half:
            with torch.autocast(x.device.type, dtype=torch.bfloat16):
                loss = torch.nn.functional.cross_entropy(net(x), y)
        else:
            loss = torch.nn.functional.cross_entropy(net(x), y)
        loss.backward()
        optimizer.step()
        return loss

    small = args.model == "mlp"
    for _ in range(200 if small else 3):  # oneDNN builds its primitives in the first steps
        step()
    if gpu:
        torch.cuda.synchronize()
    times = []
    for _ in range(args.steps or (5000 if small else 9)):
        start = time.perf_counter()
        step()
        if gpu:
            torch.cuda.synchronize()
        times.append(time.perf_counter() - start)
    median = statistics.median(times)
    return {
        "name": name,
        "median_s": median,
        "best_s": min(times),
        "items_per_s": args.batch / median,
        "rss_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        "threads": args.threads,
        "dtype": args.dtype,
    }


def time_call(call, seconds=0.15, samples=7):
    """Median time of one call in seconds: `samples` loops that last about `seconds` together."""
    call()
    start = time.perf_counter()
    call()
    once = time.perf_counter() - start
    loops = max(1, min(100000, int(seconds / samples / max(once, 1e-7))))
    times = []
    for _ in range(samples):
        start = time.perf_counter()
        for _ in range(loops):
            call()
        times.append((time.perf_counter() - start) / loops)
    return statistics.median(times)


def op_cases(torch, dtype):
    """Yields (name, shape, call, bytes or None, flops or None).

    Bytes are the least an operator must move: each input read once, the output written once.
    """
    functional = torch.nn.functional
    size = torch.empty(0, dtype=dtype).element_size()

    def rand(*shape):
        return torch.randn(*shape).to(dtype)

    for n in (1 << 16, 1 << 20, 1 << 24):
        a, b = rand(n), rand(n)
        yield "add", [n], lambda: a + b, 3 * n * size, None
        yield "mul", [n], lambda: a * b, 3 * n * size, None
        yield "exp", [n], lambda: a.exp(), 2 * n * size, None
        yield "gelu", [n], lambda: functional.gelu(a), 2 * n * size, None
        yield "sum", [n], lambda: a.sum(), n * size, None
    for rows, cols in ((512, 768), (4096, 1024), (256, 50257)):
        a, w, b = rand(rows, cols), rand(cols), rand(cols)
        moved = 2 * rows * cols * size
        yield "softmax", [rows, cols], lambda: a.softmax(-1), moved, None
        yield "layer_norm", [rows, cols], lambda: functional.layer_norm(a, [cols], w, b), moved, None
    for shape in ((64, 64, 32, 32), (64, 512, 4, 4), (8, 64, 112, 112)):
        a = rand(*shape).contiguous(memory_format=torch.channels_last)
        mean, var = torch.zeros(shape[1]), torch.ones(shape[1])
        w, b = torch.ones(shape[1]), torch.zeros(shape[1])
        yield ("batch_norm", list(shape), lambda: functional.batch_norm(a, mean, var, w, b, True),
               2 * a.numel() * size, None)
    for m, k, n in ((64, 64, 64), (256, 256, 256), (1024, 1024, 1024), (2048, 2048, 2048),
                    (32, 784, 128), (256, 768, 3072)):
        a, b = rand(m, k), rand(k, n)
        yield "matmul", [m, k, n], lambda: a @ b, None, 2 * m * k * n
    for n, c, hw, k, kernel, stride in ((64, 64, 32, 64, 3, 1), (64, 128, 16, 128, 3, 1),
                                        (64, 256, 8, 256, 3, 1), (64, 512, 4, 512, 3, 1),
                                        (64, 64, 32, 128, 3, 2), (8, 64, 56, 256, 1, 1),
                                        (8, 3, 224, 64, 7, 2)):
        a = rand(n, c, hw, hw).contiguous(memory_format=torch.channels_last)
        w = rand(k, c, kernel, kernel).contiguous(memory_format=torch.channels_last)
        pad, out = kernel // 2, (hw + 2 * (kernel // 2) - kernel) // stride + 1
        flops = 2 * n * k * out * out * c * kernel * kernel
        shape = [n, c, hw, hw, k, kernel, stride]
        grad = rand(n, k, out, out).contiguous(memory_format=torch.channels_last)
        yield "conv2d", shape, lambda: functional.conv2d(a, w, None, stride, pad), None, flops
        args = ([stride] * 2, [pad] * 2, [1, 1], False, [0, 0], 1, [True, True, False])
        yield ("conv2d_backward", shape,
               lambda: torch.ops.aten.convolution_backward(grad, a, w, None, *args), None, 2 * flops)
    for shape in ((4, 6, 256, 64), (1, 12, 1024, 64), (1, 1, 2048, 64), (1, 1, 4096, 64), (1, 1, 8192, 64)):
        q, k, v, g = (rand(*shape) for _ in range(4))
        past = torch.ones(shape[2], shape[2], dtype=torch.bool).tril()
        flops = 2 * shape[0] * shape[1] * shape[2] ** 2 * shape[3]

        def attend():
            if hasattr(functional, "scaled_dot_product_attention"):
                return functional.scaled_dot_product_attention(q, k, v, is_causal=True)
            scores = q @ k.transpose(-2, -1) / shape[3] ** 0.5
            return scores.masked_fill(~past, float("-inf")).softmax(-1) @ v

        def attend_and_differentiate():
            with torch.enable_grad():
                leaves = [x.requires_grad_() for x in (q, k, v)]
                torch.autograd.grad(attend(), leaves, g)

        yield "attention", list(shape), attend, None, flops
        yield "attention_step", list(shape), attend_and_differentiate, None, 3.5 * flops


def bench_ops(torch, args):
    dtype = getattr(torch, args.dtype)
    rows = []
    with torch.no_grad():
        for name, shape, call, moved, flops in op_cases(torch, dtype):
            if args.filter in name:
                seconds = time_call(call)
                rate = {"gbps": moved / seconds / 1e9} if moved else {"gflops": flops / seconds / 1e9}
                rows.append({"name": name, "shape": shape, "median_us": seconds * 1e6, **rate})
    a, b = torch.randn(16), torch.randn(16)
    recorded = a.clone().requires_grad_()
    for name, call in (("add_16", lambda: a + b), ("add_16_recorded", lambda: recorded + b)):
        if args.filter in name:
            seconds = time_call(call)
            rows.append({"name": name, "shape": [16], "median_us": seconds * 1e6,
                         "gbps": 3 * 16 * 4 / seconds / 1e9})
    return rows


def all_reduce_rank(rank, store, as_json):
    """One of two processes with a thread each; rank 0 prints medians."""
    import torch
    import torch.distributed as dist
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    for size in (8, 1 << 20, 25 << 20):
        x = torch.ones(size // 4)
        times = []
        for _ in range(30):
            dist.barrier()
            start = time.perf_counter()
            dist.all_reduce(x)
            times.append(time.perf_counter() - start)
            x.fill_(1)
        if rank == 0:
            micros = statistics.median(times) * 1e6
            print(json.dumps({"name": "all_reduce", "bytes": size, "ranks": 2, "transport": "gloo", "us": micros})
                  if as_json else f"{'all_reduce':16} {size:12} {micros:9.1f} us", flush=True)


def bench_collectives(args):
    import_torch()
    import torch.multiprocessing
    with tempfile.TemporaryDirectory() as folder:
        torch.multiprocessing.spawn(all_reduce_rank, (os.path.join(folder, "store"), args.json), nprocs=2)


def main():
    args = parse_args()
    if args.command == "collectives":
        return bench_collectives(args)
    restart_tuned(args)
    torch, torchvision = import_torch()
    torch.set_num_threads(args.threads)
    if args.command == "ops":
        for row in bench_ops(torch, args):
            rate = "gbps" if "gbps" in row else "gflops"
            print(json.dumps(row) if args.json else
                  f"{row['name']:16} {str(row['shape']):28} {row['median_us']:12.2f} us "
                  f"{row[rate]:9.1f} {'GB/s' if rate == 'gbps' else 'GFLOP/s'}", flush=True)
        return
    row = bench_train(torch, torchvision, args)
    print(json.dumps(row) if args.json else
          f"{row['name']}: {row['median_s'] * 1e3:.3f} ms/step (best {row['best_s'] * 1e3:.3f}), "
          f"{row['items_per_s']:.1f} items/s, {row['rss_mib']:.0f} MiB, {args.threads} threads")


if __name__ == "__main__":
    main()
