#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Step time of models from Python: exported and trained here, ours in C++ where there is one, and PyTorch's FSDP2 in eager mode.

  .venv/bin/python benchmarks/exported_step.py [--models llama,gpt2,vit] [--rounds 5] [--steps 12] [--out FILE.json]

Two ranks on one machine, a thread each, float32, AdamW with clipping. The peers run in turn, in an order that turns round in each
round; a run counts as the median of its steps after the third. The table has, for each model, median [least, most] over rounds,
and the ratios of the exported model to the others, round by round. Both sides have a malloc that keeps its pages.

Needs torch, transformers and safetensors in this Python, and build/release/sfsdp. Run it alone: two ranks take two cores.
"""
import argparse, json, os, statistics, subprocess, sys, tempfile, time

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path.insert(0, os.path.join(ROOT, "python"))
MALLOC = dict(MALLOC_MMAP_MAX_="0", MALLOC_TRIM_THRESHOLD_="34359738368", MALLOC_TOP_PAD_="67108864", MALLOC_ARENA_MAX="1",
              GLIBC_TUNABLES="glibc.malloc.hugetlb=1")
ENVIRONMENT = dict(os.environ, OMP_NUM_THREADS="1", GLOO_SOCKET_IFNAME="lo", TRANSFORMERS_OFFLINE="1", HF_HUB_OFFLINE="1",
                   TRANSFORMERS_VERBOSITY="error", **MALLOC)
RANKS, SKIPPED = 2, 3
# name: (class, config, samples of a rank, tokens of a sample; 0: images)
MODELS = {
    "llama": ("LlamaForCausalLM", dict(vocab_size=8192, hidden_size=512, intermediate_size=1408, num_hidden_layers=8, num_attention_heads=8,
                                       num_key_value_heads=4, max_position_embeddings=512, tie_word_embeddings=False, rope_theta=500000.0,
                                       rms_norm_eps=1e-5), 2, 256),
    "gpt2": ("GPT2LMHeadModel", dict(vocab_size=8192, n_embd=512, n_layer=8, n_head=8, n_positions=512, resid_pdrop=0.0, embd_pdrop=0.0,
                                     attn_pdrop=0.0, activation_function="gelu_new", bos_token_id=1, eos_token_id=2), 2, 256),
    "vit": ("ViTForImageClassification", dict(hidden_size=384, intermediate_size=1536, num_hidden_layers=8, num_attention_heads=6,
                                              image_size=224, patch_size=16, num_labels=100, hidden_dropout_prob=0.0,
                                              attention_probs_dropout_prob=0.0), 2, 0),
}
OURS = {
    "llama": dict(name="llama3", flavor="debugmodel", dim=512, hidden_dim=1408, n_layers=8, n_heads=8, n_kv_heads=4, vocab_size=8192,
                  rope_theta=500000),
    "gpt2": dict(name="gpt", flavor="124M", dim=512, n_layers=8, n_heads=8, vocab_size=8192, max_positions=512),
}


def make_model(name):
    import torch, transformers
    kind, config = MODELS[name][:2]
    torch.manual_seed(0)
    made = getattr(transformers, kind)
    return made(made.config_class(use_cache=False, attn_implementation="sdpa", **config)).train()


def make_batch(name, samples, seed):
    import torch
    generator = torch.Generator().manual_seed(seed)
    config, tokens = MODELS[name][1], MODELS[name][3]
    if tokens:
        ids = torch.randint(config["vocab_size"], (samples, tokens), generator=generator)
        return dict(input_ids=ids, labels=ids.clone())
    return dict(pixel_values=torch.randn(samples, 3, config["image_size"], config["image_size"], generator=generator),
                labels=torch.randint(config["num_labels"], (samples,), generator=generator))


def fsdp2_worker(name, steps):
    import torch
    import torch.distributed as dist
    from torch.distributed.fsdp import fully_shard
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    model = make_model(name)
    for blocks in (m for m in model.modules() if isinstance(m, torch.nn.ModuleList)):
        for block in blocks:
            fully_shard(block)
    fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, betas=(0.9, 0.95), weight_decay=0.1, fused=True)
    batch = make_batch(name, MODELS[name][2], dist.get_rank())
    seconds = []
    for _ in range(steps):
        dist.barrier()
        start = time.perf_counter()
        loss = model(**batch).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        loss.item()
        seconds.append(time.perf_counter() - start)
    if dist.get_rank() == 0:
        print("SECONDS " + json.dumps(seconds), flush=True)
    dist.destroy_process_group()


def run(command):
    ran = subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, cwd=ROOT)
    if ran.returncode:
        sys.exit(f"{' '.join(command)}\n{ran.stdout[-2000:]}\n{ran.stderr[-2000:]}")
    return ran.stdout


def fsdp2(name, steps, folder):
    out = run([sys.executable, "-m", "torch.distributed.run", f"--nproc-per-node={RANKS}", os.path.abspath(__file__), "--worker", name,
               "--steps", str(steps)])
    return json.loads(next(line for line in out.splitlines() if line.startswith("SECONDS "))[8:])


def sfsdp_run(name, steps, folder, model_flags):
    _, config, samples, tokens = MODELS[name]
    dump = tempfile.mkdtemp(dir=folder)
    data = ["tokens", "--training.dataset_path", os.path.join(folder, name + ".bin"), "--training.seq_len", str(tokens)] if tokens else [
        "tensors", "--training.dataset_path", os.path.join(folder, name)]
    run([os.path.join(ROOT, "build/release/sfsdp"), "launch", "-n", str(RANKS), "--", "train", *model_flags, "--training.dataset", *data,
         "--training.local_batch_size", str(samples), "--training.steps", str(steps), "--training.mixed_precision_param", "float32",
         "--optimizer.lr", "1e-3", "--job.dump_folder", dump])
    with open(os.path.join(dump, "metrics.jsonl")) as lines:
        return [row["step_time_s"] for row in map(json.loads, lines) if "loss" in row]


def exported(name, steps, folder):
    flags = ["--model.name", "exported", "--model.path", os.path.join(folder, name + ".pt2")]
    if MODELS[name][3]:
        flags += ["--model.inputs", "input_ids=tokens,labels=tokens"]
    return sfsdp_run(name, steps, folder, flags)


def ours(name, steps, folder):
    flags = []
    for key, value in OURS[name].items():
        flags += [f"--model.{key}" if key in ("name", "flavor") else f"--model.args.{key}", str(value)]
    return sfsdp_run(name, steps, folder, flags)


def prepare(name, folder):
    import torch
    from safetensors.torch import save_file
    import sfsdp_export
    _, config, samples, tokens = MODELS[name]
    sfsdp_export.export(make_model(name), make_batch(name, samples, 0), os.path.join(folder, name + ".pt2"))
    if tokens:
        ids = torch.randint(config["vocab_size"], (samples * RANKS * tokens * 4 + 1,), dtype=torch.int32)
        with open(os.path.join(folder, name + ".bin"), "wb") as file:
            file.write(ids.to(torch.uint16).numpy().tobytes())
    else:
        os.mkdir(os.path.join(folder, name))
        save_file(make_batch(name, samples * RANKS * 4, 0), os.path.join(folder, name, "0.safetensors"))


def spread(values, unit=""):
    return f"{statistics.median(values):.3f}{unit} [{min(values):.3f}, {max(values):.3f}]"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--out")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    flags = parser.parse_args()
    if flags.worker:
        return fsdp2_worker(flags.worker, flags.steps)
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for name in flags.models.split(","):
            prepare(name, folder)
            peers = [("exported", exported), ("fsdp2", fsdp2)] + ([("ours", ours)] if name in OURS else [])
            seconds = {peer: [] for peer, _ in peers}
            for number in range(flags.rounds):
                turn = number % len(peers)
                for peer, take in peers[turn:] + peers[:turn]:
                    seconds[peer].append(statistics.median(take(name, flags.steps, folder)[SKIPPED:]))
            row = dict(model=name, seconds=seconds)
            print(f"{name}: " + ", ".join(f"{peer} {spread(values, ' s')}" for peer, values in seconds.items()), flush=True)
            for peer in seconds:
                if peer != "exported":
                    ratios = [a / b for a, b in zip(seconds["exported"], seconds[peer])]
                    row[f"exported_over_{peer}"] = ratios
                    print(f"  exported / {peer}: {spread(ratios)}", flush=True)
            rows.append(row)
    if flags.out:
        with open(flags.out, "w") as file:
            json.dump(rows, file, indent=1)


if __name__ == "__main__":
    main()
