# SPDX-License-Identifier: BSD-3-Clause
"""A residual convolutional net in plain PyTorch, as a user may have one: 3 x 3 convolutions, batch norm, ReLU, a linear classifier."""
from torch import nn
from torch.nn import functional as F


class Block(nn.Module):
    def __init__(self, before, width, stride):
        super().__init__()
        self.conv1 = nn.Conv2d(before, width, 3, stride, 1, bias=False)
        self.norm1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, 1, 1, bias=False)
        self.norm2 = nn.BatchNorm2d(width)
        self.shortcut = nn.Conv2d(before, width, 1, stride, bias=False) if before != width else nn.Identity()

    def forward(self, x):
        out = F.relu(self.norm1(self.conv1(x)))
        return F.relu(self.norm2(self.conv2(out)) + self.shortcut(x))


class ConvNet(nn.Module):
    """forward: images [B, 3, H, W] and labels [B] to a dict of loss and logits [B, num_labels]."""

    def __init__(self, widths, blocks, num_labels):
        super().__init__()
        self.stem = nn.Conv2d(3, widths[0], 3, 1, 1, bias=False)
        self.norm = nn.BatchNorm2d(widths[0])
        self.blocks = nn.ModuleList()
        before = widths[0]
        for width in widths:
            for i in range(blocks):
                self.blocks.append(Block(before, width, 2 if i == 0 and width != before else 1))
                before = width
        self.output = nn.Linear(before, num_labels)

    def forward(self, pixel_values, labels):
        x = F.relu(self.norm(self.stem(pixel_values)))
        for block in self.blocks:
            x = block(x)
        logits = self.output(x.mean((2, 3)))
        return dict(loss=F.cross_entropy(logits, labels), logits=logits)
