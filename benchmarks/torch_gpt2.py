# SPDX-License-Identifier: BSD-3-Clause
"""GPT-2 in plain PyTorch, for benchmarks that train it there: LayerNorm, biases, tanh GELU, learned positions, tied output, no dropout."""
import torch
from torch import nn
from torch.nn import functional as F


def make_gpt2(args):
    """args: dim, n_heads, n_layers, vocab_size, max_positions. Names are those of Hugging Face, without "transformer."."""
    dim, heads = args["dim"], args["n_heads"]

    class Attention(nn.Module):
        def __init__(self):
            super().__init__()
            self.c_attn = nn.Linear(dim, 3 * dim)
            self.c_proj = nn.Linear(dim, dim)

        def forward(self, x):
            q, k, v = (t.unflatten(-1, (heads, -1)).transpose(1, 2) for t in self.c_attn(x).split(dim, -1))
            return self.c_proj(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))

    class Mlp(nn.Module):
        def __init__(self):
            super().__init__()
            self.c_fc = nn.Linear(dim, 4 * dim)
            self.c_proj = nn.Linear(4 * dim, dim)

        def forward(self, x):
            return self.c_proj(F.gelu(self.c_fc(x), approximate="tanh"))

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.ln_1, self.attn, self.ln_2, self.mlp = nn.LayerNorm(dim), Attention(), nn.LayerNorm(dim), Mlp()

        def forward(self, x):
            x = x + self.attn(self.ln_1(x))
            return x + self.mlp(self.ln_2(x))

    class Gpt2(nn.Module):
        def __init__(self):
            super().__init__()
            self.wte = nn.Embedding(args["vocab_size"], dim)
            self.wpe = nn.Embedding(args["max_positions"], dim)
            self.h = nn.ModuleList(Block() for _ in range(args["n_layers"]))
            self.ln_f = nn.LayerNorm(dim)

        def forward(self, ids):
            x = self.wte(ids) + self.wpe(torch.arange(ids.shape[1]))
            for block in self.h:
                x = block(x)
            return F.linear(self.ln_f(x), self.wte.weight)

    return Gpt2()
