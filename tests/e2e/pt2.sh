#!/usr/bin/env bash
# Models written in C++ are served by Python: checkpoints of llama3 and gpt become archives by `sfsdp export`, and a user's program
# writes its own modules by write_pt2. torch.export.load runs them to the same bits, at sizes that nobody captured.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
export OMP_NUM_THREADS=1
sfsdp=$PWD/build/release/sfsdp
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
fail() { echo "$*"; exit 1; }
data=(--training.dataset tokens --training.dataset_path tests/fixtures/tokens.bin --training.seq_len 16 --training.local_batch_size 2
  --training.mixed_precision_param float32 --metrics.log_freq 1 --lr_scheduler.warmup_steps 0)
llama=(--model.name llama3 --model.flavor debugmodel --model.args.dim 32 --model.args.n_layers 2 --model.args.n_heads 4 --model.args.n_kv_heads 2
  --model.args.vocab_size 256 --model.args.qk_norm true --model.args.qkv_bias true)
gpt=(--model.name gpt --model.flavor 124M --model.args.dim 32 --model.args.n_layers 2 --model.args.n_heads 4 --model.args.vocab_size 256
  --model.args.max_positions 24)
loss() { sed -n 's/.*"loss": \([0-9.]*\),.*/\1/p' "$1/metrics.jsonl" | head -1 | cut -c1-8; }

# Two steps, an archive of the checkpoint, and the next batch's loss from the archive is that from the checkpoint.
for name in llama gpt; do
  declare -n model=$name
  "$sfsdp" train "${model[@]}" "${data[@]}" --training.steps 2 --optimizer.lr 1e-2 --checkpoint.enable --job.dump_folder "$dir/$name" >"$dir/log" 2>&1 ||
    fail "$(cat "$dir/log")"
  "$sfsdp" export "$dir/$name/checkpoint/step-2" "$dir/$name.pt2" >"$dir/log" 2>&1 || fail "export $name: $(cat "$dir/log")"
  "$sfsdp" train "${model[@]}" "${data[@]}" --training.steps 1 --optimizer.lr 0 --checkpoint.enable --checkpoint.initial_load_path \
    "$dir/$name/checkpoint/step-2" --job.dump_folder "$dir/$name-here" >"$dir/log" 2>&1 || fail "$(cat "$dir/log")"
  "$sfsdp" train --model.name exported --model.path "$dir/$name.pt2" --model.inputs tokens=tokens --model.logits output "${data[@]}" \
    --training.steps 1 --optimizer.lr 0 --job.dump_folder "$dir/$name-archive" >"$dir/log" 2>&1 || fail "$(cat "$dir/log")"
  [[ -n $(loss "$dir/$name-here") && $(loss "$dir/$name-here") == "$(loss "$dir/$name-archive")" ]] ||
    fail "$name: loss $(loss "$dir/$name-here") here, $(loss "$dir/$name-archive") of the archive"
done
"$sfsdp" export "$dir/llama/checkpoint/step-2" "$dir/half.pt2" --dtype bfloat16 >"$dir/log" 2>&1 || fail "$(cat "$dir/log")"
"$sfsdp" inspect --model.path "$dir/gpt.pt2" >"$dir/log" 2>&1 || fail "inspect: $(cat "$dir/log")"
for line in '  tokens  i64\[s0 of 1 to any, s1 of 1 to 24\]' '  output  f32\[s0 of 1 to any, s1 of 1 to 24, 256\]' 'All ops can be trained'; do
  grep -qx -- "$line" "$dir/log" || fail "inspect lacks \"$line\": $(cat "$dir/log")"
done
refused() { # words; arguments of export
  local words=$1
  shift
  "$sfsdp" export "$@" >"$dir/log" 2>&1 && fail "exported: $*"
  grep -qF -- "$words" "$dir/log" || fail "expected \"$words\": $(cat "$dir/log")"
}
refused "is there already" "$dir/llama/checkpoint/step-2" "$dir/llama.pt2"
refused "expected float32, bfloat16 or float16" "$dir/llama/checkpoint/step-2" "$dir/x.pt2" --dtype int8
refused "expected --archive" "$dir/llama/checkpoint/step-2" "$dir/x.safetensors" --format safetensors
[[ ! -e $dir/x.pt2 && ! -e $dir/x.pt2.tmp ]] || fail "a refused export left a file"

for candidate in .venv/bin/python3 python3; do
  "$candidate" -c 'import torch' 2>/dev/null && python=$(realpath -s "$candidate") && break
done
[[ -n ${python:-} ]] || { echo "SKIP: torch is not here; ./setup.sh --tests installs it into .venv"; exit 77; }

# A user's program: three models, their archives, and what they compute at each size.
mkdir "$dir/own"
cat >"$dir/own/CMakeLists.txt" <<'CMAKE'
cmake_minimum_required(VERSION 3.22)
project(own CXX)
find_package(sfsdp REQUIRED)
add_executable(own main.cpp)
target_link_libraries(own PRIVATE sfsdp::sfsdp)
CMAKE
cat >"$dir/own/main.cpp" <<'CPP'
#include <sfsdp/models/registry.h>
#include <sfsdp/sfsdp.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/dropout.h>
#include <torch/nn/modules/embedding.h>

#include <fstream>

struct NetImpl : torch::nn::Module {
  torch::nn::Embedding table = register_module("table", torch::nn::Embedding(64, 8));
  torch::nn::BatchNorm1d norm = register_module("norm", torch::nn::BatchNorm1d(8));
  torch::nn::Dropout drop = register_module("drop", torch::nn::Dropout(0.5));
  at::Tensor out = register_parameter("out", table->weight);
  at::Tensor scale = torch::tensor({0.5F, 2.0F});
  at::Tensor forward(const at::Tensor& tokens) {
    const at::Tensor h = norm(table(tokens).transpose(1, 2)).transpose(1, 2);
    return at::linear(drop(h) * scale.repeat({4}), out);
  }
};
TORCH_MODULE(Net);

void write(const std::string& path, const std::shared_ptr<torch::nn::Module>& module, int64_t vocab,
           const std::function<at::Tensor(const at::Tensor&)>& forward) {
  sfsdp::Pt2Options options = {.sizes = {{"batch", "length"}}, .inputs = {"tokens"}};
  options.ranges["length"] = {1, 24};
  sfsdp::write_pt2(module, [&](auto&, const sfsdp::Batch& batch) { return forward(batch[0]); }, {at::zeros({2, 3}, at::kLong)},
                   path + ".pt2", options);
  module->eval();
  at::NoGradGuard no_grad;
  std::ofstream out(path + ".bin", std::ios::binary);
  for (const auto& [rows, length] : std::vector<std::pair<int64_t, int64_t>>{{1, 1}, {3, 24}, {8, 2}, {5, 9}}) {
    const at::Tensor i = at::arange(rows * length, at::kLong);
    const at::Tensor logits = forward((i * i * 7 + i * 3 + 5).remainder(vocab).reshape({rows, length})).contiguous();
    out.write(static_cast<const char*>(logits.const_data_ptr()), static_cast<std::streamsize>(logits.nbytes()));
  }
}

int main(int, char** argv) {
  const std::string folder = argv[1];
  const auto model = [&](const std::string& path, const sfsdp::models::ModelSpec& spec) {
    const auto made = sfsdp::models::make_language_model(spec);
    write(folder + "/" + path, made.module, 64, [&](const at::Tensor& tokens) { return made.forward(tokens, {}); });
  };
  const int64_t two = 2, four = 4, wide = 32, vocab = 64;
  model("llama", {"llama3", "", {{"dim", wide}, {"n_layers", two}, {"n_heads", four}, {"n_kv_heads", two}, {"vocab_size", vocab}}});
  model("gpt", {"gpt", "", {{"dim", wide}, {"n_layers", two}, {"n_heads", four}, {"vocab_size", vocab}}});
  Net net;
  for (int step = 0; step < 3; ++step) net->forward(at::randint(vocab, {4, 6}, at::kLong));  // its statistics
  write(folder + "/net", net.ptr(), vocab, [&](const at::Tensor& tokens) { return net->forward(tokens); });
}
CPP
cmake --install build/release --prefix "$dir/prefix" >"$dir/log" || fail "$(cat "$dir/log")"
cmake -G Ninja -DCMAKE_BUILD_TYPE=Release -S "$dir/own" -B "$dir/build" -DCMAKE_PREFIX_PATH="$dir/prefix" >"$dir/log" 2>&1 || fail "$(cat "$dir/log")"
cmake --build "$dir/build" >"$dir/log" || fail "$(cat "$dir/log")"
"$dir/build/own" "$dir/own" >"$dir/log" 2>&1 || fail "own program: $(cat "$dir/log")"

"$python" -W ignore - "$dir" <<'PY' || fail "Python does not run what was written"
import struct, sys, zipfile
import numpy as np, torch

folder = sys.argv[1]
sizes = ((1, 1), (3, 24), (8, 2), (5, 9))


def tokens(rows, length, vocab):
    i = torch.arange(rows * length)
    return ((i * i * 7 + i * 3 + 5) % vocab).reshape(rows, length)


# To the bits of C++, and only at sizes of the ranges.
for name in ("llama", "gpt", "net"):
    program = torch.export.load(f"{folder}/own/{name}.pt2")
    module = program.module()
    expected = np.fromfile(f"{folder}/own/{name}.bin", dtype=np.float32)
    with torch.no_grad():
        got = np.concatenate([module(tokens(*size, 64)).numpy().reshape(-1) for size in sizes])
    assert np.array_equal(got, expected), (name, np.abs(got - expected).max())
    try:
        module(tokens(2, 25, 64))
    except Exception as error:
        assert "24" in str(error), error
    else:
        raise AssertionError(name + " ran a sequence of 25")
assert program.state_dict["table.weight"].data_ptr() == program.state_dict["out"].data_ptr(), "no longer tied"
with zipfile.ZipFile(f"{folder}/own/net.pt2") as archive, open(archive.filename, "rb") as file:
    for entry in archive.infolist():  # a reader may map the file
        file.seek(entry.header_offset + 26)
        name, extra = struct.unpack("<HH", file.read(4))
        assert (entry.header_offset + 30 + name + extra) % 64 == 0, entry.filename + " on no boundary"
args, kwargs = program.example_inputs
assert args[0].dtype == torch.int64 and not kwargs
assert any("norm" in (node.meta.get("nn_module_stack") or {"": ("", "")})[key][0] for node in program.graph.nodes
           for key in (node.meta.get("nn_module_stack") or {})), "no module paths"

# What the command wrote has a state dict that a strict load takes, gradients for who trains on, and 16 bits where asked for.
llama = torch.export.load(folder + "/llama.pt2")
module = llama.module()
state = {name: torch.zeros_like(value) for name, value in llama.state_dict.items()}
logits = module(tokens(2, 6, 256))
logits.sum().backward()
assert all(p.grad is not None for p in module.parameters())
module.load_state_dict(state, strict=True)
assert module(tokens(2, 6, 256)).abs().max() == 0
half = torch.export.load(folder + "/half.pt2")
assert all(p.dtype == torch.bfloat16 for p in half.state_dict.values())
with torch.no_grad():
    logits, low = logits.detach(), half.module()(tokens(2, 6, 256))
assert low.dtype == torch.bfloat16 and (low.float() - logits).abs().max() < 0.05 * logits.abs().max()
PY
