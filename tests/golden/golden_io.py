# golden_io.py - writes safetensors files and records operator cases; shared by the golden scripts.
"""The files hold tensors plus, as JSON text in their metadata, what each tensor is for.

An operator case is {"id", "op", "dtype", "input", "args", "kwargs", "out", "cot", "grads"}. Its values
are JSON values, in which {"t": name} stands for the tensor "<id>/<name>" of the file, {"dtype": "f64"} for
a dtype and {"f": "inf"} for a number JSON cannot write. "out" and "cot" list the outputs and the
cotangents they are multiplied with; "grads" lists the tensors that have a gradient, stored as
"<id>/grad.<name>"; "changed" those that the operator overwrites, stored as "<id>/after.<name>".
"""
import json
import math
import struct

import numpy as np
import torch

# safetensors' names, in the order in which a file stores its tensors.
DTYPES = [("I64", np.int64), ("F64", np.float64), ("F32", np.float32), ("U8", np.uint8),
          ("BOOL", np.bool_)]
TORCH_NAMES = {torch.float64: "f64", torch.float32: "f32", torch.int64: "i64", torch.bool: "bool"}


def array(value):
    """A tensor or array as a contiguous numpy array of one of DTYPES."""
    if isinstance(value, torch.Tensor):
        value = value.detach().cpu().resolve_conj().numpy()
    return np.array(value, order="C")


def save(path, tensors, metadata):
    """Writes {name: tensor or array} and {key: JSON value} as a canonical safetensors file."""
    arrays = {name: array(value) for name, value in tensors.items()}
    ranks = {np.dtype(dtype): rank for rank, (_, dtype) in enumerate(DTYPES)}
    order = sorted(arrays, key=lambda name: (ranks[arrays[name].dtype], name))
    header = {"__metadata__": {key: dumps(value) for key, value in metadata.items()}}
    offset = 0
    for name in order:
        end = offset + arrays[name].nbytes
        header[name] = {"dtype": DTYPES[ranks[arrays[name].dtype]][0],
                        "shape": list(arrays[name].shape), "data_offsets": [offset, end]}
        offset = end
    text = dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as out:
        out.write(struct.pack("<Q", len(text)) + text)
        for name in order:
            out.write(arrays[name].tobytes())
    print(f"{path}: {len(order)} tensors, {(8 + len(text) + offset) / 1e3:.0f} kB")


def dumps(value):
    return json.dumps(value, separators=(",", ":"), ensure_ascii=True, allow_nan=False)


class CaseWriter:
    """Runs operators, and keeps the tensors and the manifest of the cases."""

    def __init__(self):
        self.tensors, self.cases = {}, []

    def add(self, op, number, dtype, function, value, args=(), kwargs=None, cot_seed=1, note=None):
        """Runs function(value, *args, **kwargs) and its backward pass; returns the case.

        Each output that has a gradient gets a cotangent from randn, drawn from a generator of its own.
        `note` is further text for the manifest.
        """
        case = {"id": f"{dtype}/{op}.{number}", "op": op, "dtype": dtype}
        leaves = {}  # name -> tensor that requires a gradient
        case["input"] = self.encode(case["id"], "in", value, leaves)
        case["args"] = [self.encode(case["id"], f"arg_{i}", a, leaves) for i, a in enumerate(args)]
        case["kwargs"] = {k: self.encode(case["id"], f"kw_{k}", a, leaves)
                          for k, a in (kwargs or {}).items()}
        result = function(value, *args, **(kwargs or {}))
        outs = list(result) if isinstance(result, (tuple, list)) else [result]
        case["out"] = [self.encode(case["id"], f"out_{i}", out, {}) for i, out in enumerate(outs)]
        generator = torch.Generator().manual_seed(cot_seed)
        cots = [torch.randn(out.shape, generator=generator, dtype=out.dtype) if differentiable(out)
                else None for out in outs]
        case["cot"] = [self.encode(case["id"], f"cot_{i}", cot, {}) for i, cot in enumerate(cots)]
        changed = [(f"arg_{i}", a) for i, a in enumerate(args) if isinstance(a, torch.Tensor)
                   and not np.array_equal(array(a), self.tensors[f"{case['id']}/arg_{i}"])]
        case["changed"] = [name for name, _ in changed]
        self.tensors.update({f"{case['id']}/after.{name}": array(a) for name, a in changed})
        case["grads"] = []
        roots = [(out, cot) for out, cot in zip(outs, cots) if cot is not None]
        if roots and leaves:
            grads = torch.autograd.grad([r[0] for r in roots], list(leaves.values()),
                                        [r[1] for r in roots], allow_unused=True)
            for name, grad in zip(leaves, grads):
                if grad is not None:  # absent: no path from the outputs to this tensor
                    case["grads"].append(name)
                    self.tensors[f"{case['id']}/grad.{name}"] = array(grad)
        if note:
            case["note"] = note
        self.cases.append(case)
        return case

    def encode(self, case_id, name, value, leaves):
        """The JSON form of `value`; tensors go to self.tensors, those with a gradient to `leaves`."""
        if isinstance(value, torch.Tensor):
            self.tensors[f"{case_id}/{name}"] = array(value)
            if value.requires_grad:
                leaves[name] = value
            return {"t": name}
        if isinstance(value, (list, tuple)):
            return [self.encode(case_id, f"{name}_{i}", v, leaves) for i, v in enumerate(value)]
        if isinstance(value, torch.dtype):
            return {"dtype": TORCH_NAMES[value]}
        if isinstance(value, float) and not math.isfinite(value):
            return {"f": str(value)}
        if value is None or isinstance(value, (bool, int, float, str)):
            return value
        raise TypeError(f"{case_id}: no JSON form for {name} = {value!r}")


def differentiable(out):
    return out.is_floating_point() and out.requires_grad
