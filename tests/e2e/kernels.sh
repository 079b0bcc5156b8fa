#!/usr/bin/env bash
# Which ops share a kernel in the plans of Llama 3 8B and GPT-2 on H100: the clusters that pay, one by one.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
for config in llama3_8b gpt2_124m; do
  build/release/sfsdp plan --config "configs/$config.toml" --world 8 --machine dgx_h100 --out "$dir/$config" >"$dir/log" ||
    { cat "$dir/log"; exit 1; }
done
build/release/sfsdp plan --config configs/llama3_8b.toml --world 8 --machine dgx_h100 --out "$dir/apart" \
  --debug.disable_pass "join_products, group_weights" >"$dir/log"
python3 - "$dir" <<'PY'
import re, sys
def kernels(name, block):
    """Ops of each kernel of a block, in order: ["fwd joined_linear rope rope"]; an update's is of two sections."""
    found, section = {}, ""
    for line in open(f"{sys.argv[1]}/{name}"):
        line = line.strip()
        if re.fullmatch(r"(init|fwd|loss|bwd|clip|opt):", line): section = line[:-1]
        kernel = re.search(r" kernel=(\d+)", line)
        if kernel and re.search(rf" at {re.escape(block)}\b", line):
            op = re.search(r"= (\S+)", line)[1].removeprefix("aten.")
            found.setdefault(int(kernel[1]), [section]).append(op)
    return [" ".join(ops) for ops in found.values()]
def expect(name, block, wanted):
    got = kernels(name, block)
    for kernel, count in wanted.items():
        assert got.count(kernel) == count, f"{name} {block}: expected {count} of '{kernel}', got\n" + "\n".join(got)
# QKV with both rotary embeddings; gate and up with SwiGLU; both residual sums after products; the gradient of a residual
# in that of the norm; casts into the bucket where gradients are made.
layer = {"fwd joined_linear rope rope": 1, "fwd joined_linear silu mul.Tensor": 1, "fwd linear add.Tensor": 2, "fwd rms_norm": 2,
         "bwd linear_dx silu mul.Tensor mul.Tensor silu_backward": 1, "bwd joined_linear_dx": 2,
         "bwd joined_linear_dw cast cast cast": 1, "bwd joined_linear_dw cast cast": 1,
         "bwd rms_norm_backward add.Tensor cast": 1}
expect("llama3_8b", "layers.3", layer)
expect("llama3_8b", "output", {"fwd cross_entropy": 1, "bwd cross_entropy_backward": 1})
# Biases are added after products; what has a bias is not joined.
expect("gpt2_124m", "h.3", {"fwd linear add.Tensor add.Tensor": 2, "fwd linear add.Tensor gelu": 1,
                            "bwd linear_dx gelu_backward": 1, "bwd layer_norm_backward add.Tensor cast cast": 1})
def counts(name):
    """Kernels of several ops, and results that lie inside or over others."""
    kernels, inside, section = {}, 0, ""
    for line in open(f"{sys.argv[1]}/{name}"):
        if title := re.fullmatch(r"([a-z]+):", line.strip()): section = title[1]
        if kernel := re.search(r" kernel=(\d+)", line): kernels[kernel[1]] = kernels.get(kernel[1], 0) + 1
        inside += section == "inside" and " inside " in line
    return sum(ops > 1 for ops in kernels.values()), inside
# Fewer are a loss that has to have a reason; more are written here and in docs/benchmarks.md, "Kernels in the graph".
assert counts("llama3_8b") == (392, 453), counts("llama3_8b")
expect("apart", "layers.3", {"fwd linear rope": 2, "fwd linear silu mul.Tensor": 1, "bwd linear_dx add.Tensor": 2})
PY
# What is joined is not slower.
seconds() {
  build/release/sfsdp simulate --config configs/llama3_8b.toml --world 8 --machine dgx_h100 --json "$@" |
    python3 -c 'import json, sys; print(json.load(sys.stdin)["step_seconds"])'
}
python3 -c "import sys; a, b = map(float, sys.argv[1:]); assert 0.97 * b < a < b, (a, b)" "$(seconds)" \
  "$(seconds --debug.disable_pass "join_products, group_weights")"
