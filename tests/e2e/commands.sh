#!/usr/bin/env bash
# Every command of the binary explains itself on standard output, takes a config by either name, and ends with status 2
# and one "error:" for what it is given and cannot take: a flag, a key, a value, a file.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
sfsdp=build/release/sfsdp
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
fail() { echo "$*"; exit 1; }
run() { # what it writes goes to $dir/out and $dir/err, its status to $status
  status=0
  "$sfsdp" "$@" >"$dir/out" 2>"$dir/err" || status=$?
}
refuses() { # status, part of the message, arguments
  local expected=$1 message=$2
  shift 2
  run "$@"
  [[ $status == "$expected" && ! -s $dir/out ]] || fail "$*: status $status, expected $expected: $(cat "$dir/out" "$dir/err")"
  [[ $(head -1 "$dir/err") == "error: "* || $(head -1 "$dir/err") == "error on rank 0: "* ]] || fail "$*: $(cat "$dir/err")"
  [[ $(grep -c '^error' "$dir/err") == 1 && $(grep -o 'error' "$dir/err" | wc -l) == 1 ]] || fail "$*: says error twice: $(cat "$dir/err")"
  grep -qF -- "$message" "$dir/err" || fail "$*: no '$message' in: $(cat "$dir/err")"
}

run --version
[[ $status == 0 && $(cat "$dir/out") =~ ^sfsdp\ [0-9]+\.[0-9]+\.[0-9]+$ ]] || fail "--version: $(cat "$dir/out" "$dir/err")"
# Cores are those that the process may use.
core=$(python3 -c 'import os; print(min(os.sched_getaffinity(0)))')
taskset -c "$core" "$sfsdp" doctor >"$dir/out" && grep -qx "cores  *1" "$dir/out" || fail "doctor on one core: $(cat "$dir/out")"
env -u OMP_NUM_THREADS taskset -c "$core" "$sfsdp" launch -n 1 --exec "$(command -v printenv)" -- OMP_NUM_THREADS >"$dir/out" && [[ $(cat "$dir/out") == 1 ]] ||
  fail "launch on one core: $(cat "$dir/out")"
run help
[[ $status == 0 && ! -s $dir/err ]] || fail "help: $(cat "$dir/err")"
commands=$(awk '/^  / { print $1 }' "$dir/out")
[[ $(wc -w <<<"$commands") == 13 ]] || fail "help lists $commands"
for command in $commands; do
  run "$command" --help
  [[ $status == 0 && ! -s $dir/err ]] || fail "$command --help: status $status, $(cat "$dir/err")"
  grep -q "^usage: sfsdp $command" "$dir/out" || fail "$command --help: $(cat "$dir/out")"
  cp "$dir/out" "$dir/help"
  run help "$command"
  cmp "$dir/out" "$dir/help" || fail "help $command differs from $command --help"
done
refuses 2 'did you mean simulate?' simulat
refuses 2 'expected CHECKPOINT and OUT' export
refuses 2 'expected --archive' export a b --format safetensors
refuses 2 'or -- before what the ranks run' launch train
grep -q 'did you mean' "$dir/err" && fail "launch train: suggests something: $(cat "$dir/err")"
for command in inspect plan simulate calibrate; do
  refuses 2 'did you mean --training.steps?' "$command" --training.stepz 3
done
refuses 2 'did you mean --training.steps?' train --training.stepz 3

# Wherever a bad value is found before anything runs, it ends with the same status.
for command in train inspect plan "simulate --machine dgx_h100"; do
  refuses 2 'activation_checkpoint.memory_budget = 3' $command --activation_checkpoint.memory_budget 3
  refuses 2 'expected degrees that multiply to 1' $command --parallelism.data_parallel_replicate_degree 3
  refuses 2 '--training.seq_len = 4611686018427387904' $command --training.seq_len 4611686018427387904
  refuses 2 'model.flavor = 9B' $command --model.flavor 9B
  refuses 2 'nowhere.toml: cannot read' $command --config nowhere.toml
done
refuses 2 'training.dataset_path' train --training.dataset tokens --training.dataset_path nowhere.bin
for jitter in x -1 nan inf 1e308 101; do
  refuses 2 'expected a number from 0 to 100' simulate --machine dgx_h100 --simulate.jitter "$jitter"
done
refuses 2 '--simulate.seed = 1.5' simulate --machine dgx_h100 --simulate.seed 1.5
refuses 2 'nowhere.ir' opt nowhere.ir
refuses 2 '--check nowhere.plan cannot be read' plan --check nowhere.plan
refuses 2 '--training.seq_len, --world with --plan' simulate --plan x.plan --machine dgx_h100 --training.seq_len 16 --world 2

# What the C++ API refuses is told in the keys of a config.
debug=(inspect --config configs/llama3_debug.toml --world 2)
in_keys() { # part of the message, keys
  refuses 2 "$1" "${debug[@]}" "${@:2}"
  grep -q '[A-Z][a-z0-9]*::' "$dir/err" && fail "${*:2}: C++ in: $(cat "$dir/err")"
  return 0
}
in_keys 'parallelism.fsdp_wrap = auto has no machine' --parallelism.fsdp_wrap auto
in_keys 'parallelism.fsdp_wrap = search at parallelism.zero_stage 1 or 2' --parallelism.fsdp_wrap search --parallelism.zero_stage 1
in_keys 'activation_checkpoint.mode = auto has no machine' --activation_checkpoint.mode auto
in_keys 'parallelism.fsdp_units = "layer.*": layer.* matches' --parallelism.fsdp_units 'layer.*'
in_keys 'set training.loss_chunks = 1' --training.loss_chunks 100000
in_keys 'model.args.dim = true' --model.args.dim true
in_keys 'model.args.n_kv_heads = 5' --model.args.n_kv_heads 5
in_keys 'model.flavor = 9B' --model.flavor 9B
in_keys 'lower training.seq_len or raise model.args.max_positions' --model.name gpt --model.flavor 124M --training.seq_len 4096

refuses 2 'model.args.rope = true, which no GPT-2 of transformers has' train --model.name gpt --model.flavor 124M --model.args.rope true \
  --model.args.n_layers 1 --model.args.dim 24 --model.args.vocab_size 256 --training.seq_len 16 --training.dataset_max_bytes 100000 \
  --checkpoint.enable --checkpoint.last_save_in_hf --job.dump_folder "$dir/refused"

# The verifier knows the types of all that our models are captured as; their variants are simulated and planned too.
variants=("llama3 debugmodel" "gpt 124M" "llama3 debugmodel --model.args.qkv_bias true --model.args.qk_norm true"
          "gpt 124M --model.args.rope true --model.args.tied false --model.args.bias false")
for model in "${variants[@]}"; do
  read -r name flavor args <<<"$model"
  of_model=(--world 2 --model.name "$name" --model.flavor "$flavor" $args --training.local_batch_size 1 --training.seq_len 16)
  for remat in none full; do
    "$sfsdp" inspect --graph "${of_model[@]}" --activation_checkpoint.mode "$remat" >"$dir/step.ir"
    run opt "$dir/step.ir" --verify
    [[ $status == 0 ]] && grep -q ' ops, 0 of unknown types' "$dir/err" || fail "$model: $(cat "$dir/err")"
  done
  "$sfsdp" plan "${of_model[@]}" | grep -q '^Plan .* verified$' || fail "plan of $model"
  "$sfsdp" simulate "${of_model[@]}" --machine rtx4090 --json >"$dir/json"
  state=$(python3 -c 'import json, sys; print(json.load(open(sys.argv[1]))["state_bytes"])' "$dir/json")
  case $model in # 12 bytes a parameter, shared by two ranks
    "llama3 debugmodel") llama=$state ;;
    "gpt 124M") gpt=$state ;;
    llama3*) more=$((state - llama)) expected=$((6 * 6 * (3 * 256 + 2 * 16))) ;;  # 6 layers: biases of q, k, v, and two norms
    gpt*) more=$((state - gpt)) expected=$((6 * (50257 * 768 - 1024 * 768 - 12 * 11 * 768 - 768))) ;; # the output, without positions and biases
  esac
  [[ -z ${more:-} ]] || ((more > expected - 100000 && more < expected + 100000)) || fail "$model: $more bytes of state more, expected $expected"
  more=
done

# Both names of the config, and both forms of a boolean.
for form in "--config --json" "--job.config_file --json=true"; do
  read -r config json <<<"$form"
  run inspect "$config" configs/llama3_debug.toml --world 2 "$json"
  [[ $status == 0 && $(cat "$dir/out") == "{"* ]] || fail "inspect $form: $(cat "$dir/out" "$dir/err")"
done
run train --config configs/llama3_debug.toml --training.steps 1 --training.seq_len 16 --training.local_batch_size 1 \
  --model.args.n_layers 1 --training.dataset_max_bytes 100000 --metrics.enable_jsonl false --job.print_config=true
[[ $status == 0 ]] || fail "train --config: $(cat "$dir/err")"
grep -Eq 'step:  1 .*  mfu: [0-9.]+%' "$dir/out" || fail "train says no mfu: $(cat "$dir/out")"
grep -Eq '^Peak for mfu: [0-9,]+ GFLOP/s' "$dir/out" || fail "train says no peak: $(cat "$dir/out")"
grep -Eq 'median tps [0-9,]+' "$dir/out" || fail "train says no median: $(cat "$dir/out")"

# What config.json asks for and our GPT-2 does not do is said, once.
cat >"$dir/config.json" <<'JSON'
{"architectures": ["GPT2LMHeadModel"], "model_type": "gpt2", "activation_function": "gelu_new", "n_embd": 16, "n_head": 2,
 "n_layer": 1, "n_positions": 32, "vocab_size": 256, "layer_norm_epsilon": 1e-5, "attn_pdrop": 0.1, "resid_pdrop": 0}
JSON
run train --model.name hf --model.hf_assets_path "$dir" --training.steps 1 --training.seq_len 16 \
  --training.local_batch_size 1 --training.dataset_max_bytes 100000 --metrics.enable_jsonl false
[[ $status == 0 ]] || fail "train with a config.json: $(cat "$dir/err")"
[[ $(grep -c 'config.json: attn_pdrop = 0.1, embd_pdrop = 0.1 is not applied' "$dir/out") == 1 ]] || fail "no notice: $(cat "$dir/out")"

# What would end in the first step, or after the last one, is refused before the first.
small=(train --config configs/llama3_debug.toml --training.steps 1 --training.seq_len 16 --model.args.n_layers 1
  --training.dataset_max_bytes 100000 --training.local_batch_size 1 --job.dump_folder "$dir/small")
refuses 2 'but this machine has' "${small[@]}" --training.local_batch_size 1048576
refuses 2 "model.hf_assets_path = $dir/none: there is no such folder" "${small[@]}" --checkpoint.enable \
  --checkpoint.last_save_in_hf --model.hf_assets_path "$dir/none"
[[ ! -e $dir/small/checkpoint ]] || [[ -z $(find "$dir/small/checkpoint" -name '*.safetensors') ]] || fail "a refused run has saved"
run "${small[@]}" --checkpoint.enable --checkpoint.last_save_in_hf --model.hf_assets_path "$dir"
[[ $status == 0 ]] && grep -q "$dir: no tokenizer's files" "$dir/out" || fail "no word of a missing tokenizer: $(cat "$dir/out" "$dir/err")"

# A limit on the size of files is said as a full disk is, with its cure.
limited() (ulimit -f 60 && run "$@" && exit "$status")
status=0
limited "${small[@]}" --checkpoint.enable --checkpoint.folder limited || status=$?
[[ $status == 1 ]] && grep -qF 'File too large' "$dir/err" && grep -qF 'ulimit -f unlimited' "$dir/err" ||
  fail "exit status $status under ulimit -f: $(cat "$dir/err")"
refuses 2 '--simulate.memory_depth = -1' simulate --config configs/llama3_debug.toml --world 2 --machine dgx_h100 --simulate.memory_depth -1

# One process is rank 0 of eight that do not exist.
NGPU=8 run "${small[@]}" --comm.mode fake_backend
[[ $status == 0 ]] && grep -qF 'Mesh [dp_shard=8], imagined ranks' "$dir/out" || fail "fake_backend: $(cat "$dir/out" "$dir/err")"

# A machine by name, in the sources; own_project.sh looks where it is installed.
refuses 2 'did you mean dgx_h100?' simulate --config configs/llama3_debug.toml --world 2 --machine dgx_h10
run simulate --config configs/llama3_debug.toml --world 2 --machine dgx_h100
[[ $status == 0 ]] || fail "simulate --machine dgx_h100: $(cat "$dir/err")"

# A bad id that is never trained on ends nothing; one that is names its place.
python3 -c 'import array, sys
array.array("H", [i % 250 for i in range(999)] + [60000] * 40).tofile(open(sys.argv[1], "wb"))' "$dir/tokens.bin"
tokens=(train --config configs/llama3_debug.toml --training.dataset tokens --training.dataset_path "$dir/tokens.bin"
  --training.seq_len 16 --training.local_batch_size 1 --model.args.n_layers 1 --job.dump_folder "$dir/run")
run "${tokens[@]}" --training.steps 2
[[ $status == 0 ]] || fail "a bad id that is not trained on: $(cat "$dir/err")"
run "${tokens[@]}" --training.steps 64
[[ $status == 1 ]] || fail "a bad id that is trained on is taken"
grep -q 'tokens.bin: token 60000 at position 999' "$dir/err" || fail "$(cat "$dir/err")"
