# golden_ops.py - operator cases from PyTorch's own operator database, with values and gradients.
"""ops_<family>.safetensors: sample inputs of 82 operator variants, in float64 and in float32."""
import io
import json
import sys
import types
import unittest
import zipfile
from pathlib import Path

import numpy as np
import torch

import golden_io

FAMILIES = {
    "elementwise": "add mul sub div.no_rounding_mode div.trunc_rounding div.floor_rounding pow exp log"
                   " sqrt rsqrt erf tanh sigmoid clamp where masked_fill nn.functional.relu"
                   " nn.functional.gelu nn.functional.silu nn.functional.silu.complex"
                   " nn.functional.dropout",
    "reduce": "sum mean amax argmax var logsumexp cumsum topk softmax softmax.with_dtype log_softmax"
              " log_softmax.dtype norm norm.nuc norm.fro norm.inf",
    "matmul": "addmm addmm.decomposed bmm mm matmul einsum nn.functional.linear"
              " nn.functional._scaled_dot_product_attention",
    "conv": "nn.functional.conv1d nn.functional.conv2d nn.functional.conv_transpose2d",
    "pool": "nn.functional.max_pool2d nn.functional.avg_pool2d nn.functional.adaptive_avg_pool2d",
    "norm": "nn.functional.batch_norm nn.functional.batch_norm.without_cudnn nn.functional.layer_norm"
            " nn.functional.group_norm",
    "shape": "reshape permute transpose cat split split.list_args gather index_select scatter_add tril"
             " triu nn.functional.embedding nn.functional.pad.constant nn.functional.pad.reflect"
             " nn.functional.pad.replicate nn.functional.pad.circular",
    "interpolate": "nn.functional.interpolate.nearest nn.functional.interpolate.linear"
                   " nn.functional.interpolate.bilinear nn.functional.interpolate.bicubic"
                   " nn.functional.interpolate.trilinear nn.functional.interpolate.area",
    "loss": "nn.functional.cross_entropy nn.functional.nll_loss nn.functional.mse_loss"
            " nn.functional.binary_cross_entropy_with_logits",
}
MANY = 60  # an operator with more samples than this is thinned out to this many
DTYPES = {"f64": torch.float64, "f32": torch.float32}


def operator_database():
    """PyTorch's op_db in its order, restricted to FAMILIES: [(variant name, OpInfo)]."""
    stub = types.ModuleType("expecttest")  # op_db's module imports it, the database does not need it
    stub.TestCase, stub.ACCEPT = type("TestCase", (unittest.TestCase,), {}), False
    sys.modules.setdefault("expecttest", stub)
    from torch.testing._internal.common_methods_invocations import op_db
    wanted = {name for names in FAMILIES.values() for name in names.split()}
    named = [(op.name + ("." + op.variant_test_name if op.variant_test_name else ""), op)
             for op in op_db]
    found = [(name, op) for name, op in named if name in wanted]
    missing = wanted - {name for name, _ in found}
    if missing:
        sys.exit(f"make_golden: not in this PyTorch's operator database: {sorted(missing)}")
    return found


def kept(index, count):
    return index % (count // MANY) == 0 if count > MANY else index % 3 != 2


def record(dtype_name):
    """All cases of one dtype: {variant name: CaseWriter}.

    One generator runs through the whole list (seeded per sample before the operator runs), so the
    numbers depend on the operators' order, which is the database's.
    """
    torch.manual_seed(1234)
    writers = {}
    for name, op in operator_database():
        writer = writers.setdefault(name, golden_io.CaseWriter())
        state = torch.get_rng_state()
        count = len(list(op.sample_inputs("cpu", DTYPES[dtype_name], requires_grad=True)))
        torch.set_rng_state(state)
        for i, sample in enumerate(op.sample_inputs("cpu", DTYPES[dtype_name], requires_grad=True)):
            if count > MANY and not kept(i, count):
                continue
            torch.manual_seed(i)
            if kept(i, count):
                writer.add(name, i, dtype_name, op.op, sample.input, sample.args, sample.kwargs)
    return writers


def write(out_dir, opinfo_dir=None):
    """Writes ops_<family>.safetensors; with opinfo_dir, compares every value with that dump first."""
    recorded = {dtype: record(dtype) for dtype in DTYPES}
    if opinfo_dir:
        for dtype, writers in recorded.items():
            check_against_dump(Path(opinfo_dir + dtype), dtype, writers)
    for family, names in FAMILIES.items():
        tensors, cases = {}, []
        for writers in recorded.values():
            for name in names.split():
                tensors.update(writers[name].tensors)
                cases += writers[name].cases
        golden_io.save(out_dir / f"ops_{family}.safetensors", tensors, {"cases": cases})


def check_against_dump(folder, dtype, writers):
    """Compares with another dump of the same database (manifest.json, cases.zip)."""
    archive = zipfile.ZipFile(folder / "cases.zip")
    cases = {case["id"]: (case, writer) for writer in writers.values() for case in writer.cases}
    manifest = json.loads((folder / "manifest.json").read_text())
    values = 0
    for entry in manifest:
        case, writer = cases.pop(f"{dtype}/{entry['op']}.{entry['case']}")
        stored = np.load(io.BytesIO(archive.read(entry["file"])))
        own = dict((key[len(case["id"]) + 1:], value) for key, value in writer.tensors.items()
                   if key.startswith(case["id"] + "/"))
        grads = [own[key] for key in own if key.startswith("grad.")]
        for key in stored.files:
            if key.startswith("grad"):
                value = grads.pop(0)
            elif key == "out":
                value = own["out_0"]
            elif key.startswith("cot"):
                value = own["cot_" + key[3:]]
            else:
                value = own[key]
            values += 1
            tolerance = 1e-12 if dtype == "f64" else 1e-4  # the order of sums inside BLAS
            if value.dtype != stored[key].dtype or not np.allclose(value, stored[key], rtol=tolerance,
                                                                   atol=tolerance, equal_nan=True):
                print(f"differs from the dump: {case['id']} {key}")
        if grads:
            print(f"the dump lacks gradients: {case['id']}")
    print(f"{folder.name}: {len(manifest)} cases, {values} arrays compared; "
          f"not in the dump: {sorted(cases) or 'none'}")
