# golden_transformer.py - Transformers in PyTorch: GPT-2's and BERT's training steps, nn.Transformer.
"""transformer.safetensors, in three parts, all computed in float64 and stored in float32 (losses: float64):

"gpt.": "start.<name>", "tokens" [steps, B, T], "targets" (-1: ignored), "grad.<name>" of step 0,
        "end.<name>" after AdamW; "losses" [steps]; "bf16.grad.<name>": of step 0 in float32 with the forward
        pass under autocast to bfloat16; "exact.losses" and "bf16.losses" [starts, steps]: runs in float64 and
        under autocast from weights that are 1 + start / 64 times those of the start
"bert.": the same with "mask" [steps, B, T] (0: padding) and "goal" [steps, B, T, C]: the loss is the mean square
        of (hidden - goal) over real tokens plus that of the pooled vectors; "vectors": sentence vectors at the start
"torch.": nn.Transformer (2 + 2 layers, batch_first): "start.<name>", "src", "tgt", "pad" (1: padding of src),
        "cot", "out", "grad.<name>"; the target mask is causal
Metadata "run": the options of the three.
"""
import copy
import math

import torch
import torch.nn.functional as F
from torch import nn

import golden_io

STEPS = 10
STARTS = 16  # one run in bfloat16 may be closer to the exact one than another, by luck
ADAMW = dict(lr=1e-2, betas=(0.9, 0.95), weight_decay=0.1)
GPT = dict(vocab=17, block=12, layers=2, heads=2, size=16)
BERT = dict(vocab=19, positions=10, types=2, layers=2, heads=2, size=16, hidden=24)
TORCH = dict(size=12, heads=3, hidden=20, layers=2)


def attend(q, k, v, allowed):
    scores = q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])
    return torch.softmax(scores.masked_fill(~allowed, float("-inf")), -1) @ v


def heads(x, count):
    return x.view(x.shape[0], x.shape[1], count, -1).transpose(1, 2)


def merge(x):
    return x.transpose(1, 2).reshape(x.shape[0], x.shape[2], -1)


class GptBlock(nn.Module):
    def __init__(self, size, count):
        super().__init__()
        self.count = count
        self.ln_1, self.ln_2 = nn.LayerNorm(size), nn.LayerNorm(size)
        self.attn = nn.ModuleDict(dict(c_attn=nn.Linear(size, 3 * size), c_proj=nn.Linear(size, size)))
        self.mlp = nn.ModuleDict(dict(c_fc=nn.Linear(size, 4 * size), c_proj=nn.Linear(4 * size, size)))

    def forward(self, x):
        q, k, v = (heads(t, self.count) for t in self.attn["c_attn"](self.ln_1(x)).chunk(3, -1))
        past = torch.tril(torch.ones(x.shape[1], x.shape[1], dtype=torch.bool))
        x = x + self.attn["c_proj"](merge(attend(q, k, v, past)))
        inner = self.mlp["c_fc"](self.ln_2(x))
        gelu = 0.5 * inner * (1 + torch.tanh(math.sqrt(2 / math.pi) * (inner + 0.044715 * inner ** 3)))
        return x + self.mlp["c_proj"](gelu)


class Gpt(nn.Module):
    def __init__(self, vocab, block, layers, heads, size):
        super().__init__()
        self.transformer = nn.ModuleDict(dict(
            wte=nn.Embedding(vocab, size), wpe=nn.Embedding(block, size),
            h=nn.ModuleList(GptBlock(size, heads) for _ in range(layers)), ln_f=nn.LayerNorm(size)))

    def forward(self, tokens):
        t = self.transformer
        x = t["wte"](tokens) + t["wpe"].weight[: tokens.shape[1]]
        for block in t["h"]:
            x = block(x)
        return t["ln_f"](x) @ t["wte"].weight.T


def linears(**sizes):
    return nn.ModuleDict({name: nn.Linear(*size) for name, size in sizes.items()})


class BertLayer(nn.Module):
    def __init__(self, o):
        super().__init__()
        size = o["size"]
        norm = lambda: nn.LayerNorm(size, eps=1e-12)
        self.count = o["heads"]
        self.attention = nn.ModuleDict({
            "self": linears(query=(size, size), key=(size, size), value=(size, size)),
            "output": nn.ModuleDict(dict(dense=nn.Linear(size, size), LayerNorm=norm()))})
        self.intermediate = linears(dense=(size, o["hidden"]))
        self.output = nn.ModuleDict(dict(dense=nn.Linear(o["hidden"], size), LayerNorm=norm()))

    def forward(self, x, mask):
        a = self.attention
        q, k, v = (heads(a["self"][n](x), self.count) for n in ("query", "key", "value"))
        y = a["output"]["dense"](merge(attend(q, k, v, mask[:, None, None, :])))
        x = a["output"]["LayerNorm"](y + x)
        y = self.output["dense"](F.gelu(self.intermediate["dense"](x)))
        return self.output["LayerNorm"](y + x)


class Bert(nn.Module):
    def __init__(self, o):
        super().__init__()
        size = o["size"]
        self.embeddings = nn.ModuleDict(dict(
            word_embeddings=nn.Embedding(o["vocab"], size),
            position_embeddings=nn.Embedding(o["positions"], size),
            token_type_embeddings=nn.Embedding(o["types"], size), LayerNorm=nn.LayerNorm(size, eps=1e-12)))
        self.encoder = nn.ModuleDict(dict(layer=nn.ModuleList(BertLayer(o) for _ in range(o["layers"]))))
        self.pooler = linears(dense=(size, size))

    def forward(self, tokens, mask):
        e = self.embeddings
        x = e["word_embeddings"](tokens) + e["token_type_embeddings"].weight[0]
        x = e["LayerNorm"](x + e["position_embeddings"].weight[: tokens.shape[1]])
        for layer in self.encoder["layer"]:
            x = layer(x, mask)
        return x


def randomise(model, scale):
    """Numbers that float32 holds, so that both precisions start alike."""
    for name, p in model.named_parameters():
        base = 1.0 if "norm" in name.lower() or "ln_" in name else 0.0
        shift = base if name.endswith("weight") else 0.0
        p.data = (shift + scale * torch.randn(p.shape)).float().double()


def train_steps(prefix, model, loss_of, tensors):
    """The losses of STEPS of AdamW; loss_of(step, model). With a prefix, the first gradients go to tensors."""
    optimizer = torch.optim.AdamW(model.parameters(), **ADAMW)
    losses = []
    for step in range(STEPS):
        optimizer.zero_grad()
        loss = loss_of(step, model)
        loss.backward()
        losses.append(loss.item())
        if step == 0 and prefix:
            for name, p in model.named_parameters():
                tensors[f"{prefix}grad.{name}"] = p.grad.float().clone()  # float32 would be the same memory
        optimizer.step()
    return torch.tensor(losses, dtype=torch.float64)


def train(prefix, model, loss_of, tensors):
    """The steps in float64, and from several weights in both precisions."""
    for name, p in model.named_parameters():
        tensors[f"{prefix}start.{name}"] = p.detach().float()
    start = copy.deepcopy(model).float()
    tensors[prefix + "losses"] = train_steps(prefix, model, loss_of, tensors)
    for name, p in model.named_parameters():
        tensors[f"{prefix}end.{name}"] = p.detach().float()

    def half_loss(step, model):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return loss_of(step, model)
    exact, half = [], []
    for k in range(STARTS):
        scaled = copy.deepcopy(start)
        for p in scaled.parameters():
            p.data *= 1 + k / 64
        exact.append(train_steps("", copy.deepcopy(scaled).double(), loss_of, tensors))
        half.append(train_steps("" if k else prefix + "bf16.", scaled, half_loss, tensors))
    tensors[prefix + "exact.losses"], tensors[prefix + "bf16.losses"] = torch.stack(exact), torch.stack(half)


def gpt(tensors):
    torch.manual_seed(1)
    model = Gpt(**GPT).double()
    randomise(model, 0.3)
    tokens = torch.randint(GPT["vocab"], (STEPS, 3, GPT["block"]))
    targets = torch.randint(GPT["vocab"], (STEPS, 3, GPT["block"]))
    targets[:, 1, :4] = -1
    tensors["gpt.tokens"], tensors["gpt.targets"] = tokens, targets

    def loss(step, model):
        logits = model(tokens[step])
        return F.cross_entropy(logits.flatten(0, 1), targets[step].flatten(), ignore_index=-1)
    train("gpt.", model, loss, tensors)


def bert(tensors):
    torch.manual_seed(2)
    model = Bert(BERT).double()
    randomise(model, 0.3)
    shape = (STEPS, 3, 7)
    tokens = torch.randint(BERT["vocab"], shape)
    mask = torch.ones(shape, dtype=torch.int64)
    mask[:, 1, 4:] = 0
    mask[:, 2, 1:] = 0
    goal = torch.randn(*shape, BERT["size"]).float().double()
    tensors["bert.tokens"], tensors["bert.mask"], tensors["bert.goal"] = tokens, mask, goal.float()
    with torch.no_grad():
        hidden, m = model(tokens[0], mask[0].bool()), mask[0][..., None]
        mean = (hidden * m).sum(1) / m.sum(1)
        tensors["bert.vectors"] = F.normalize(mean, dim=1).float()

    def loss(step, model):
        hidden = model(tokens[step], mask[step].bool())
        squares = ((hidden - goal[step]) ** 2 * mask[step][..., None]).sum() / mask[step].sum()
        pooled = torch.tanh(model.pooler["dense"](hidden[:, 0]))
        return squares / BERT["size"] + (pooled ** 2).mean()
    train("bert.", model, loss, tensors)


def transformer(tensors):
    torch.manual_seed(3)
    model = nn.Transformer(TORCH["size"], TORCH["heads"], TORCH["layers"], TORCH["layers"], TORCH["hidden"],
                           dropout=0.0, batch_first=True).double()
    randomise(model, 0.3)
    src, tgt = torch.randn(2, 5, 12).float().double(), torch.randn(2, 4, 12).float().double()
    pad = torch.zeros(2, 5, dtype=torch.bool)
    pad[1, 3:] = True
    out = model(src, tgt, tgt_mask=torch.triu(torch.ones(4, 4, dtype=torch.bool), 1),
                src_key_padding_mask=pad, memory_key_padding_mask=pad)
    cot = torch.randn(out.shape).float().double()
    out.backward(cot)
    for name, p in model.named_parameters():
        tensors["torch.start." + name], tensors["torch.grad." + name] = p.detach().float(), p.grad.float()
    tensors.update({"torch.src": src.float(), "torch.tgt": tgt.float(), "torch.pad": pad.long(),
                    "torch.cot": cot.float(), "torch.out": out.detach().float()})


def write(folder):
    tensors = {}
    gpt(tensors)
    bert(tensors)
    transformer(tensors)
    run = dict(steps=STEPS, adamw=ADAMW, gpt=GPT, bert=BERT, torch=TORCH)
    golden_io.save(folder / "transformer.safetensors", tensors, {"run": run})
