#!/usr/bin/env bash
# Each command of the pages in PAGES runs as it stands there, and prints what the page shows of it; those that another test
# runs are listed below with its name. The README's run in a clone, in the page's order, without a flag more: each finds
# what those before it have left, and nothing else. What makes them short is the clone's configuration. Not verbatim:
#   - `sfsdp calibrate` measures for less time and with fewer bytes (SHORTER);
#   - ELSEWHERE says who runs run_tests.sh, which runs this, the installation and what runs from it, `doctor --flight`, torchrun;
#   - the clone is a copy of the working tree, committed or about to be, and its build folder is a link to this one's: cloning
#     and the first build are not run;
#   - what an exported model needs (model.pt2) is left out where no Python with torch and transformers is here, and that is said;
#   - commands of the other pages run with fewer steps, and with files that stand in for the reader's (SHORTER, INSTEAD).
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
exec python3 - <<'PY'
import gzip, os, re, shutil, subprocess, sys, tempfile

README = "README.md"
PAGES = [README, "docs/tour.md", "docs/writing-a-pass.md", "docs/checkpoints.md", "docs/data.md", "docs/metrics.md"]
STARTS = r"(\w+=\S+ )*(\./run_|python3 python/|build/release/|~/sfsdp/|sfsdp |cmake |torchrun |echo )"
ELSEWHERE = {  # begin of a command: who runs it, and a line of his that shows it
    "./run_tests.sh": ("run_tests.sh", "finish"),  # it runs this
    "cmake --install build/release --prefix ~/sfsdp": ("tests/e2e/own_project.sh", "cmake --install build/release --prefix"),
    "~/sfsdp/bin/sfsdp launch": ("tests/e2e/own_project.sh", "bin/sfsdp\" launch -n 2 --log-rank 0 --exec"),
    "build/release/sfsdp doctor --flight": ("tests/e2e/faults.sh", "doctor --flight"),
    "tensorboard --logdir": ("tests/e2e/tensorboard.sh", "tensorboard"),
    "sfsdp train --checkpoint.enable --checkpoint.create_seed_checkpoint": ("tests/e2e/checkpoint.sh", "create_seed_checkpoint"),
    "torchrun --no-python": ("tests/e2e/torchrun.sh", "--no-python --nproc-per-node 2"),
}
SHORT_CONFIG = {"steps": 3, "seq_len": 32, "local_batch_size": 1}  # of configs/llama3_debug.toml in the README's clone
SHORTER = {  # what makes a command short enough for a test; of the README's the last alone, as its keys are no config's
    "run_train.sh": " --training.steps 2",
    "train --config": " --training.steps 2 --training.seq_len 16",
    "sfsdp calibrate": " --calibrate.seconds 1 --calibrate.max_mib 1 --training.seq_len 32",
}
INSTEAD = {
    "my_pass": "prefetch_gathers",  # a pass that the reader is about to write
    ".jsonl.zst": ".jsonl.gz",
    "9906, 11, 1917": "1, 2, 3",  # ids of Llama 3's whole vocabulary
}


def blocks(text):
    """Indented blocks of a page as lists of lines, and spans in code style as strings. Fenced code is compiled elsewhere."""
    text = re.sub(r"^```.*?^```$", "", text, flags=re.S | re.M)
    for part in re.split(r"\n\s*\n", text):
        if part.strip("\n").startswith("    "):
            yield [re.sub(r"\s+", " ", line).strip() for line in part.replace("\\\n", " ").strip("\n").split("\n")]
        else:
            yield from re.findall(r"`([^`]+)`", " ".join(part.split()))


def commands(page):
    """Command, and what the page shows of its output: the indented block right after it, as far as to "..."."""
    found, after_command = [], False
    for block in blocks(open(page).read()):
        lines = [block] if isinstance(block, str) else block
        is_command = bool(re.match(STARTS, lines[0]))
        if is_command:
            for line in lines:
                command = re.sub(r"\s+#.*", "", line)
                names_it_only = lines[0] is block and not re.search(r"\.sh| [-<]", command)
                has_places_to_fill = re.search(r" [A-Z]+\b(?!=)|<\w+>|…", command)
                if not names_it_only and not has_places_to_fill: found.append((command, []))
        elif after_command and lines[0] is not block:
            found[-1][1].extend(lines[: lines.index("...")] if "..." in lines else lines)
        after_command = is_command and lines[0] is not block
    return found


def clone(folder):
    """What a clone of the working tree holds, committed or about to be. Its build folder is this one's: scripts find all
    built there, and so cost what they cost where nothing has changed."""
    names = subprocess.run(["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"], cwd=repo, check=True,
                           capture_output=True).stdout.decode().split("\0")
    for name in filter(lambda n: n and os.path.exists(os.path.join(repo, n)), names):
        os.makedirs(os.path.dirname(os.path.join(folder, name)), exist_ok=True)
        shutil.copy2(os.path.join(repo, name), os.path.join(folder, name), follow_symlinks=False)
    os.symlink(os.path.join(repo, "build"), os.path.join(folder, "build"))


def shorten(config):
    text = open(config).read()
    for key, value in SHORT_CONFIG.items():
        text, found = re.subn(rf"^{key} = \d+$", f"{key} = {value}", text, flags=re.M)
        assert found == 1, f"{config}: {found} times {key}"
    open(config, "w").write(text)


repo = os.getcwd()
failures, ran = 0, set()
with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryDirectory() as readme_folder:
    clone(readme_folder)
    shorten(f"{readme_folder}/configs/llama3_debug.toml")
    clone(folder)
    for name, text in {"data/a.jsonl.gz": b'{"text": "Hello"}\n', "books/a.txt.gz": b"world"}.items():
        os.makedirs(os.path.join(folder, os.path.dirname(name)))
        with gzip.open(os.path.join(folder, name), "wb") as file: file.write(text)
    with open(os.path.join(folder, "chat.jsonl"), "w") as file:
        file.write('{"prompt": "What is two plus two?", "completion": " It is four, as ever."}\n' * 2000)
    os.symlink(f"{repo}/tests/fixtures/tokens.bin", f"{folder}/data/web_0.bin")
    os.makedirs(f"{folder}/path/to")
    os.symlink(f"{repo}/tests/fixtures/tokenizers/llama3/tokenizer.json", f"{folder}/path/to/tokenizer.json")
    with open(f"{folder}/path/to/tokenizer_config.json", "w") as file:
        file.write('{"bos_token": "<|begin_of_text|>", "eos_token": "<|end_of_text|>"}')
    environment = dict(os.environ, PATH=f"{repo}/build/release:{os.environ['PATH']}", OMP_NUM_THREADS="1",
                       LIBTORCH=open(f"{repo}/build/torch_dir").read().strip(),  # where setup.sh has found it here
                       TRANSFORMERS_OFFLINE="1", HF_HUB_OFFLINE="1")
    pythons = [p for p in (f"{repo}/.venv/bin", "") if not subprocess.run(
        ["bash", "-c", "python3 -c 'import torch, transformers'"], env=dict(environment, PATH=f"{p}:{environment['PATH']}".lstrip(":")),
        capture_output=True).returncode]
    if pythons: environment["PATH"] = f"{pythons[0]}:{environment['PATH']}".lstrip(":")
    for page in PAGES:
        for command, shown in commands(page):
            owner = next((o for start, o in ELSEWHERE.items() if command.startswith(start)), None)
            if owner:
                if owner[1] not in open(owner[0]).read():
                    print(f"{page}: {command}: {owner[0]} no longer has {owner[1]}")
                    failures += 1
                continue
            if not pythons and re.search(r"\b(model|trained)\.pt2\b", command):
                print(f"{page}: {command}: SKIPPED, no Python with torch and transformers is here")
                continue
            verbatim = page == README and "sfsdp calibrate" not in command
            where = readme_folder if page == README else folder  # what a command leaves in one is not in the other
            if (command, where) in ran and not shown and not verbatim: continue
            ran.add((command, where))
            line = command
            if not verbatim:
                for word, other in INSTEAD.items():
                    line = line.replace(word, other)
                for word, flags in SHORTER.items():
                    line += flags if word in line else ""
            result = subprocess.run(["bash", "-c", line], cwd=where, env=environment, text=True, capture_output=True)
            missing = [text for text in shown if text not in result.stdout]
            if result.returncode or missing:
                print(f"{page}: {command}: exit status {result.returncode}, not printed: {missing}\n"
                      f"{result.stdout[-2000:]}{result.stderr[-2000:]}")
                failures += 1
print(f"{len(ran)} commands of {', '.join(PAGES)}")
sys.exit(failures > 0 or len(ran) < 15)
PY
