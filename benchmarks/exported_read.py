#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""What ranks read of a large archive, and the memory it takes, beside the import of the same weights from safetensors.

  .venv/bin/python benchmarks/exported_read.py --layers 4 --ranks 4       a Llama of 8B's widths and four layers
  .venv/bin/python benchmarks/exported_read.py --layers 32 --ranks 4      8B: 16 GB on the disk, 16 GB of memory

Weights are ones, in bfloat16. Ranks are killed when training starts: until then they have read their parts, and nothing else of
size. "read" is rchar of /proc/PID/io less what a small model costs beside its weights; "peak" is VmHWM, "parts" what a rank
keeps of the weights. Needs torch and transformers in this Python, and build/release/sfsdp.
"""
import argparse, json, os, signal, struct, subprocess, sys, tempfile, time

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path.insert(0, os.path.join(ROOT, "python"))
import torch, transformers  # noqa: E402
import sfsdp_export  # noqa: E402


def config_of(layers, width):
    return transformers.LlamaConfig(vocab_size=128256 * width // 4096, hidden_size=width, intermediate_size=width * 7 // 2, num_hidden_layers=layers,
                                    num_attention_heads=width // 128, num_key_value_heads=max(width // 512, 1), use_cache=False, rope_theta=5e5,
                                    max_position_embeddings=8192)


def write_models(config, folder):
    """model.pt2, and hf/ with the same weights."""
    with torch.device("meta"):
        model = transformers.LlamaForCausalLM(config).to(torch.bfloat16)
    model = model.to_empty(device="cpu")
    frequencies = 1.0 / (config.rope_theta if hasattr(config, "rope_theta") else 5e5) ** (torch.arange(0, 128, 2).float() / 128)
    for _, buffer in model.named_buffers():
        buffer.copy_(frequencies)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(1)
    ids = torch.randint(config.vocab_size, (2, 16))
    sfsdp_export.export(sfsdp_export.prepare(model), dict(input_ids=ids, labels=ids.clone()), folder + "/model.pt2")
    os.makedirs(folder + "/hf", exist_ok=True)
    keys = {k: getattr(config, k) for k in ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads",
                                            "vocab_size", "rms_norm_eps", "hidden_act", "max_position_embeddings")}
    with open(folder + "/hf/config.json", "w") as file:
        json.dump(dict(keys, architectures=["LlamaForCausalLM"], model_type="llama", rope_theta=5e5, tie_word_embeddings=False), file)
    rows, end = {}, 0
    for name, p in model.named_parameters():
        rows[name] = dict(dtype="BF16", shape=list(p.shape), data_offsets=[end, end + 2 * p.numel()])
        end += 2 * p.numel()
    header = json.dumps(rows).encode()
    header += b" " * (-len(header) % 8)
    with open(folder + "/hf/model.safetensors", "wb") as file:
        file.write(struct.pack("<Q", len(header)) + header)
        for _, p in model.named_parameters():
            file.write(p.detach().view(torch.uint8).numpy().data)
    return end


def measure(ranks, folder, flags, sfsdp):
    """By rank, until training starts: bytes read and peak memory."""
    log = folder + "/log"
    command = [sfsdp, "launch", "-n", str(ranks), "--", "train", "--training.mixed_precision_param", "bfloat16", "--training.dtype", "bfloat16",
               "--lora.rank", "8", "--lora.alpha", "16", "--optimizer.name", "SGD", "--optimizer.momentum", "0", "--activation_checkpoint.mode", "full",
               "--training.seq_len", "16", "--training.local_batch_size", "2", "--training.steps", "100000", "--job.dump_folder", folder + "/run"] + flags
    with open(log, "wb") as out:
        launcher = subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT, start_new_session=True, env=dict(os.environ, OMP_NUM_THREADS="1"))
    found, began = {}, time.time()
    while launcher.poll() is None and "Training starts" not in open(log, errors="replace").read() and time.time() - began < 900:
        for pid in filter(str.isdigit, os.listdir("/proc")):
            try:
                words = open(f"/proc/{pid}/cmdline", "rb").read().decode().split("\0")
                if folder + "/run" not in words or "launch" in words:
                    continue
                status = dict(line.split(":", 1) for line in open(f"/proc/{pid}/status"))
                read = int(open(f"/proc/{pid}/io").readline().split()[1])
                found[pid] = read, int(status["VmHWM"].split()[0]) * 1024
            except (OSError, KeyError):
                continue
        time.sleep(0.1)
    text = open(log, errors="replace").read()
    if "Training starts" not in text:
        sys.exit(text[-2000:])
    os.killpg(launcher.pid, signal.SIGKILL)
    launcher.wait()
    return sorted(found.values())[-ranks:]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--work", help="folder for the models; default: a temporary one")
    parser.add_argument("--sfsdp", default=os.path.join(ROOT, "build", "release", "sfsdp"))
    flags = parser.parse_args()
    ways = {"archive": lambda f: ["--model.name", "exported", "--model.path", f + "/model.pt2", "--model.inputs", "input_ids=tokens,labels=tokens",
                                  "--lora.target", "*.q_proj"],
            "safetensors": lambda f: ["--model.name", "hf", "--model.hf_assets_path", f + "/hf", "--checkpoint.enable", "--checkpoint.initial_load_in_hf",
                                      "--checkpoint.interval", "1000000", "--lora.target", "*.wq"]}
    with tempfile.TemporaryDirectory(dir=flags.work) as large, tempfile.TemporaryDirectory(dir=flags.work) as small:
        weights = write_models(config_of(flags.layers, 4096), large)
        part, own = weights / flags.ranks, write_models(config_of(1, 512), small) / flags.ranks
        for way, of in ways.items():
            base = max(read for read, _ in measure(flags.ranks, small, of(small), flags.sfsdp)) - own
            ranks = measure(flags.ranks, large, of(large), flags.sfsdp)
            read, peak = max(r for r, _ in ranks) - base, max(p for _, p in ranks)
            print(f"{way:12} parts {part / 1e9:.3f} GB, read at most {read / 1e9:.3f} GB ({100 * (read / part - 1):+.2f} %), peak {peak / 1e9:.3f} GB", flush=True)


if __name__ == "__main__":
    main()
