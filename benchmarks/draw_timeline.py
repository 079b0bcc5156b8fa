#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Draws the first milliseconds of simulated steps as one SVG: a strip per trace of `sfsdp simulate --trace`.

usage: draw_timeline.py MILLISECONDS TITLE=TRACE.json... >timeline.svg
"""
import json
import sys

WIDTH, LEFT, RIGHT, LANE, GAP = 960, 90, 24, 26, 22
COLORS = {"compute": "#4c78a8", "gather": "#f58518", "reduce": "#54a24b", "idle": "#e4e4e4"}


def blocks(trace, end):
    """(lane, label, begin, end, color), in ms: kernels of one module in a row are one block, a collective is one."""
    events = json.load(open(trace))["traceEvents"]
    merged = []
    for e in sorted((e for e in events if e["ph"] == "X"), key=lambda e: (e["tid"], e["ts"])):
        begin, stop = e["ts"] / 1000, (e["ts"] + e["dur"]) / 1000
        if begin >= end or e["name"].startswith("wait"):
            continue
        module = e["args"]["module"]
        label = ".".join(module.split(".")[:2]) if module.startswith("layers") else module.split(".")[0]
        color = "compute" if e["tid"] == 0 else "gather" if "gather" in e["name"] else "reduce"
        last = merged[-1] if merged else None
        if last and e["tid"] == last[0] == 0 and last[1] == label and begin - last[3] < 0.2:
            last[3] = stop
        else:
            merged.append([e["tid"], label, begin, stop, color])
    return [(lane, label, begin, min(stop, end), color) for lane, label, begin, stop, color in merged]


def strip(title, trace, top, end):
    scale = (WIDTH - LEFT - RIGHT) / end
    lines = [f'<text x="0" y="{top + 12}" font-weight="bold">{title}</text>']
    for lane, name in enumerate(("compute", "collectives")):
        y = top + 18 + lane * (LANE + 4)
        lines.append(f'<text x="0" y="{y + 17}">{name}</text>')
        lines.append(f'<rect x="{LEFT}" y="{y}" width="{WIDTH - LEFT - RIGHT}" height="{LANE}" fill="{COLORS["idle"]}"/>')
        for at, label, begin, stop, color in blocks(trace, end):
            if at != lane:
                continue
            x, width = LEFT + begin * scale, max((stop - begin) * scale, 0.6)
            lines.append(f'<rect x="{x:.1f}" y="{y}" width="{width:.1f}" height="{LANE}" fill="{COLORS[color]}" '
                         'stroke="white" stroke-width="0.5"/>')
            if width > 6.2 * len(label):
                lines.append(f'<text x="{x + 4:.1f}" y="{y + 17}" fill="white">{label}</text>')
    return lines


def main():
    end = float(sys.argv[1])
    strips = [argument.rsplit("=", 1) for argument in sys.argv[2:]]
    height = 2 * (LANE + 4) + 18
    body = []
    for i, (title, trace) in enumerate(strips):
        body += strip(title, trace, i * (height + GAP), end)
    total = len(strips) * (height + GAP) + 20
    ticks = range(0, int(end) + 1, 10)
    body += [f'<text x="{LEFT + t * (WIDTH - LEFT - RIGHT) / end:.0f}" y="{total - 8}" text-anchor="middle">{t} ms</text>'
             for t in ticks]
    print(f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {total}" font-family="sans-serif" font-size="12">')
    print(f'<rect width="{WIDTH}" height="{total}" fill="white"/>', *body, "</svg>", sep="\n")


main()
