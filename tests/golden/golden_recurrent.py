# golden_recurrent.py - RNN, LSTM and GRU of PyTorch, and their cells, in float64.
"""recurrent.safetensors. Metadata "cases": a list of {"id", "kind", "options", "cell"}. Tensors of a case, as
"<id>/<name>": "weight.<parameter>", "x", "out", "h" (the state after), "cot.out", "cot.h", "grad.x",
"grad.<parameter>" and, where the case has them, "h0", "c0", "c", "cot.c", "grad.h0", "grad.c0" and "lengths".
"""
import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

import golden_io

F64 = torch.float64
CASES = [  # kind, options of torch's module, [B, T], lengths, state given
    ("RNN", dict(), (3, 5), None, False),
    ("RNN", dict(nonlinearity="relu", num_layers=2, bias=False), (2, 4), None, True),
    ("RNN", dict(bidirectional=True), (3, 5), (5, 1, 3), True),
    ("LSTM", dict(), (3, 5), None, False),
    ("LSTM", dict(num_layers=2, bidirectional=True), (2, 6), None, True),
    ("LSTM", dict(num_layers=2, bidirectional=True), (4, 6), (2, 6, 1, 4), True),
    ("LSTM", dict(bias=False), (1, 1), None, True),
    ("GRU", dict(), (3, 5), None, False),
    ("GRU", dict(num_layers=3), (2, 4), (3, 4), True),
    ("GRU", dict(num_layers=2, bidirectional=True), (4, 6), (2, 5, 1, 4), False),
]
IN, HIDDEN = 4, 3


def leaf(*shape):
    return torch.randn(*shape, dtype=F64).requires_grad_()


def keep(tensors, case, roots, leaves):
    """Results, cotangents and gradients. roots and leaves: {name: tensor}."""
    cots = {name: torch.randn(root.shape, dtype=F64) for name, root in roots.items()}
    grads = torch.autograd.grad(list(roots.values()), list(leaves.values()), list(cots.values()))
    for name, root in roots.items():
        tensors[f"{case}/{name}"], tensors[f"{case}/cot.{name}"] = root, cots[name]
    for (name, value), grad in zip(leaves.items(), grads):
        at = name if name in ("x", "h0", "c0") else f"weight.{name}"
        tensors[f"{case}/{at}"], tensors[f"{case}/grad.{name}"] = value, grad


def write(out):
    tensors, cases = {}, []
    for number, (kind, options, (batch, time), lengths, with_state) in enumerate(CASES):
        torch.manual_seed(700 + number)
        case = str(number)
        net = getattr(nn, kind)(IN, HIDDEN, batch_first=True, dtype=F64, **options)
        leaves = {"x": leaf(batch, time, IN), **dict(net.named_parameters())}
        rows = options.get("num_layers", 1) * (2 if options.get("bidirectional") else 1)
        state = None
        if with_state:
            leaves["h0"] = state = leaf(rows, batch, HIDDEN)
            if kind == "LSTM":
                leaves["c0"] = leaf(rows, batch, HIDDEN)
                state = (leaves["h0"], leaves["c0"])
        x = leaves["x"]
        if lengths:
            tensors[f"{case}/lengths"] = torch.tensor(lengths)
            x = pack_padded_sequence(x, torch.tensor(lengths), batch_first=True, enforce_sorted=False)
        y, last = net(x, state)
        if lengths:
            y, _ = pad_packed_sequence(y, batch_first=True, total_length=time)
        roots = {"out": y, **(dict(zip("hc", last)) if kind == "LSTM" else {"h": last})}
        keep(tensors, case, roots, leaves)
        cases.append({"id": case, "kind": kind, "options": options, "cell": False})
    for kind in ("RNN", "LSTM", "GRU"):
        torch.manual_seed(800 + len(kind) + ord(kind[0]))
        case = f"cell.{kind}"
        cell = getattr(nn, kind + "Cell")(IN, HIDDEN, dtype=F64)
        leaves = {"x": leaf(3, IN), "h0": leaf(3, HIDDEN), **dict(cell.named_parameters())}
        if kind == "LSTM":
            leaves["c0"] = leaf(3, HIDDEN)
            h, c = cell(leaves["x"], (leaves["h0"], leaves["c0"]))
            keep(tensors, case, {"h": h, "c": c}, leaves)
        else:
            keep(tensors, case, {"h": cell(leaves["x"], leaves["h0"])}, leaves)
        cases.append({"id": case, "kind": kind, "options": {}, "cell": True})
    golden_io.save(out / "recurrent.safetensors", tensors, {"cases": cases})
