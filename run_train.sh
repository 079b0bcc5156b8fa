#!/usr/bin/env bash
# Sets up, builds and trains; as TorchTitan's script of this name:
#   NGPU=4 CONFIG_FILE=./configs/llama3_debug.toml ./run_train.sh --training.steps 20
#   NGPU         ranks on this host (2)
#   LOG_RANK     ranks whose output is shown, as 0 or 0,3 (0)
#   CONFIG_FILE  ./configs/llama3_debug.toml; flags after the script's name override its keys
set -euo pipefail
NGPU=${NGPU:-2}
export LOG_RANK=${LOG_RANK:-0}
CONFIG_FILE=$(realpath -m "${CONFIG_FILE:-$(dirname "${BASH_SOURCE[0]}")/configs/llama3_debug.toml}")
cd "$(dirname "${BASH_SOURCE[0]}")"

./setup.sh >/dev/null
scripts/build.sh release sfsdp
exec build/release/sfsdp launch -n "$NGPU" --log-rank "$LOG_RANK" -- train --job.config_file "$CONFIG_FILE" "$@"
