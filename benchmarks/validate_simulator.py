#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Compares `sfsdp simulate` with published training runs and prints the table row by row.

  benchmarks/validate_simulator.py [--sfsdp build/release/sfsdp] [--only WORD] [--runs FILE.csv]

A group is one cluster, or one source: it gets one factor, fitted on one of its rows. The error is that of the others;
the mean over the choices of that row is reported. Left out: the factor is the median of the group's other rows, which is
easier to pass. With no factor the error is that of the prediction as it is, over the
published figure. Rows of one configuration are merged to their median first. Groups of
one row are predicted, but say nothing. No constants per row. Memory has no factor: the plan's peak against the published
one, and the runs that the plan says do not fit. Choosing: of two runs of one source and model that differ in
configuration, which is faster; Kendall's tau of the simulator beside that of a roofline.
"""
import argparse, csv, itertools, json, os, statistics, subprocess, sys, tempfile, tomllib

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(HERE)


def llama(dim, layers, heads, kv, hidden, vocab):
    return ["llama3", "8B", dict(dim=dim, n_layers=layers, n_heads=heads, n_kv_heads=kv, hidden_dim=hidden,
                                 vocab_size=vocab, rope_scaling=False)]


def mpt(dim, layers, heads):
    return ["gpt", "124M", dict(dim=dim, n_layers=layers, n_heads=heads, vocab_size=50368)]


MODELS = {
    "llama3-8b": ["llama3", "8B", {}], "llama3-70b": ["llama3", "70B", {}],
    "llama2-7b": llama(4096, 32, 32, 32, 11008, 32000), "llama2-13b": llama(5120, 40, 40, 40, 13824, 32000),
    "llama2-34b": llama(8192, 48, 64, 8, 22016, 32000), "llama2-70b": llama(8192, 80, 64, 8, 28672, 32000),
    "mpt-125m": mpt(768, 12, 12), "mpt-350m": mpt(1024, 24, 16), "mpt-760m": mpt(1536, 24, 12),
    "mpt-1b": mpt(2048, 24, 16), "mpt-3b": mpt(2560, 32, 20), "mpt-7b": mpt(4096, 32, 32),
    "mpt-13b": mpt(5120, 40, 40), "mpt-30b": mpt(7168, 48, 56), "mpt-70b": mpt(8192, 80, 64),
}
REMAT = {"none": "none", "full": "full", "full(graph)": "full", "selective": "op", "selective-layer": "2",
                 "selective-op": "op", "graph-SAC(default policy)": "op", "remat save_qkv_proj (near-full)": "full"}


def machine_of(row):
    if row["source"].startswith("IBM"):
        return "a100_400g" if row["gpu"].startswith("A100") else "h100_800g"
    if row["source"].startswith("NVIDIA"):
        return "dgx_h100"
    return {"H100-96G": "h100_96g_500w", "H100-SXM": "h100_cloud", "A100-80G": "a100_80g"}[row["gpu"]]


def execution_of(row):
    """What ran the step: XLA as our plan; torch.compile with Inductor; aot_eager and GraphTrainer, which has Inductor
    compile FlexAttention alone, run eager mode's kernels."""
    if row["compile"] in ("N", "graph") or "aot_eager" in row["notes"]:
        return "eager"
    return "compile" if row["compile"] == "Y" else "fused"


def attention_of(row):
    """MaxText's configurations ask for cuDNN's, as TorchTitan does since 2025-10 (#1776), llm-foundry's MPT ones for triton; all
    others leave it to PyTorch."""
    if row["compile"] == "XLA" or row["source"].endswith(CUDNN_FIRST):
        return "vendor"
    return "triton" if row["model"].startswith("mpt") else "default"


def system_of(row):
    """Whose memory: FSDP1 before FSDP2 was there; graphs of forward and backward have one stream; XLA has a plan."""
    if row["compile"] == "XLA":
        return "sfsdp"
    if row["compile"] == "graph" or "aot_eager" in row["notes"]:
        return "traced"
    is_fsdp1 = row["source"].startswith(("IBM", "MosaicML")) or row["notes"].startswith("FSDP1")
    return "fsdp1" if is_fsdp1 else "fsdp2"


# TorchTitan before 2025-07-28 (#1094): embedding, last norm and output belong to the root's unit.
ONE_ROOT_UNIT = ("torchtitan/benchmarks/llama3_h100_202412", "c31ff8b05", "e23bb707d", "5940ddeb5", "069bae286",
                 "docs@4d88a8a44^", "83c879f18", "986f6800f")


CUDNN_FIRST = ("PR#1881 (d9bdfbb20)", "27aa49077")
# PyTorch's nightly builds have one kernel for nn.RMSNorm since July 2025 (#153666).
FUSED_NORM = ("d48445865", *CUDNN_FIRST)
# TorchTitan before 2025-02-24 (#881) leaves optimizer.fused false; torch.optim's own default is foreach.
FOREACH = ("llama3_h100_202412", "5940ddeb5", "docs@4d88a8a44^", "83c879f18", "IBM fms-fsdp README",
           "MosaicML llm-foundry")


def trainer_of(row):
    """What the trainer's source says at the commit of a row: its units, its kernels, its loss, its allocator."""
    options = ["--simulate.norm", "fused" if row["source"].endswith(FUSED_NORM) else "composite",
               "--simulate.update", "foreach" if row["source"].endswith(FOREACH) else "fused",
               "--simulate.rope", "complex" if row["source"].startswith("torchtitan") else "real"]
    if row["source"].endswith(ONE_ROOT_UNIT):
        options += ["--parallelism.fsdp_units", "layers.*, [tok_embeddings, norm, output]"]
    if "83c879f18" in row["source"]:  # March 2024: float32 logits are a local of the loop; no expandable segments
        options += ["--simulate.loss", "kept", "--simulate.segments", "fixed"]
    if row["source"].startswith("MosaicML"):  # loss_fn: fused_crossentropy
        options += ["--simulate.loss", "fused"]
    if execution_of(row) == "compile":  # fms-fsdp, and TorchTitan before 2025-04-02 (#1033): the loss is not compiled
        options += ["--compile.components", "model"]
    if "chunked CE" in row["notes"]:
        options += ["--simulate.loss_chunks", "8"]
    if row["compile"] == "graph":  # its policy keeps all products
        options += ["--activation_checkpoint.products_again", "0"]
    return options


def remats_of(row):
    """Options to try, first to last, until all rows of the source fit into the memory.

    fms-fsdp has remat in a share of the blocks and publishes no share. TorchTitan's 986f6800f compares FlexAttention, for
    which it refuses lists of ops, with this run; both have one peak.
    """
    if row["source"].endswith("986f6800f"):
        return ["full"]
    if row["source"].startswith("IBM") and row["ac"] == "selective":
        return ["4", "3", "2", "full"]
    return [REMAT[row["ac"]]]


def cluster_of(row):
    return f"{row['source'].split()[0].split('/')[0]} {row['gpu']}"


def case_of(row, remat):
    """Options of `sfsdp simulate`, by name."""
    name, flavor, args = MODELS[row["model"]]
    gpus, fsdp, local = int(row["gpus"]), int(row["fsdp"]), int(row["local_bs"])
    if row["notes"].startswith("HSDP"):  # FSDP1's HYBRID_SHARD: shards in a node, replicas across them
        fsdp = 8
    command = ["--machine", f"{ROOT}/machines/{machine_of(row)}.toml", "--world",
               str(gpus), "--simulate.execution", execution_of(row), "--model.attention", attention_of(row),
               "--model.name", name, "--model.flavor", flavor, "--training.local_batch_size", str(local),
               "--training.global_batch_size", row["global_bs"], "--training.seq_len", row["seq"],
               "--parallelism.data_parallel_replicate_degree", str(gpus // fsdp),
               "--training.mixed_precision_param", "bfloat16", "--simulate.system", system_of(row), *trainer_of(row)]
    if name == "gpt":
        args = {**args, "max_positions": int(row["seq"])}
    if name == "gpt" or row["source"].startswith("IBM"):  # llm-foundry and fms-fsdp reduce in bf16
        command += ["--training.mixed_precision_reduce", "bfloat16"]
    for key, value in args.items():
        command += [f"--model.args.{key}", str(value).lower()]
    if remat in ("none", "full"):
        command += ["--activation_checkpoint.mode", remat]
    else:
        command += ["--activation_checkpoint.mode", "selective",
                    "--activation_checkpoint.selective_ac_option", remat]
    if "reshard_after_forward=never" in row["notes"] or "SHARD_GRAD_OP" in row["notes"]:
        command += ["--parallelism.fsdp_reshard_after_forward", "never"]
    return {name.removeprefix("--"): value for name, value in zip(command[::2], command[1::2])}


def predict_all(rows, sfsdp):
    """Sets row["by_remat"]: what each option for its remat gives, all in one process."""
    cases = [(row, remat) for row in rows for remat in remats_of(row)]
    with tempfile.NamedTemporaryFile("w", suffix=".jsonl") as file:
        file.writelines(json.dumps(case_of(row, remat)) + "\n" for row, remat in cases)
        file.flush()
        done = subprocess.run([sfsdp, "simulate", "--sweep", file.name], capture_output=True, text=True)
    if done.returncode:
        sys.exit(done.stderr)
    for (row, remat), line in zip(cases, done.stdout.splitlines(), strict=True):
        result = json.loads(line)
        if "error" in result:
            sys.exit(f"{row['source']} {row['model']}: {result['error']}")
        row.setdefault("by_remat", {})[remat] = result


def predict_source(rows):
    """Rows without a published share take the first that lets all of them fit; one for the source."""
    for row in rows:
        options = remats_of(row)
        if len(options) == 1:
            row["predicted"] = row["by_remat"][options[0]]
    unknown = [r for r in rows if "predicted" not in r]
    for share in remats_of(unknown[0]) if unknown else []:
        for row in unknown:
            row["predicted"] = row["by_remat"][share]
        if all(r["predicted"]["fits"] for r in unknown):
            break
    if unknown:
        print(f"{unknown[0]['source']}: remat of selective rows: {share}")


def merged(rows):
    """Rows of one source and configuration become one, with their median throughput."""
    groups = {}
    for row in rows:
        key = tuple(row[k] for k in ("source", "model", "gpus", "gpu", "fsdp", "seq", "local_bs", "global_bs", "ac",
                                     "compile")) + ("never" in row["notes"], system_of(row))
        groups.setdefault(key, []).append(row)
    for same in groups.values():
        yield {**same[0], "tps_per_gpu": statistics.median(float(r["tps_per_gpu"]) for r in same)}


def grouped(rows, key):
    groups = {}
    for row in rows:
        groups.setdefault(key(row), []).append(row)
    return groups


def set_errors(group, key):
    """Row i's error is the mean over the rows k that the group's factor may be fitted on."""
    ratios = [float(r["tps_per_gpu"]) / r["predicted"]["tokens_per_second"] for r in group]
    for i, row in enumerate(group):
        row["factor"] = ratios[i]
        others = [abs(ratios[k] / ratios[i] - 1) for k in range(len(group)) if k != i]
        row[key] = statistics.mean(others) if others else None
        rest = ratios[:i] + ratios[i + 1:]
        row[f"{key}_left_out"] = abs(statistics.median(rest) / ratios[i] - 1) if rest else None
        row["plain_error"] = abs(1 / ratios[i] - 1)


def planned_gib(row):
    return row["predicted"]["peak_bytes"] / 2**30


def print_rows(rows):
    percent = lambda error: "" if error is None else f"{100 * error:5.1f}%"
    print(f"{'source':38s} {'model':11s} {'gpus':>5s} {'seq':>6s} {'ac':12s} {'tok/s':>7s} {'predicted':>9s} {'factor':>6s}"
          f" {'source':>7s} {'cluster':>7s} {'GiB':>6s} {'plan':>6s}")
    for row in rows:
        print(f"{row['source'][:29] + ' ' + row['gpu']:38s} {row['model']:11s} {row['gpus']:>5s} {row['seq']:>6s}"
              f" {row['ac'][:12]:12s} {float(row['tps_per_gpu']):7.0f} {row['predicted']['tokens_per_second']:9.0f}"
              f" {row['factor']:6.3f} {percent(row['source_error']):>7s} {percent(row['cluster_error']):>7s}"
              f" {row['mem_gib'] or '':>6s} {planned_gib(row):6.1f}{'' if row['predicted']['fits'] else ' does not fit'}")


def roofline(row):
    """Tokens/s per device, if all flops ran at the peak, all bytes at the full bandwidths, and all of it at once."""
    with open(f"{ROOT}/machines/{machine_of(row)}.toml", "rb") as file:
        machine = tomllib.load(file)
    classes = row["predicted"]["op_classes"]
    collectives = [c for c in classes if c.split("_")[0] in ("all", "reduce", "broadcast")]
    in_node = int(row["fsdp"]) <= machine["devices_per_node"]
    link = machine["node" if in_node else "network"]["bandwidth_gb_s"] * (1 if in_node else machine["devices_per_node"])
    seconds = max(sum(c["flops"] for c in classes.values()) / (1e12 * machine["peak_bf16_tflops"]),
                  sum(v["bytes"] for k, v in classes.items() if k not in collectives) /
                  (1e9 * machine["memory_bandwidth_gb_s"]),
                  sum(classes[k]["bytes"] for k in collectives) / (1e9 * link))
    return row["predicted"]["tokens_per_second"] * row["predicted"]["step_seconds"] / seconds


def print_choices(rows):
    """Pairs that differ by more than 2 %, which is what one configuration varies by; what is predicted alike, to 0.1 %,
    counts for nothing."""
    pairs = [(a, b) for group in grouped(rows, lambda r: (r["source"], r["gpu"], r["model"])).values()
             for a, b in itertools.combinations(group, 2)
             if abs(float(a["tps_per_gpu"]) / float(b["tps_per_gpu"]) - 1) > 0.02]
    def tau(value):
        ratios = [value(a) / value(b) for a, b in pairs]
        signs = [0 if abs(ratio - 1) < 1e-3 else (ratio - 1) * (float(a["tps_per_gpu"]) - float(b["tps_per_gpu"]))
                 for (a, b), ratio in zip(pairs, ratios)]
        return sum((s > 0) - (s < 0) for s in signs) / len(signs)
    if pairs:
        print(f"choices: {len(pairs)} pairs, Kendall's tau {tau(lambda r: r['predicted']['tokens_per_second']):.2f},"
              f" of a roofline {tau(roofline):.2f}")


def print_summary(what, rows, key):
    errors = sorted(r[key] for r in rows)
    if errors:
        print(f"{what}: {len(errors)} rows, mean error {100 * statistics.mean(errors):.1f} %, 90th percentile"
              f" {100 * errors[min(len(errors) - 1, int(0.9 * len(errors)))]:.1f} %")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sfsdp", default=f"{ROOT}/build/release/sfsdp")
    parser.add_argument("--only", default="", help="rows whose source or model holds this word")
    parser.add_argument("--runs", default=f"{HERE}/published_runs.csv", help="a table of the same columns")
    options = parser.parse_args()
    with open(options.runs) as file:
        rows = [r for r in csv.DictReader(file) if options.only in r["source"] + " " + r["model"]]
    by_source = grouped(merged(rows), lambda r: r["source"])
    predict_all([row for group in by_source.values() for row in group], options.sfsdp)
    for group in by_source.values():
        predict_source(group)
    rows = [row for _, group in sorted(by_source.items()) for row in group]
    for key, group_of in (("source_error", lambda r: r["source"]), ("cluster_error", cluster_of)):
        for group in grouped(rows, group_of).values():
            set_errors(group, key)
    print_rows(rows)
    for key, what in (("plain_error", "no factor"), ("cluster_error", "a factor per cluster"),
                      ("cluster_error_left_out", "a factor per cluster, of the median of the others"),
                      ("source_error", "a factor per source")):
        print_summary(what, [r for r in rows if r[key] is not None], key)
    for cluster, group in sorted(grouped(rows, cluster_of).items()):
        print_summary(f"  {cluster}", [r for r in group if r["cluster_error"] is not None], "cluster_error")
        print_summary(f"  {cluster}, no factor", group, "plain_error")
    print_choices(rows)
    with_memory = [r for r in rows if r["mem_gib"]]
    if with_memory:
        off = [planned_gib(r) / float(r["mem_gib"]) - 1 for r in with_memory]
        for row, error in zip(with_memory, off):
            row["memory_error"] = abs(error)
        print_summary("memory", with_memory, "memory_error")
        print(f"  from {100 * min(off):+.1f} to {100 * max(off):+.1f} %")
    refused = [f"{r['source']} {r['model']} on {r['gpus']} {r['gpu']} ({planned_gib(r):.1f} GiB)" for r in rows
               if not r["predicted"]["fits"]]
    print(f"ran, but the plan says out of memory: {len(refused)}" + "".join(f"\n  {name}" for name in refused))


if __name__ == "__main__":
    main()
