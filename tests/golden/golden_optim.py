# golden_optim.py - optimizer trajectories, gradient clipping and learning-rate tables.
"""optim.safetensors. Metadata "optimizers": cases of five steps with the given gradients
"<dtype>/grad.<tensor>.<step>" from the parameters "<dtype>/start.<tensor>" to
"<dtype>/<case>/<tensor>.<step>", with the optimizer's state after the last step. Metadata "clip":
total norm and clipped gradients of step 0. Metadata "schedules": value per step, step 0 first."""
import torch
from torch.optim import lr_scheduler as lrs

import golden_io

SHAPES = [(7,), (2, 3), (4, 1, 2)]
STEPS = 5
OPTIMIZERS = [
    ("SGD", dict(lr=0.1)), ("SGD", dict(lr=0.1, weight_decay=0.05)), ("SGD", dict(lr=0.1, momentum=0.9)),
    ("SGD", dict(lr=0.1, momentum=0.9, dampening=0.5)),
    ("SGD", dict(lr=0.1, momentum=0.9, weight_decay=0.05)),
    ("SGD", dict(lr=0.1, momentum=0.9, weight_decay=0.05, nesterov=True)),
    ("Adam", dict(lr=0.01)), ("Adam", dict(lr=0.01, betas=[0.8, 0.9], eps=1e-4)),
    ("Adam", dict(lr=0.01, weight_decay=0.1)), ("Adam", dict(lr=0.01, amsgrad=True)),
    ("AdamW", dict(lr=0.01)), ("AdamW", dict(lr=0.01, weight_decay=0.3, betas=[0.8, 0.9])),
    ("AdamW", dict(lr=0.01, weight_decay=0.3, amsgrad=True)),
]
# Tensors 0 and 1 with the options of the case, tensor 2 with these.
GROUPED = [("SGD", dict(lr=0.1, momentum=0.9, weight_decay=0.05), dict(lr=0.02, weight_decay=0.0)),
           ("AdamW", dict(lr=0.01, weight_decay=0.1), dict(lr=0.1, weight_decay=0.0))]
CLIPS = [(1.0, 2.0), (100.0, 2.0), (0.5, 1.0), (0.5, torch.inf), (0.7, 3.0)]  # max norm, norm type


def run_optimizer(tensors, dtype_name, case_id, kind, options, second_group=None):
    starts = [torch.from_numpy(tensors[f"{dtype_name}/start.{i}"]).clone().requires_grad_()
              for i in range(len(SHAPES))]
    groups = [{"params": starts}]
    if second_group:
        groups = [{"params": starts[:2]}, {"params": starts[2:], **second_group}]
    optimizer = getattr(torch.optim, kind)(groups, foreach=False, **options)
    for step in range(STEPS):
        for i, p in enumerate(starts):
            p.grad = torch.from_numpy(tensors[f"{dtype_name}/grad.{i}.{step}"]).clone()
        optimizer.step()
        for i, p in enumerate(starts):
            tensors[f"{dtype_name}/{case_id}/{i}.{step}"] = golden_io.array(p)
    for i, p in enumerate(starts):
        for name, value in optimizer.state[p].items():
            if isinstance(value, torch.Tensor) and value.shape == p.shape:
                tensors[f"{dtype_name}/{case_id}/{name}.{i}"] = golden_io.array(value)


def optimizer_cases(tensors):
    entries = []
    for dtype_name, dtype in (("f64", torch.float64), ("f32", torch.float32)):
        torch.manual_seed(7)
        for i, shape in enumerate(SHAPES):
            tensors[f"{dtype_name}/start.{i}"] = golden_io.array(torch.randn(*shape, dtype=dtype))
            for step in range(STEPS):
                grad = torch.randn(*shape, dtype=dtype) * 2 ** (1 - step)  # shrinks: amsgrad's case
                tensors[f"{dtype_name}/grad.{i}.{step}"] = golden_io.array(grad)
        cases = [(kind, options, None) for kind, options in OPTIMIZERS] + GROUPED
        for number, (kind, options, second) in enumerate(cases):
            case_id = f"{kind}.{number}"
            run_optimizer(tensors, dtype_name, case_id, kind, options, second)
            entries.append({"id": case_id, "dtype": dtype_name, "kind": kind, "options": options,
                            "second_group": second, "steps": STEPS, "tensors": len(SHAPES)})
    return entries


def clip_cases(tensors):
    entries = []
    for number, (max_norm, norm_type) in enumerate(CLIPS):
        params = [torch.zeros(shape, dtype=torch.float64).requires_grad_() for shape in SHAPES]
        for i, p in enumerate(params):
            p.grad = torch.from_numpy(tensors[f"f64/grad.{i}.0"]).clone()
        total = torch.nn.utils.clip_grad_norm_(params, max_norm, norm_type)
        for i, p in enumerate(params):
            tensors[f"clip.{number}/{i}"] = golden_io.array(p.grad)
        kind = {"f": "inf"} if norm_type == torch.inf else norm_type
        entries.append({"id": f"clip.{number}", "max_norm": max_norm, "norm_type": kind,
                        "total": total.item()})
    return entries


def sequential(optimizer):
    parts = [lrs.LinearLR(optimizer, start_factor=0.01, total_iters=3),
             lrs.CosineAnnealingLR(optimizer, T_max=5)]
    return lrs.SequentialLR(optimizer, parts, milestones=[3])


SCHEDULES = [  # kind, base lr, options, steps
    ("StepLR", 0.5, dict(step_size=4, gamma=0.3), 16),
    ("MultiStepLR", 0.5, dict(milestones=[2, 5, 5, 9], gamma=0.1), 14),
    ("ExponentialLR", 0.5, dict(gamma=0.9), 12),
    ("ConstantLR", 0.5, dict(factor=0.25, total_iters=4), 8),
    ("LinearLR", 0.5, dict(), 9), ("LinearLR", 1.0, dict(start_factor=0.5, end_factor=1.0, total_iters=4), 8),
    ("LinearLR", 0.3, dict(start_factor=1.0, end_factor=0.1, total_iters=6), 10),
    ("PolynomialLR", 0.5, dict(total_iters=6, power=2.0), 10),
    ("CosineAnnealingLR", 1.0, dict(T_max=5), 13), ("CosineAnnealingLR", 0.4, dict(T_max=8, eta_min=0.05), 20),
    ("CosineAnnealingWarmRestarts", 1.0, dict(T_0=3, T_mult=2), 22),
    ("CosineAnnealingWarmRestarts", 0.4, dict(T_0=4, T_mult=1, eta_min=0.01), 13),
    ("OneCycleLR", 1.0, dict(max_lr=1.0, total_steps=10), 10),
    ("OneCycleLR", 0.1, dict(max_lr=0.4, total_steps=37, pct_start=0.25, div_factor=10.0,
                             final_div_factor=100.0, anneal_strategy="linear"), 37),
    ("OneCycleLR", 0.1, dict(max_lr=0.4, total_steps=20, three_phase=True), 20),
    ("OneCycleLR", 0.1, dict(max_lr=0.4, total_steps=12, cycle_momentum=False), 12),
]


def schedule_tables(tensors):
    entries = []
    table = SCHEDULES + [("SequentialLR", 1.0, dict(), 14)]
    for number, (kind, base, options, steps) in enumerate(table):
        key = f"schedule.{number}"
        optimizer = torch.optim.SGD([torch.zeros(1).requires_grad_()], lr=base, momentum=0.9)
        schedule = (sequential(optimizer) if kind == "SequentialLR"
                    else getattr(lrs, kind)(optimizer, **options))
        rates, momenta = [], []
        for step in range(steps):
            group = optimizer.param_groups[0]
            rates.append(group["lr"])
            momenta.append(group["momentum"])
            optimizer.step()
            if step + 1 < steps:
                schedule.step()
        tensors[f"{key}/lr"] = torch.tensor(rates, dtype=torch.float64)
        tensors[f"{key}/momentum"] = torch.tensor(momenta, dtype=torch.float64)
        if kind == "SequentialLR":
            options = {"parts": [["LinearLR", {"start_factor": 0.01, "total_iters": 3}],
                                 ["CosineAnnealingLR", {"T_max": 5}]], "milestones": [3]}
        entries.append({"id": key, "kind": kind, "lr": base, "options": options, "steps": steps})
    return entries


def write(out_dir):
    tensors = {}
    metadata = {"optimizers": optimizer_cases(tensors), "clip": clip_cases(tensors),
                "schedules": schedule_tables(tensors)}
    golden_io.save(out_dir / "optim.safetensors", tensors, metadata)
