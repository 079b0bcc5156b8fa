#!/usr/bin/env bash
# Finds or installs what the build needs; prints the folder of LibTorch and writes it to build/torch_dir.
#   ./setup.sh             what training needs: compiler, libraries, LibTorch
#   ./setup.sh --tests     and what ./run_tests.sh needs: doctest, clang's tools, Chromium
#   ./setup.sh --no-torch  without LibTorch: enough for the torch-free core
# LibTorch, first that exists: $LIBTORCH, $Torch_DIR, the torch of python3, of ./.venv; else pip puts torch 2.13.0 into
# ./.venv. An existing torch is never replaced. Running it again takes well under a second and needs no network.
# What apt-get prints goes to build/setup.log.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"
say() { echo "setup: $*" >&2; }

packages=(g++ cmake ninja-build ccache libtomlplusplus-dev nlohmann-json3-dev
  libonig-dev libxxhash-dev libzstd-dev zlib1g-dev libutf8proc-dev libssl-dev)
# Where one of these is missing, the checks that need it are skipped and say so: scripts/check_format.sh, check_tidy.sh
# tests/e2e/*report.sh, which open pages in Chromium, and tests/e2e/mpi.sh; without MPI's headers no libsfsdp_mpi.so is built.
optional=()
readers=() # Python packages, in .venv if there is one; without them tests/e2e/tensorboard.sh and hf_python.sh are skipped
torch=yes
for argument in "$@"; do
  case $argument in
  --tests)
    packages+=(doctest-dev)
    optional=(clang-format-14 clang-tidy-14 chromium libopenmpi-dev openmpi-bin)
    readers=(numpy safetensors tensorboard tokenizers transformers)
    ;;
  --no-torch) torch=no ;;
  *) say "unknown argument $argument; expected --tests or --no-torch" && exit 2 ;;
  esac
done

missing_packages() {
  local installed
  installed=$(dpkg-query -W -f '${Status} ${Package}\n' "$@" 2>/dev/null | sed -n 's/^install ok installed //p' || true)
  local package
  for package in "$@"; do grep -qxF -- "$package" <<<"$installed" || echo "$package"; done
}

apt() { # what it prints is for the log, unless it fails
  mkdir -p build
  DEBIAN_FRONTEND=noninteractive apt-get -y -qq "$@" >>build/setup.log 2>&1
}
apt_install() { apt install --no-install-recommends "$@" || { apt update && apt install --no-install-recommends "$@"; }; }

require_packages() {
  local missing
  if ! command -v dpkg-query >/dev/null; then # another distribution: CMake names a missing library itself
    local tool
    for tool in c++ cmake ninja; do
      command -v "$tool" >/dev/null || { say "no $tool; install what Debian calls $*"; exit 1; }
    done
    return
  fi
  mapfile -t missing < <(missing_packages "$@")
  if ((${#missing[@]})); then
    if ((EUID != 0)); then
      say "missing packages; as root: apt-get install -y ${missing[*]}"
      exit 1
    fi
    say "installing ${missing[*]}"
    apt_install "${missing[@]}" || { tail -n 20 build/setup.log >&2; say "apt-get failed; all of it: build/setup.log"; exit 1; }
  fi
}

# Tried once: a machine without network must not wait for it on every run.
want_packages() {
  (($# && EUID == 0)) && [[ ! -e build/no_optional_packages ]] && command -v dpkg-query >/dev/null || return 0
  local missing package failed=()
  mapfile -t missing < <(missing_packages "$@")
  ((${#missing[@]})) || return 0
  say "installing ${missing[*]}"
  for package in "${missing[@]}"; do # one by one: a distribution without one of them may have the others
    apt_install "$package" || failed+=("$package")
  done
  ((${#failed[@]})) || return 0
  say "could not install ${failed[*]}: their checks will be skipped"
  touch build/no_optional_packages
}

# Tried once, as packages are. What is installed, numpy above all, is left as it is.
want_readers() {
  ((${#readers[@]})) && [[ -x .venv/bin/python3 && ! -e build/no_python_readers ]] || return 0
  local missing
  mapfile -t missing < <(.venv/bin/python3 -I -c 'import importlib.util as u, sys
for name in sys.argv[1:]:
    if u.find_spec(name) is None: print(name)' "${readers[@]}")
  ((${#missing[@]})) || return 0
  say "installing ${missing[*]} into .venv"
  .venv/bin/python3 -I -m pip install -qq --no-input --timeout 15 --retries 0 --upgrade-strategy only-if-needed "${missing[@]}" >&2 &&
    return
  say "could not install ${missing[*]}: tests/e2e/tensorboard.sh or hf_python.sh will be skipped"
  mkdir -p build
  touch build/no_python_readers
}

torch_version() { # "2.13" of the LibTorch in folder $1
  sed -n 's/^#define TORCH_VERSION_M\(AJOR\|INOR\) \([0-9]*\).*/\2/p' "$1/include/torch/headeronly/version.h" 2>/dev/null |
    paste -sd.
}
is_torch() { [[ -n $1 && -e $1/lib/libtorch_cpu.so ]]; }
is_tested() { [[ $(torch_version "$1") =~ ^2\.1[1-5]$ ]]; }
python_torch() { # folder of the torch package of interpreter $1; does not import it, that takes seconds
  local isolated=() # .venv's own, whatever PYTHONPATH says
  [[ $1 == .venv/* ]] && isolated=(-I)
  "$1" "${isolated[@]}" -c 'import importlib.util as u; s = u.find_spec("torch"); print(s.submodule_search_locations[0] if s else "")' \
    2>/dev/null || true
}
found() {
  mkdir -p build
  [[ $(cat build/torch_dir 2>/dev/null) == "$1" ]] || echo "$1" >build/torch_dir
  echo "$1"
}

find_torch() { # prints the folder, or nothing if pip has to bring one; fails where going on would be wrong
  local variable dir python
  for variable in LIBTORCH Torch_DIR; do
    dir=${!variable:-}
    [[ -n $dir ]] || continue
    is_torch "$dir" || dir=$(realpath -m "$dir/../../..") # Torch_DIR is <torch>/share/cmake/Torch
    is_torch "$dir" || { say "$variable = ${!variable} holds no lib/libtorch_cpu.so"; return 1; }
    dir=$(realpath "$dir")
    is_tested "$dir" || say "LibTorch $(torch_version "$dir") at $dir is untested; expected 2.11 to 2.15"
    echo "$dir"
    return
  done
  for python in python3 .venv/bin/python3; do
    command -v "$python" >/dev/null || continue
    dir=$(python_torch "$python")
    is_torch "$dir" || continue
    dir=$(realpath "$dir")
    if is_tested "$dir"; then
      echo "$dir"
      return
    fi
    say "passing over LibTorch $(torch_version "$dir") at $dir: expected 2.11 to 2.15; set LIBTORCH=$dir to use it anyway"
    [[ $python == python3 ]] || { say ".venv holds another torch and is left alone; set LIBTORCH, or remove .venv"; return 1; }
  done
}

# PyTorch's own index has the small CPU build, 2.13.0+cpu, which pip counts as newer than 2.13.0. pip asks each index
# for each of torch's dependencies, and retries: one that cannot be reached is found out before, in at most 2 seconds; what
# pip has in its cache then comes without a line per dependency. Its Python is not compiled: nothing here runs it but torchrun.
install_torch() {
  local index=https://download.pytorch.org/whl/cpu from=(--retries 0)
  if timeout 2 .venv/bin/python3 -I -c "import urllib.request as u; u.urlopen('$index/torch/', timeout=2)" 2>/dev/null; then
    from=(--retries 1 --extra-index-url "$index")
  else
    say "$index cannot be reached; pip takes torch from its own index"
  fi
  say "installing torch 2.13.0 into .venv"
  .venv/bin/python3 -I -m pip install -qq --no-input --no-compile --timeout 15 "${from[@]}" torch==2.13.0 >&2 ||
    { say "pip could not install torch; unpack a LibTorch by hand and set LIBTORCH to its folder"; exit 1; }
}

if [[ $torch == no ]]; then
  require_packages "${packages[@]}"
  want_packages "${optional[@]}"
  exit 0
fi
dir=$(find_torch)
if [[ -z $dir && ! -x .venv/bin/python3 ]]; then # asked for with the others, so that one line names all that is missing
  command -v python3 >/dev/null || packages+=(python3)
  python3 -c 'import ensurepip, venv' 2>/dev/null || packages+=(python3-venv)
fi
require_packages "${packages[@]}"
want_packages "${optional[@]}"
if [[ -z $dir ]]; then
  [[ -x .venv/bin/python3 ]] || python3 -m venv .venv
  install_torch
  dir=$(python_torch .venv/bin/python3)
  is_torch "$dir" || { say "pip left no LibTorch in .venv"; exit 1; }
  dir=$(realpath "$dir")
fi
want_readers
found "$dir"
