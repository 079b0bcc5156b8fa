# SPDX-License-Identifier: BSD-3-Clause
"""A Llama in plain PyTorch, for benchmarks that train it there: RMSNorm, rotary embedding, grouped heads, SwiGLU, no bias, untied output."""
import torch
from torch import nn
from torch.nn import functional as F


def make_llama(args, positions, rope="complex"):
    """args: dim, n_heads, n_kv_heads, hidden_dim, vocab_size, n_layers; rope: "complex", as TorchTitan's code, or "real"."""
    heads, kv_heads, width = args["n_heads"], args["n_kv_heads"], args["dim"] // args["n_heads"]

    def rotate(x, table):  # neighbours as one complex number
        if rope == "complex":
            pairs = torch.view_as_complex(x.float().reshape(*x.shape[:-1], -1, 2))
            turned = torch.view_as_real(pairs * torch.view_as_complex(table)[: x.shape[1]].view(1, x.shape[1], 1, -1))
            return turned.flatten(3).type_as(x)
        a, b = x.float().unflatten(-1, (-1, 2)).unbind(-1)
        cos, sin = (t[: x.shape[1]].view(1, x.shape[1], 1, -1) for t in table.unbind(-1))
        return torch.stack((a * cos - b * sin, a * sin + b * cos), -1).flatten(3).type_as(x)

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.attention_norm = nn.RMSNorm(args["dim"], eps=1e-5)
            self.ffn_norm = nn.RMSNorm(args["dim"], eps=1e-5)
            self.wq = nn.Linear(args["dim"], heads * width, bias=False)
            self.wk = nn.Linear(args["dim"], kv_heads * width, bias=False)
            self.wv = nn.Linear(args["dim"], kv_heads * width, bias=False)
            self.wo = nn.Linear(heads * width, args["dim"], bias=False)
            self.w1 = nn.Linear(args["dim"], args["hidden_dim"], bias=False)
            self.w2 = nn.Linear(args["hidden_dim"], args["dim"], bias=False)
            self.w3 = nn.Linear(args["dim"], args["hidden_dim"], bias=False)

        def forward(self, x, table):
            h = self.attention_norm(x)
            q, k, v = (product(h).unflatten(-1, (-1, width)) for product in (self.wq, self.wk, self.wv))  # heads of this rank
            q, k = rotate(q, table), rotate(k, table)
            k, v = (t.repeat_interleave(heads // kv_heads, dim=2) for t in (k, v))
            out = F.scaled_dot_product_attention(*(t.transpose(1, 2) for t in (q, k, v)), is_causal=True)
            x = x + self.wo(out.transpose(1, 2).flatten(2))
            h = self.ffn_norm(x)
            return x + self.w2(F.silu(self.w1(h)) * self.w3(h))

    class Llama(nn.Module):
        def __init__(self):
            super().__init__()
            self.tok_embeddings = nn.Embedding(args["vocab_size"], args["dim"])
            self.layers = nn.ModuleList(Block() for _ in range(args["n_layers"]))
            self.norm = nn.RMSNorm(args["dim"], eps=1e-5)
            self.output = nn.Linear(args["dim"], args["vocab_size"], bias=False)
            angles = torch.outer(torch.arange(positions).float(), 500000.0 ** -(torch.arange(0, width, 2).float() / width))
            self.register_buffer("table", torch.stack((angles.cos(), angles.sin()), -1), persistent=False)

        def forward(self, ids):
            x = self.tok_embeddings(ids)
            for layer in self.layers:
                x = layer(x, self.table)
            return self.output(self.norm(x))

    return Llama()
