#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Exported models over tensor parallelism: each is trained by PyTorch, here by one rank, and by two that share its products.

  .venv/bin/python benchmarks/exported_over_tp.py                     all of them, on CPU
  .venv/bin/python benchmarks/exported_over_tp.py --only llama,t5     some
  .venv/bin/python benchmarks/exported_over_tp.py --whole-rows        without sequence parallelism

The models are those of exported_zoo.py, and one of this file's own that is no model of transformers. Twenty steps of AdamW with clipping,
float32, the same batches, --exec.products by_processor. RULES says what is cut of each, as parallelism.tensor_parallel_plan
has it. What must hold of two ranks against one, and against PyTorch: each loss within 1e-6 of itself, the norm of the first step's
gradient within 5e-6. Where PyTorch in float32 differs, PyTorch in float64 decides, held to the same bars. A model that is refused by name
is no miss: the refusal is shown.

Archives, batches and PyTorch's numbers stay in --work and are used again. To make them needs torch, transformers and safetensors in this
Python; the runs need build/release/sfsdp alone. A line per model goes to the screen; the exit status is 1 if one that is not refused
misses a bar.
"""
import argparse, json, math, os, re, shutil, subprocess, sys

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
STEPS, SAMPLES = 20, 12
BARS = dict(loss=1e-6, norm=5e-6)
LLAMA = ["*.q_proj|k_proj|v_proj|gate_proj|up_proj=0", "*.o_proj|down_proj=1"]
ENDS = ["*.embed_tokens=0", "lm_head=0"]
TIED = ["*.embed_tokens=0"]
NEOX = ["*.query_key_value|dense_h_to_4h=0", "*.attention.dense|dense_4h_to_h=1"]
FALCON = ["*.query_key_value|dense_h_to_4h=0", "*.self_attention.dense|dense_4h_to_h=1", "*.word_embeddings=0"]
BERT = ["*.query|key|value=0", "*.intermediate.dense=0", "*.attention.output.dense=1", "*.layer.?.output.dense=1", "*.word_embeddings=0"]
SEQ2SEQ = ["*.q_proj|k_proj|v_proj|fc1=0", "*.out_proj|fc2=1"]
EXPERTS = ["*.experts.gate_up_proj=1:2", "*.experts.down_proj=2"]

# name: what is cut
RULES = {
    "llama": LLAMA + ENDS,
    "mistral": LLAMA + ENDS,
    "qwen2": LLAMA + ENDS,
    "qwen3": LLAMA + ENDS,
    "gemma": LLAMA + TIED,
    "gemma2": LLAMA + TIED,
    "gemma3": LLAMA + TIED,
    "phi": ["*.q_proj|k_proj|v_proj|fc1=0", "*.dense|fc2=1"] + ENDS,
    "phi3": ["*.gate_up_proj=0:2", "*.o_proj|down_proj=1"] + ENDS,
    "gpt2": ["*.c_attn.weight=1:3", "*.c_attn.bias=0:3", "*.c_fc.weight=1", "*.c_fc.bias=0", "*.c_proj.weight=0", "*.wte=0"],
    "gpt_neo": ["*.q_proj|k_proj|v_proj|c_fc=0", "*.out_proj|c_proj=1", "*.wte=0"],
    "gpt_neox": NEOX + ["*.embed_in=0", "lm_head=0"],
    "gptj": ["*.q_proj|k_proj|v_proj|fc_in=0", "*.out_proj|fc_out=1", "*.wte=0", "lm_head=0"],
    "gpt_bigcode": ["*.c_fc=0", "*.c_proj=1", "*.wte=0"],
    "opt": SEQ2SEQ + TIED,
    "bloom": FALCON,
    "falcon": ["*.dense_h_to_4h=0", "*.self_attention.dense|dense_4h_to_h=1", "*.word_embeddings=0"],
    "mpt": ["*.Wqkv=0:3", "*.up_proj=0", "*.out_proj|down_proj=1", "*.wte=0"],
    "starcoder2": ["*.q_proj|k_proj|v_proj|c_fc=0", "*.o_proj|c_proj=1"] + TIED,
    "mixtral": ["*.q_proj|k_proj|v_proj=0", "*.o_proj=1"] + EXPERTS + ENDS,
    "bert": BERT,
    "roberta": BERT,
    "distilbert": ["*.q_lin|k_lin|v_lin|lin1=0", "*.out_lin|lin2=1", "*.word_embeddings=0"],
    "modernbert": ["*.attn.Wqkv=0:3", "*.mlp.Wi=0:2", "*.Wo=1", "*.tok_embeddings=0"],
    "t5": ["*.q|k|v|wi=0", "*.o|wo=1", "shared=0"],
    "bart": SEQ2SEQ + ["*.shared=0"],
    "whisper": SEQ2SEQ + TIED,
    "vit": ["*.q_proj|k_proj|v_proj|fc1=0", "*.o_proj|fc2=1"],
    "own": ["*.q|k|v|up=0", "*.o|down=1", "table=0", "head=0"],
}


def own_model(torch, transformers, vocabulary):
    """A decoder of nobody's library: RMS norms, heads, squared ReLU, the loss in forward."""
    nn, F = torch.nn, torch.nn.functional

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm_1, self.norm_2 = nn.RMSNorm(32), nn.RMSNorm(32)
            self.q, self.k, self.v, self.o = (nn.Linear(32, 32, bias=False) for _ in range(4))
            self.up, self.down = nn.Linear(32, 64), nn.Linear(64, 32)

        def forward(self, x):
            heads = [part(self.norm_1(x)).unflatten(-1, (4, 8)).transpose(1, 2) for part in (self.q, self.k, self.v)]
            x = x + self.o(F.scaled_dot_product_attention(*heads, is_causal=True).transpose(1, 2).flatten(2))
            return x + self.down(torch.relu(self.up(self.norm_2(x))).square())

    class Own(nn.Module):
        config_class = dict

        def __init__(self, config):
            super().__init__()
            self.table = nn.Embedding(vocabulary, 32)
            self.blocks = nn.ModuleList(Block() for _ in range(2))
            self.norm, self.head = nn.RMSNorm(32), nn.Linear(32, vocabulary, bias=False)

        def forward(self, input_ids, labels):
            x = self.table(input_ids)
            for block in self.blocks:
                x = block(x)
            loss = F.cross_entropy(self.head(self.norm(x)).flatten(0, 1), labels.flatten())
            return transformers.modeling_outputs.CausalLMOutput(loss=loss)

    return Own


def zoo_of_all():
    """exported_zoo.py, of which only those who make an archive or PyTorch's numbers need the libraries."""
    import exported_zoo as zoo
    os.environ["OMP_NUM_THREADS"] = "1"
    zoo.torch.set_num_threads(1)
    zoo.STEPS = STEPS
    assert zoo.SAMPLES == SAMPLES
    zoo.transformers.Own = own_model(zoo.torch, zoo.transformers, zoo.VOCAB)  # exported_zoo.py finds its models there
    zoo.ZOO["own"] = ("Own", {}, "tokens")
    return zoo


def kept(path, make):
    """What a file of JSON has, made if it is not there."""
    if not os.path.exists(path):
        found = make()
        with open(path, "w") as file:
            json.dump(found, file)
    with open(path) as file:
        return json.load(file)


def train_by_pytorch(zoo, name, dtype):
    batches = [zoo.make_batch(zoo.ZOO[name][2], seed) for seed in range(STEPS)]
    eager = zoo.train_eagerly(name, batches, 1, 1.0, dtype)
    return list(zip(eager["losses"], eager["norms"]))


def prepare(name, folder):
    """Makes archive and batches, and gives the archive's path, notes of the export and PyTorch's losses and norms."""
    zoo = zoo_of_all()
    batches = [zoo.make_batch(zoo.ZOO[name][2], seed) for seed in range(STEPS)]
    archive, notes = zoo.export_model(name, batches, folder, 1)
    if archive is None:
        return dict(archive=None, notes=notes)
    zoo.safetensors.torch.save_file({n: zoo.torch.cat([b[n] for b in batches]) for n in batches[0]}, os.path.join(folder, "batches.safetensors"))
    return dict(archive=archive, notes=notes, steps=train_by_pytorch(zoo, name, zoo.torch.float32))


def prepare_float64(name):
    zoo = zoo_of_all()
    return train_by_pytorch(zoo, name, zoo.torch.float64)


def command_of(name, archive, ranks, flags):
    """Two ranks share the products, and have the same samples."""
    folder = os.path.join(flags.work, name)
    train = ["train", "--model.name", "exported", "--model.path", archive, "--model.loss", "loss", "--training.dataset", "tensors",
             "--training.dataset_path", os.path.join(folder, "batches.safetensors"), "--training.shuffle", "never",
             "--training.local_batch_size", str(SAMPLES), "--training.steps", str(STEPS), "--training.mixed_precision_param", "float32",
             "--optimizer.lr", "1e-3", "--optimizer.beta1", "0.9", "--optimizer.beta2", "0.95", "--optimizer.eps", "1e-8",
             "--optimizer.weight_decay", "0.1", "--lr_scheduler.warmup_steps", "0", "--lr_scheduler.decay_ratio", "0",
             "--job.dump_folder", os.path.join(folder, "run"), "--metrics.log_freq", "1", "--exec.products", "by_processor"]
    if ranks == 1:
        return [flags.sfsdp] + train
    train += ["--parallelism.tensor_parallel_degree", "2", "--parallelism.tensor_parallel_plan", ",".join(RULES[name])]
    if flags.whole_rows:
        train.append("--parallelism.no_enable_sequence_parallel")
    return [flags.sfsdp, "launch", "-n", "2", "--log-rank", "0", "--"] + train


class Failed(Exception):
    """A run that trained no twenty steps; refused: by an error that names a cure, no crash, no internal error."""

    def __init__(self, text):
        lines = [line for line in re.sub(r"\x1b\[[0-9;]*m", "", text).splitlines() if line.strip()]
        begin = next((i for i, line in enumerate(lines) if re.search(r"\berror( on rank \d+)?: (?!\w*Error\b)", line)), None)
        self.refused = begin is not None and any("expected" in line for line in lines[begin:begin + 5])
        super().__init__("\n".join(lines[-5:] if begin is None else lines[begin:begin + 5]))


def steps_of(command):
    """Losses and norms of a run.  raises: Failed"""
    run = command[command.index("--job.dump_folder") + 1]
    shutil.rmtree(run, ignore_errors=True)
    result = subprocess.run(command, capture_output=True, text=True, timeout=600)
    if result.returncode:
        raise Failed(result.stderr + result.stdout)
    with open(os.path.join(run, "metrics.jsonl")) as file:
        steps = [json.loads(line) for line in file]
    return [(step["loss"], step["grad_norm"]) for step in steps if "loss" in step]


def collectives_of(command):
    """What a step over two ranks sends, by kind, as `inspect` counts it."""
    train = command[command.index("train") + 1:]
    result = subprocess.run([command[0], "inspect", "--world", "2", "--json"] + train, capture_output=True, text=True, timeout=600)
    if result.returncode:
        return (result.stderr + result.stdout).strip().splitlines()[0]
    found = json.loads(result.stdout)["collectives"]
    return ", ".join(f"{value['count']} {kind}" for kind, value in found.items() if value["count"])


def relative(got, expected):
    """The largest difference; infinity where one is no number, or steps are missing."""
    if len(got) != len(expected):
        return math.inf
    errors = [abs(g - e) / max(abs(e), 1e-30) for g, e in zip(got, expected)]
    return max(error if math.isfinite(error) else math.inf for error in errors)


def differences(steps, other):
    return dict(loss=relative([s[0] for s in steps], [s[0] for s in other]), norm=relative([steps[0][1]], [other[0][1]]))


def run_one(name, flags):
    folder = os.path.join(flags.work, name)
    os.makedirs(folder, exist_ok=True)
    eager = kept(os.path.join(folder, "eager.json"), lambda: prepare(name, folder))
    if eager["archive"] is None:
        return dict(name=name, refused="\n".join(eager["notes"]))
    try:
        one, two = (steps_of(command_of(name, eager["archive"], ranks, flags)) for ranks in (1, 2))
    except Failed as failed:
        return {"name": name, "refused" if failed.refused else "failed": str(failed)}
    theirs = eager["steps"]
    row = dict(name=name, one=differences(two, one), eager=differences(two, theirs), first=relative([two[0][0]], [theirs[0][0]]),
               collectives=collectives_of(command_of(name, eager["archive"], 2, flags)))
    if not within_bars(row["eager"]):
        exact = kept(os.path.join(folder, "exact.json"), lambda: prepare_float64(name))
        row.update(exact=differences(two, exact), rounding=differences(theirs, exact))
    return row


def within_bars(found):
    return all(found[bar] <= BARS[bar] for bar in BARS)


def misses(row):
    """A run over tp that is off, or that failed and was not refused."""
    if "refused" in row or "failed" in row:
        return "failed" in row
    return not within_bars(row["one"]) or not (within_bars(row["eager"]) or within_bars(row["exact"]))


def line_of(row):
    cut = " ".join(RULES[row["name"]])
    for ending in ("refused", "failed"):
        if ending in row:
            return f"{row['name']:12} {ending:7} | {cut}\n    " + row[ending].replace("\n", "\n    ")
    numbers = " ".join(f"{row[other][bar]:8.1e}" for other in ("one", "eager") for bar in BARS)
    line = f"{row['name']:12} {'MISSED' if misses(row) else 'ok':7} {numbers} {row['first']:8.1e} | {row['collectives']} | {cut}"
    if "exact" in row:
        line += f"\n    note: from PyTorch in float64, losses over tp are {row['exact']['loss']:.1e}, PyTorch's in float32 {row['rounding']['loss']:.1e}"
    return line


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", help="names, with commas")
    parser.add_argument("--whole-rows", action="store_true", help="without sequence parallelism")
    parser.add_argument("--work", default=os.path.join(ROOT, "build", "exported_over_tp"), help="folder for archives and runs")
    parser.add_argument("--sfsdp", default=os.path.join(ROOT, "build", "release", "sfsdp"))
    flags = parser.parse_args()
    assert Failed("error: no\n  expected yes").refused and not Failed("error: InternalError: no\n  expected yes").refused and not Failed("it wrote no errors").refused
    assert relative([1.0, math.nan], [1.0, 1.0]) == relative([1.0], [1.0, 1.0]) == math.inf
    names = flags.only.split(",") if flags.only else list(RULES)
    print(f"{'':20} {'against one rank':17} {'against PyTorch':26}\n{'model':12} {'':7} " + " ".join(f"{n:8}" for n in ("loss", "norm", "loss", "norm", "step 1")))
    rows = []
    for name in names:
        rows.append(run_one(name, flags))
        print(line_of(rows[-1]), flush=True)
    missed = sum(map(misses, rows))
    refused = sum("refused" in row for row in rows)
    print(f"{len(rows) - missed - refused} ok, {refused} refused, {missed} MISSED")
    sys.exit(missed > 0)


if __name__ == "__main__":
    main()
