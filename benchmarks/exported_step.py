#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Step time of models from Python: exported and trained here, ours in C++ where there is one, and PyTorch's FSDP2 in eager mode.

  .venv/bin/python benchmarks/exported_step.py [--models llama,gpt2,qwen3,bert,vit,conv] [--rounds 5] [--steps 12]
                                               [--executor planned|reference] [--out FILE.json]

Five architectures of transformers, and a residual convolutional net as a user writes one (torch_conv.py). Two ranks of a thread on two cores, to
which all are bound, float32, AdamW with clipping. Here the planned executor runs the step, as it does by default (exec.executor = planned). The
peers run in turn, in an order that turns round in each round; a run counts as the median of its steps after the third. The table has, for each
model, median [least, most] over rounds, and the ratios of the exported model to the others, round by round. Both sides have a malloc that keeps
its pages.

The exported model and FSDP2 begin with the same weights and read the same batches. The program ends where their losses differ by more than 1 %, or
their gradient norms by more than 5 %. Ours in C++ begins with weights of its own.

Needs torch, transformers and safetensors in this Python, and build/release/sfsdp. Run it alone: two ranks take two cores.
"""
import argparse, json, os, statistics, sys, tempfile, time

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path += [os.path.join(ROOT, "python"), os.path.join(ROOT, "benchmarks")]
import contest  # noqa: E402
from contest import ratios, spread  # noqa: E402

RANKS, SKIPPED = 2, 3
TEXT = dict(vocab_size=8192, hidden_size=512, num_hidden_layers=8, num_attention_heads=8, max_position_embeddings=512)
# name: (class of transformers or torch_conv, config, samples of a rank, tokens of a sample; 0: images)
MODELS = {
    "llama": ("LlamaForCausalLM", dict(TEXT, intermediate_size=1408, num_key_value_heads=4, tie_word_embeddings=False, rope_theta=500000.0,
                                       rms_norm_eps=1e-5), 2, 256),
    "gpt2": ("GPT2LMHeadModel", dict(vocab_size=8192, n_embd=512, n_layer=8, n_head=8, n_positions=512, resid_pdrop=0.0, embd_pdrop=0.0,
                                     attn_pdrop=0.0, activation_function="gelu_new", bos_token_id=1, eos_token_id=2), 2, 256),
    "qwen3": ("Qwen3ForCausalLM", dict(TEXT, intermediate_size=1408, num_key_value_heads=4, head_dim=64, tie_word_embeddings=False), 2, 256),
    "bert": ("BertForMaskedLM", dict(TEXT, intermediate_size=2048, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0), 2, 256),
    "vit": ("ViTForImageClassification", dict(hidden_size=384, intermediate_size=1536, num_hidden_layers=8, num_attention_heads=6,
                                              image_size=224, patch_size=16, num_labels=100, hidden_dropout_prob=0.0,
                                              attention_probs_dropout_prob=0.0), 2, 0),
    "conv": ("ConvNet", dict(widths=(64, 128, 256, 512), blocks=2, num_labels=100, image_size=32), 8, 0),
}
# Batch norm over eight images makes much of rounding: at 1e-3 the losses of both sides are 0.6 % apart after six steps.
LR = dict({name: 1e-3 for name in MODELS}, conv=1e-4)
OURS = {
    "llama": dict(name="llama3", flavor="debugmodel", dim=512, hidden_dim=1408, n_layers=8, n_heads=8, n_kv_heads=4, vocab_size=8192,
                  rope_theta=500000, rope_scaling="false"),
    "gpt2": dict(name="gpt", flavor="124M", dim=512, n_layers=8, n_heads=8, vocab_size=8192, max_positions=512),
    "qwen3": dict(name="llama3", flavor="debugmodel", dim=512, hidden_dim=1408, n_layers=8, n_heads=8, n_kv_heads=4, vocab_size=8192,
                  head_dim=64, rope_scaling="false", qk_norm="true"),
}


def make_model(name):
    import torch
    kind, config = MODELS[name][:2]
    torch.manual_seed(0)
    if kind == "ConvNet":
        from torch_conv import ConvNet
        return ConvNet(*(config[key] for key in ("widths", "blocks", "num_labels"))).train()
    import transformers
    made = getattr(transformers, kind)
    own = {} if MODELS[name][3] == 0 else dict(use_cache=False)
    return made(made.config_class(attn_implementation="sdpa", **own, **config)).train()


def make_images(name, count):
    import torch
    generator = torch.Generator().manual_seed(0)
    size, labels = MODELS[name][1]["image_size"], MODELS[name][1]["num_labels"]
    return dict(pixel_values=torch.randn(count, 3, size, size, generator=generator), labels=torch.randint(labels, (count,), generator=generator))


def batches_of(name, folder, steps, rank):
    """What sfsdp's loader gives this rank."""
    _, _, samples, tokens = MODELS[name]
    if tokens:
        ids = [batch[:, :tokens].contiguous() for batch in contest.token_batches(os.path.join(folder, name + ".bin"), steps, rank, RANKS, samples, tokens)]
        return [dict(input_ids=own, labels=own.clone()) for own in ids]
    from safetensors.torch import load_file
    images = load_file(os.path.join(folder, name, "0.safetensors"))
    count = len(images["labels"])
    return [{key: value[[row % count for row in rows]] for key, value in images.items()} for rows in contest.row_numbers(steps, rank, RANKS, samples)]


def fsdp2_worker(name, steps, folder):
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
    optimizer = torch.optim.AdamW(model.parameters(), lr=LR[name], betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1, fused=True)
    found = dict(seconds=[], losses=[], norms=[])
    for batch in batches_of(name, folder, steps, dist.get_rank()):
        dist.barrier()
        start = time.perf_counter()
        loss = model(**batch)["loss"]
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        loss.item()
        found["seconds"].append(time.perf_counter() - start)
        mean = loss.detach().clone()
        dist.all_reduce(mean)
        found["losses"].append(mean.item() / RANKS)
        found["norms"].append(norm.full_tensor().item())
    if dist.get_rank() == 0:
        print(contest.RESULT + json.dumps(found), flush=True)
    contest.leave()


def fsdp2(name, flags, folder):
    command = [*contest.torchrun(RANKS), os.path.abspath(__file__), "--worker", name, "--steps", str(flags.steps), "--folder", folder]
    return contest.result_of(contest.run_command(command, contest.environment(1, True))[0])


def sfsdp_run(name, flags, folder, model_flags):
    _, _, samples, tokens = MODELS[name]
    dump = tempfile.mkdtemp(dir=folder)
    data = ["tokens", "--training.dataset_path", os.path.join(folder, name + ".bin"), "--training.seq_len", str(tokens)] if tokens else [
        "tensors", "--training.dataset_path", os.path.join(folder, name)]
    contest.run_command([os.path.join(ROOT, "build/release/sfsdp"), "launch", "-n", str(RANKS), "--", "train", *model_flags, "--training.dataset", *data,
                         "--training.shuffle", "never", "--training.local_batch_size", str(samples), "--training.steps", str(flags.steps),
                         "--training.mixed_precision_param", "float32", "--optimizer.lr", str(LR[name]), "--lr_scheduler.warmup_steps", "0",
                         "--lr_scheduler.decay_ratio", "0", "--metrics.log_freq", "1", "--exec.executor", flags.executor, "--job.dump_folder", dump],
                        contest.environment(1, True))
    return contest.metrics_of(dump)


def exported(name, flags, folder):
    model = ["--model.name", "exported", "--model.path", os.path.join(folder, name + ".pt2")]
    if MODELS[name][3]:
        model += ["--model.inputs", "input_ids=tokens,labels=tokens"]
    return sfsdp_run(name, flags, folder, model)


def ours(name, flags, folder):
    model = []
    for key, value in OURS[name].items():
        model += [f"--model.{key}" if key in ("name", "flavor") else f"--model.args.{key}", str(value)]
    return sfsdp_run(name, flags, folder, model)


def prepare(name, folder):
    from safetensors.torch import save_file
    import sfsdp_export
    _, config, samples, tokens = MODELS[name]
    if tokens:
        contest.write_tokens(os.path.join(folder, name + ".bin"), config["vocab_size"])
    else:
        os.mkdir(os.path.join(folder, name))
        save_file(make_images(name, samples * RANKS * 4), os.path.join(folder, name, "0.safetensors"))
    sfsdp_export.export(make_model(name), batches_of(name, folder, 1, 0)[0], os.path.join(folder, name + ".pt2"))


def measure(name, flags, folder):
    prepare(name, folder)
    peers = [("exported", exported), ("fsdp2", fsdp2)] + ([("ours", ours)] if name in OURS else [])
    seconds = {peer: [] for peer, _ in peers}
    for number in range(flags.rounds):
        turn = number % len(peers)
        found = {peer: take(name, flags, folder) for peer, take in peers[turn:] + peers[:turn]}
        for peer in seconds:
            seconds[peer].append(statistics.median(found[peer]["seconds"][SKIPPED:]))
        contest.check_same({f"{name} {peer}": found[peer] for peer in ("fsdp2", "exported")}, flags.steps)
    print(f"{name}: " + ", ".join(f"{peer} {spread(values, unit=' s')}" for peer, values in seconds.items()), flush=True)
    row = dict(model=name, executor=flags.executor, seconds=seconds)
    for peer in seconds:
        if peer != "exported":
            row[f"exported_over_{peer}"] = ratios(seconds["exported"], seconds[peer])
            print(f"  exported / {peer}: {spread(row[f'exported_over_{peer}'])}", flush=True)
    return row


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--executor", default="planned", choices=("planned", "reference"))
    parser.add_argument("--out")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    parser.add_argument("--folder", help=argparse.SUPPRESS)
    flags = parser.parse_args()
    if flags.worker:
        return fsdp2_worker(flags.worker, flags.steps, flags.folder)
    contest.pin(RANKS)
    with tempfile.TemporaryDirectory() as folder:
        rows = [measure(name, flags, folder) for name in flags.models.split(",")]
    if flags.out:
        with open(flags.out, "w") as file:
            json.dump(rows, file, indent=1)


if __name__ == "__main__":
    main()
