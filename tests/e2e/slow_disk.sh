#!/usr/bin/env bash
# A disk whose fsync takes longer than comm.train_timeout_seconds is not taken for a lost rank, by a Hugging Face export as by
# a save. Where an export fails, the state is saved as a checkpoint, whatever the error; a config file that finds no room
# is said, and the run goes on.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
command -v gcc >/dev/null || { echo "SKIP: no gcc for the slow disk"; exit 77; }
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
fail() { echo "$*"; tail -20 "$dir/out"; exit 1; }
cat >"$dir/disk.c" <<'C'
#define _GNU_SOURCE
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>
// Files whose path has SLOW in it are synced late, those with FULL in it cannot be synced for want of room.
int fsync(int fd) {
  char link[32] = "/proc/self/fd/", path[4096] = "";
  char digits[12];
  int n = 0;
  for (int rest = fd; rest > 0 || n == 0; rest /= 10) digits[n++] = (char)('0' + rest % 10);
  for (size_t at = strlen(link); n > 0;) link[at++] = digits[--n];
  if (readlink(link, path, sizeof(path) - 1) < 0) path[0] = 0;
  const char *slow = getenv("SLOW"), *full = getenv("FULL");
  if (full && strstr(path, full)) return errno = ENOSPC, -1;
  if (slow && strstr(path, slow)) sleep(3);
  return (int)syscall(SYS_fsync, fd);
}
C
gcc -O1 -shared -fPIC -o "$dir/disk.so" "$dir/disk.c" || fail "gcc"
train() { # name, more arguments
  local run=$1
  shift
  timeout 300 build/release/sfsdp launch -n 2 -- train --config configs/llama3_debug.toml --training.seq_len 16 \
    --training.local_batch_size 1 --model.args.n_layers 1 --training.dataset_max_bytes 100000 --training.steps 3 \
    --job.dump_folder "$dir/$run" --checkpoint.enable --checkpoint.last_save_in_hf --model.hf_assets_path= \
    --comm.train_timeout_seconds 2 "$@" >"$dir/out" 2>&1
}
export LD_PRELOAD=$dir/disk.so
SLOW=hf-step-3.incomplete/config.json train slow || fail "a slow disk ends the run: $?" # of create, rank 0's alone
[[ -f $dir/slow/checkpoint/hf-step-3/model.safetensors ]] || fail "no export"
SLOW=hf-step-3.incomplete/model train data || fail "a slow disk ends the run: $?"

FULL=hf-step-3.incomplete/config.json train full
[[ $? == 1 ]] || fail "an export that fails ends with $?, expected 1"
grep -q "hf-step-3.incomplete/config.json: cannot be brought to the disk: No space left on device" "$dir/out" || fail "no reason"
[[ -f $dir/full/checkpoint/step-3/manifest.json ]] || fail "the state is not saved"
[[ ! -e $dir/full/checkpoint/hf-step-3.incomplete ]] || fail "the folder that was begun stays"

FULL=run.toml train config --job.save_config_file run.toml || fail "a config file without room ends the run: $?"
grep -q "job.save_config_file is not written: .*No space left on device" "$dir/out" || fail "it is not said"
exit 0
