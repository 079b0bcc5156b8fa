#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""The plan of a Llama of transformers, exported, beside the plan of ours with the same sizes.

Needs torch and transformers: PYTHON benchmarks/graph_parity.py [WIDTH LAYERS LENGTH]. Prints products, collectives, step and
peak of both on 8 H100, simulated.
"""
import collections, json, os, re, subprocess, sys, tempfile

root = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path.insert(0, os.path.join(root, "python"))
import torch, transformers
import sfsdp_export

width, layers, length = (int(a) for a in sys.argv[1:4]) if len(sys.argv) > 3 else (1024, 8, 1024)
heads, key_heads, vocabulary, inner = 16, 8, 32000, 11 * width // 4

with tempfile.TemporaryDirectory() as folder:
    path = os.path.join(folder, "model.pt2")
    config = transformers.LlamaConfig(
        vocab_size=vocabulary, hidden_size=width, intermediate_size=inner, num_hidden_layers=layers,
        num_attention_heads=heads, num_key_value_heads=key_heads, max_position_embeddings=length, use_cache=False,
        tie_word_embeddings=False, rope_theta=500000.0, rms_norm_eps=1e-5, attn_implementation="sdpa")
    model = transformers.LlamaForCausalLM(config).to(torch.bfloat16)
    ids = [torch.randint(vocabulary, (1, length)) for _ in range(2)]
    sfsdp_export.export(model, dict(input_ids=ids[0], labels=ids[1]), path)
    args = dict(dim=width, n_layers=layers, n_heads=heads, n_kv_heads=key_heads, vocab_size=vocabulary, hidden_dim=inner,
                rope_theta=500000)
    ours = ["--model.name", "llama3", "--model.flavor", "debugmodel"]
    for key, value in args.items():
        ours += [f"--model.args.{key}", str(value)]
    exported = ["--model.name", "exported", "--model.path", path, "--model.inputs", "input_ids=tokens,labels=tokens"]
    for name, model_args in (("ours", ours), ("exported", exported)):
        common = ["--training.dataset", "tokens", "--training.dataset_path", "none", "--training.seq_len", str(length),
                  "--training.local_batch_size", "1", "--machine", "dgx_h100", "--world", "8", *model_args]
        plan = os.path.join(folder, name + ".plan")

        def sfsdp(command, *options):
            return subprocess.run([os.path.join(root, "build/release/sfsdp"), command, *common, *options], check=True,
                                  capture_output=True, text=True).stdout

        sfsdp("plan", "--out", plan)
        step = json.loads(sfsdp("simulate", "--json"))
        with open(plan) as text:
            ops = collections.Counter(re.findall(r" = ([a-z_.]+) ", text.read()))
        counted = {op: n for op, n in sorted(ops.items())
                   if re.match(r"(joined_)?linear|matmul|sdpa|rms_norm|rope|cross|all_|reduce", op)}
        print(f"{name}: {1e3 * step['step_seconds']:.2f} ms, peak {step['peak_bytes'] / 2**20:.1f} MiB")
        print("  " + ", ".join(f"{op} {n}" for op, n in counted.items()))
