#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""How fast `sfsdp train` takes a Hugging Face folder over from the page cache, against reading its files into memory.

  benchmarks/hf_load.py [--sfsdp build/release/sfsdp] [--dtype F32|BF16] [--rounds 5]

The model is stored in float32: a folder in BF16 is converted on the way. Both sides are measured in turn, the best of each
counts. "Weights of" in the log says what the load took: opening, checking and copying.
"""
import argparse, json, math, os, re, struct, subprocess, tempfile, time

LAYERS, DIM, WIDTH, VOCABULARY = 2, 2048, 5632, 16000
SIZES = {"F32": 4, "BF16": 2}


def shapes():
    out = {"model.embed_tokens.weight": (VOCABULARY, DIM)}
    for i in range(LAYERS):
        at = f"model.layers.{i}."
        out |= {at + f"self_attn.{n}_proj.weight": (DIM, DIM) for n in "qkvo"}
        out |= {at + "mlp.gate_proj.weight": (WIDTH, DIM), at + "mlp.up_proj.weight": (WIDTH, DIM),
                at + "mlp.down_proj.weight": (DIM, WIDTH), at + "input_layernorm.weight": (DIM,),
                at + "post_attention_layernorm.weight": (DIM,)}
    return out | {"model.norm.weight": (DIM,), "lm_head.weight": (VOCABULARY, DIM)}


def write_folder(folder, dtype):
    """Small numbers, not zeros: a page of zeros costs the same, but a conversion of nan or subnormals might not."""
    config = dict(architectures=["LlamaForCausalLM"], model_type="llama", hidden_act="silu", hidden_size=DIM,
                  intermediate_size=WIDTH, num_hidden_layers=LAYERS, num_attention_heads=16, vocab_size=VOCABULARY,
                  rms_norm_eps=1e-5, rope_theta=1e4)
    with open(f"{folder}/config.json", "w") as file:
        json.dump(config, file)
    header, at = {"__metadata__": {"format": "pt"}}, 0
    for name, shape in shapes().items():
        end = at + math.prod(shape) * SIZES[dtype]
        header[name] = dict(dtype=dtype, shape=shape, data_offsets=[at, end])
        at = end
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    pattern = (struct.pack("<f", 0.01)[2:] if dtype == "BF16" else struct.pack("<f", 0.01)) * (1 << 20)
    with open(f"{folder}/model.safetensors", "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for done in range(0, at, len(pattern)):
            file.write(pattern[: min(len(pattern), at - done)])
    return at


def read_seconds(path, buffer):
    with open(path, "rb", buffering=0) as file:
        start, view = time.perf_counter(), memoryview(buffer)
        while got := file.readinto(view[: 8 << 20]):
            view = view[got:]
        return time.perf_counter() - start


def load_seconds(sfsdp, folder, tokens):
    command = [sfsdp, "train", "--model.name", "hf", "--model.hf_assets_path", folder, "--checkpoint.initial_load_in_hf",
               "--training.dataset", "tokens", "--training.dataset_path", tokens, "--training.seq_len", "4",
               "--training.local_batch_size", "1", "--training.steps", "1", "--optimizer.name", "SGD",
               "--lr_scheduler.warmup_steps", "0", "--training.token_dtype", "uint16", "--job.dump_folder", folder + "/out"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as run:
        seen = ""
        for line in run.stdout:
            seen += line
            if found := re.search(r"this rank's part in ([\d.]+) s", line):
                run.kill()  # the step is of no interest
                return float(found[1])
    raise SystemExit(seen)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sfsdp", default="build/release/sfsdp")
    parser.add_argument("--dtype", choices=SIZES, default="F32")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        size = write_folder(folder, options.dtype)
        tokens = f"{folder}/tokens.bin"
        with open(tokens, "wb") as file:
            file.write(struct.pack("<64H", *range(64)))
        buffer = bytearray(os.path.getsize(f"{folder}/model.safetensors"))
        reads, loads = [], []
        for _ in range(options.rounds):
            reads.append(read_seconds(f"{folder}/model.safetensors", buffer))
            loads.append(load_seconds(options.sfsdp, folder, tokens))
        read, load = min(reads), min(loads)
        print(f"{options.dtype}: {size / 1e9:.2f} GB; read into memory {size / read / 1e9:.2f} GB/s, "
              f"load {size / load / 1e9:.2f} GB/s: {100 * read / load:.0f} %")


if __name__ == "__main__":
    main()
