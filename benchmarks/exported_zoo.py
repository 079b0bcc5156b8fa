#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""A zoo of architectures of transformers, exported, trained by PyTorch and by sfsdp, and compared.

  .venv/bin/python benchmarks/exported_zoo.py                    all of them, on CPU: five minutes on two cores
  .venv/bin/python benchmarks/exported_zoo.py --only llama,t5    some
  .venv/bin/python benchmarks/exported_zoo.py --list

Each model is made from a tiny random config when this runs; dropout is 0, so that losses can be compared. Five steps of AdamW with
clipping, in eager PyTorch as DDP would take them (the mean of the losses of equal parts of the batch), and here: one rank with one
micro-batch and with two, 2, 3 and 4 ranks, recomputation of everything, units by `auto` and
clipping at a norm that acts on 2 ranks. What must hold: loss within 1e-6, norm within
5e-6, each parameter's gradient of the first step within 5e-6 of its RMS (as the optimizer's first moment keeps it). Products, attention and loss are computed by LibTorch's kernels, as in
PyTorch, or with --executor planned_auto by those that the planned executor takes. Then gradients are held against a thousandth of the RMS of all gradients at least: where
a gradient is zero but for rounding, as of a bias that a softmax does not see, only rounding could be compared.

Needs torch, transformers and safetensors in this Python, and build/release/sfsdp. A JSON line per architecture goes to --out, a table to
the screen; the exit status is 1 if one that is not refused misses a bar.
"""
import argparse, contextlib, functools, glob, json, math, os, re, shutil, subprocess, sys, time

os.environ.setdefault("TRANSFORMERS_OFFLINE", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path.insert(0, os.path.join(ROOT, "python"))
import safetensors.torch, torch, transformers  # noqa: E402
import sfsdp_export  # noqa: E402

SAMPLES, LENGTH, STEPS, VOCAB = 12, 16, 5, 128
ADAMW = dict(lr=1e-3, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1, foreach=False)
# name, ranks, micro-batches, flags
SETTINGS = [("1 rank", 1, 1, []), ("1 rank, 2 micro-batches", 1, 2, []), ("2 ranks", 2, 1, []),
            ("2 ranks, recomputed", 2, 1, ["--activation_checkpoint.mode", "full"]),
            ("2 ranks, units auto", 2, 1, ["--parallelism.fsdp_wrap", "auto", "--parallelism.fsdp_machine", "dgx_h100"]),
            ("3 ranks", 3, 1, []), ("4 ranks", 4, 1, []),
            ("2 ranks, clipped", 2, 1, ["--training.max_norm", "0.05"])]  # below the norms of tiny models, most of which never reach 1
AUTOCAST = False  # --autocast
PLANNED = ["--exec.executor", "planned"]
EXECUTORS = {"reference": ["--exec.executor", "reference"], "planned": PLANNED + ["--exec.products", "aten", "--exec.attention", "aten", "--exec.rows", "aten"],
             "planned_auto": PLANNED}
BARS = dict(loss=1e-6, norm=5e-6, gradient=5e-6)

SMALL = dict(vocab_size=VOCAB, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
             max_position_embeddings=64, pad_token_id=0, bos_token_id=1, eos_token_id=2)
NO_DROP = dict(attention_dropout=0.0, hidden_dropout=0.0, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, attn_pdrop=0.0,
               embd_pdrop=0.0, resid_pdrop=0.0, dropout=0.0, activation_dropout=0.0, classifier_dropout=0.0, embed_dropout=0.0,
               attn_dropout=0.0, dropout_rate=0.0, drop_path_rate=0.0, summary_first_dropout=0.0, embedding_dropout=0.0, mlp_dropout=0.0,
               classifier_dropout_prob=0.0, resid_dropout=0.0, emb_dropout_prob=0.0, layerdrop=0.0, encoder_layerdrop=0.0,
               decoder_layerdrop=0.0, qa_dropout=0.0, seq_classif_dropout=0.0, ffn_dropout=0.0, output_dropout=0.0)
VISION = dict(hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4, image_size=16, patch_size=4,
              num_channels=3, num_labels=10)
SEQ2SEQ = dict(vocab_size=VOCAB, d_model=32, encoder_layers=2, decoder_layers=2, encoder_attention_heads=4, decoder_attention_heads=4,
               encoder_ffn_dim=64, decoder_ffn_dim=64, max_position_embeddings=64, pad_token_id=0, bos_token_id=1, eos_token_id=2,
               decoder_start_token_id=2, forced_eos_token_id=None)
T5 = dict(vocab_size=VOCAB, d_model=32, d_kv=8, d_ff=64, num_layers=2, num_decoder_layers=2, num_heads=4, decoder_start_token_id=0)
CONV = dict(num_labels=10, num_channels=3)

# name: (class, config, what a batch is)
ZOO = {
    "llama": ("LlamaForCausalLM", SMALL, "tokens"),
    "mistral": ("MistralForCausalLM", dict(SMALL, sliding_window=8), "tokens"),
    "qwen2": ("Qwen2ForCausalLM", SMALL, "tokens"),
    "qwen3": ("Qwen3ForCausalLM", dict(SMALL, head_dim=8), "tokens"),
    "gemma": ("GemmaForCausalLM", dict(SMALL, head_dim=8), "tokens"),
    "gemma2": ("Gemma2ForCausalLM", dict(SMALL, head_dim=8, sliding_window=8, query_pre_attn_scalar=8), "tokens"),
    "gemma3": ("Gemma3ForCausalLM", dict(SMALL, head_dim=8, sliding_window=8, query_pre_attn_scalar=8), "tokens"),
    "phi": ("PhiForCausalLM", SMALL, "tokens"),
    "phi3": ("Phi3ForCausalLM", SMALL, "tokens"),
    "gpt2": ("GPT2LMHeadModel", dict(vocab_size=VOCAB, n_embd=32, n_layer=2, n_head=4, n_positions=64, bos_token_id=1, eos_token_id=2), "tokens"),
    "gpt_neo": ("GPTNeoForCausalLM", dict(vocab_size=VOCAB, hidden_size=32, num_layers=2, num_heads=4, max_position_embeddings=64, window_size=8,
                                          attention_types=[[["global", "local"], 1]], bos_token_id=1, eos_token_id=2), "tokens"),
    "gpt_neox": ("GPTNeoXForCausalLM", SMALL, "tokens"),
    "gptj": ("GPTJForCausalLM", dict(vocab_size=VOCAB, n_embd=32, n_layer=2, n_head=4, n_positions=64, rotary_dim=4, bos_token_id=1, eos_token_id=2), "tokens"),
    "gpt_bigcode": ("GPTBigCodeForCausalLM", dict(vocab_size=VOCAB, n_embd=32, n_layer=2, n_head=4, n_positions=64, bos_token_id=1, eos_token_id=2), "tokens"),
    "opt": ("OPTForCausalLM", dict(SMALL, ffn_dim=64, word_embed_proj_dim=32), "tokens"),
    "bloom": ("BloomForCausalLM", dict(vocab_size=VOCAB, hidden_size=32, n_layer=2, n_head=4, bos_token_id=1, eos_token_id=2), "tokens"),
    "falcon": ("FalconForCausalLM", dict(SMALL, bias=True), "tokens"),
    "mpt": ("MptForCausalLM", dict(vocab_size=VOCAB, d_model=32, n_heads=4, n_layers=2, max_seq_len=64), "tokens"),
    "stablelm": ("StableLmForCausalLM", SMALL, "tokens"),
    "starcoder2": ("Starcoder2ForCausalLM", SMALL, "tokens"),
    "olmo": ("OlmoForCausalLM", SMALL, "tokens"),
    "olmo2": ("Olmo2ForCausalLM", SMALL, "tokens"),
    "cohere": ("CohereForCausalLM", SMALL, "tokens"),
    "granite": ("GraniteForCausalLM", SMALL, "tokens"),
    "smollm3": ("SmolLM3ForCausalLM", SMALL, "tokens"),
    "xglm": ("XGLMForCausalLM", dict(vocab_size=VOCAB, d_model=32, ffn_dim=64, num_layers=2, attention_heads=4, max_position_embeddings=64), "tokens"),
    "biogpt": ("BioGptForCausalLM", SMALL, "tokens"),
    "mixtral": ("MixtralForCausalLM", dict(SMALL, num_local_experts=4, num_experts_per_tok=2), "tokens"),
    "qwen2_moe": ("Qwen2MoeForCausalLM", dict(SMALL, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=32,
                                              shared_expert_intermediate_size=32, decoder_sparse_step=1), "tokens"),
    "qwen3_moe": ("Qwen3MoeForCausalLM", dict(SMALL, head_dim=8, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=32), "tokens"),
    "olmoe": ("OlmoeForCausalLM", dict(SMALL, num_experts=4, num_experts_per_tok=2), "tokens"),
    "deepseek_v3": ("DeepseekV3ForCausalLM", dict(SMALL, num_key_value_heads=4, n_routed_experts=4, num_experts_per_tok=2, n_group=2, topk_group=1,
                                                  moe_intermediate_size=32, kv_lora_rank=16, q_lora_rank=16, qk_rope_head_dim=4, qk_nope_head_dim=4,
                                                  v_head_dim=8, first_k_dense_replace=1), "tokens"),
    "mamba": ("MambaForCausalLM", dict(vocab_size=VOCAB, hidden_size=32, state_size=8, num_hidden_layers=2, time_step_rank=4), "tokens"),
    "mamba2": ("Mamba2ForCausalLM", dict(vocab_size=VOCAB, hidden_size=32, state_size=8, num_hidden_layers=2, num_heads=8, head_dim=8, n_groups=2,
                                         chunk_size=8), "tokens"),
    "falcon_mamba": ("FalconMambaForCausalLM", dict(vocab_size=VOCAB, hidden_size=32, state_size=8, num_hidden_layers=2, time_step_rank=4), "tokens"),
    "rwkv": ("RwkvForCausalLM", dict(vocab_size=VOCAB, context_length=64, hidden_size=32, num_hidden_layers=2, attention_hidden_size=32,
                                     intermediate_size=64), "tokens"),
    "bert": ("BertForMaskedLM", SMALL, "tokens"),
    "roberta": ("RobertaForMaskedLM", SMALL, "tokens"),
    "distilbert": ("DistilBertForMaskedLM", dict(vocab_size=VOCAB, dim=32, hidden_dim=64, n_layers=2, n_heads=4, max_position_embeddings=64), "tokens"),
    "electra": ("ElectraForMaskedLM", dict(SMALL, embedding_size=16), "tokens"),
    "albert": ("AlbertForMaskedLM", dict(SMALL, embedding_size=16), "tokens"),
    "deberta_v2": ("DebertaV2ForMaskedLM", dict(SMALL, relative_attention=True, pos_att_type=["p2c", "c2p"], position_buckets=8), "tokens"),
    "modernbert": ("ModernBertForMaskedLM", dict(SMALL, local_attention=8, global_attn_every_n_layers=2, cls_token_id=1, sep_token_id=2), "tokens"),
    "t5": ("T5ForConditionalGeneration", T5, "tokens"),
    "bart": ("BartForConditionalGeneration", SEQ2SEQ, "tokens"),
    "marian": ("MarianMTModel", SEQ2SEQ, "tokens"),
    "vit": ("ViTForImageClassification", VISION, "images"),
    "deit": ("DeiTForImageClassification", VISION, "images"),
    "beit": ("BeitForImageClassification", dict(VISION, use_relative_position_bias=True), "images"),
    "dinov2": ("Dinov2ForImageClassification", dict(VISION, image_size=16), "images"),
    "swin": ("SwinForImageClassification", dict(CONV, image_size=16, patch_size=2, embed_dim=16, depths=[2, 2], num_heads=[2, 4], window_size=4), "images"),
    "convnext": ("ConvNextForImageClassification", dict(CONV, image_size=16, hidden_sizes=[16, 32], depths=[1, 1], num_stages=2, patch_size=2), "images"),
    "resnet": ("ResNetForImageClassification", dict(CONV, embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1], layer_type="basic"), "images"),
    "clip": ("CLIPModel", dict(text_config=dict(SMALL), vision_config=VISION, projection_dim=16), "pairs"),
    "whisper": ("WhisperForConditionalGeneration", dict(SEQ2SEQ, num_mel_bins=8, max_source_positions=16, max_target_positions=32,
                                                        suppress_tokens=None, begin_suppress_tokens=None), "sounds"),
}


def make_model(name):
    architecture, keys, _ = ZOO[name]
    made = getattr(transformers, architecture)
    config = made.config_class(**keys)
    for part in [config] + [getattr(config, p) for p in ("text_config", "vision_config") if hasattr(config, p)]:
        for key, value in NO_DROP.items():
            if hasattr(part, key):
                setattr(part, key, value)
    torch.manual_seed(0)
    model = sfsdp_export.prepare(made(config).float())
    return under_autocast(model) if AUTOCAST else model


def under_autocast(model):
    forward = model.forward

    @functools.wraps(forward)
    def run(*args, **kwargs):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return forward(*args, **kwargs)

    model.forward = run
    return model


def make_batch(kind, seed):
    generator = torch.Generator().manual_seed(seed)
    ids = lambda *shape: torch.randint(3, VOCAB, shape, generator=generator)
    if kind == "tokens":
        return dict(input_ids=ids(SAMPLES, LENGTH), labels=ids(SAMPLES, LENGTH))
    if kind == "images":
        return dict(pixel_values=torch.randn(SAMPLES, 3, 16, 16, generator=generator), labels=torch.randint(10, (SAMPLES,), generator=generator))
    if kind == "pairs":
        tokens = ids(SAMPLES, LENGTH)
        tokens[:, -1] = 2
        return dict(input_ids=tokens, pixel_values=torch.randn(SAMPLES, 3, 16, 16, generator=generator))
    return dict(input_features=torch.randn(SAMPLES, 8, 32, generator=generator), labels=ids(SAMPLES, LENGTH))


def constants_of(kind):
    return dict(return_loss=True) if kind == "pairs" else {}


def part_of(batch, part, parts):
    return {name: value.chunk(parts)[part].contiguous() for name, value in batch.items()}


def clip_of(setting):
    flags = setting[3]
    return float(flags[flags.index("--training.max_norm") + 1]) if "--training.max_norm" in flags else 1.0


def train_eagerly(name, batches, parts, max_norm, dtype=torch.float32):
    """Losses, norms, and what the optimizer keeps of the first step's gradients."""
    model = make_model(name).to(dtype)
    batches = [{n: t.to(dtype) if t.is_floating_point() else t for n, t in batch.items()} for batch in batches]
    parameters = {n: p for n, p in model.named_parameters() if p.requires_grad}
    optimizer = torch.optim.AdamW(parameters.values(), **ADAMW)
    losses, norms, moments = [], [], {}
    for batch in batches:
        optimizer.zero_grad()
        total = 0.0
        for i in range(parts):
            loss = model(**part_of(batch, i, parts), **constants_of(ZOO[name][2])).loss / parts
            loss.backward()
            total += loss.item()
        losses.append(total)
        norms.append(torch.nn.utils.clip_grad_norm_(parameters.values(), max_norm).item())
        optimizer.step()
        if not moments:
            moments = {n: optimizer.state[p]["exp_avg"].clone() for n, p in parameters.items() if p in optimizer.state}
    return dict(losses=losses, norms=norms, moments=moments)


def export_model(name, batches, folder, parts):
    """An archive for batches of SAMPLES / parts: one for all where the batch may vary."""
    path = os.path.join(folder, "model.pt2")
    if os.path.exists(path):
        return path, []
    example = part_of(batches[0], 0, 2)
    try:
        notes = sfsdp_export.export(make_model(name), dict(example, **constants_of(ZOO[name][2])), path)
    except sfsdp_export.ExportError as error:
        return None, [str(error)]
    if not any("batch of" in note for note in notes):
        return path, notes
    os.rename(path, os.path.join(folder, "model_2.pt2"))
    return fixed_archive(name, batches, folder, parts), notes


def fixed_archive(name, batches, folder, parts):
    path = os.path.join(folder, f"model_{parts}.pt2")
    if not os.path.exists(path):
        example = dict(part_of(batches[0], 0, parts), **constants_of(ZOO[name][2]))
        sfsdp_export.export(make_model(name), example, path, "none")
    return path


def first_moments(folder):
    """exp_avg of each parameter in a checkpoint: whole tensors, or ranges "name[begin:end]" that lie in the ranks' files."""
    ranges = {}
    for file in glob.glob(folder + "/rank-*.safetensors"):
        for key, value in safetensors.torch.load_file(file).items():
            name, begin = re.fullmatch(r"(.*?)(?:\[(\d+):\d+\])?", key).groups()
            if name.endswith(".exp_avg"):
                ranges.setdefault(name[:-len(".exp_avg")], {})[int(begin or 0)] = value.reshape(-1)
    return {name: torch.cat([found[b] for b in sorted(found)]) for name, found in ranges.items()}


def command_of(kind, archive, data, ranks, micro_batches, run, flags, sfsdp):
    if kind == "tokens" and data is None:
        return None
    train = ["train", "--model.name", "exported", "--model.path", archive, "--model.loss", "loss", "--training.dataset", "tensors",
             "--training.dataset_path", data, "--training.shuffle", "never", "--training.local_batch_size", str(SAMPLES // ranks // micro_batches),
             "--training.global_batch_size", str(SAMPLES), "--training.steps", str(STEPS), "--training.mixed_precision_param", "float32",
             "--optimizer.lr", str(ADAMW["lr"]), "--optimizer.beta1", "0.9", "--optimizer.beta2", "0.95", "--optimizer.eps", "1e-8",
             "--optimizer.weight_decay", "0.1", "--lr_scheduler.warmup_steps", "0", "--lr_scheduler.decay_ratio", "0", "--job.dump_folder", run,
             "--metrics.log_freq", "1", "--checkpoint.enable", "--checkpoint.interval", "1", "--checkpoint.keep_latest_k", "0",
             "--checkpoint.no_last_save_model_only"] + flags
    return [sfsdp] + train if ranks == 1 else [sfsdp, "launch", "-n", str(ranks), "--log-rank", "0", "--"] + train


def worst_of(errors):
    """The largest; infinity where one is no number, which max() would pass over."""
    return max((error if math.isfinite(error) else math.inf for error in errors), default=0.0)


def relative(got, expected):
    return worst_of(abs(g - e) / max(abs(e), 1e-30) for g, e in zip(got, expected, strict=True))


def gradient_error(got, expected, floor):
    """floor: of what an error is a part of, in RMS of all gradients."""
    worst, where = 0.0, ""
    count = sum(moment.numel() for moment in expected.values())
    least = floor * math.sqrt(sum(moment.double().pow(2).sum().item() for moment in expected.values()) / count)
    for name, moment in expected.items():
        rms = moment.double().pow(2).mean().sqrt().item()
        if name not in got:
            if rms > 0 or math.isnan(rms):
                return math.inf, f"{name} is not there"
            continue
        off = (got[name].double() - moment.reshape(-1).double()).abs().max().item()
        error = worst_of([off / max(rms, least) if rms > 0 or math.isnan(rms) else off])
        if error > worst:
            worst, where = error, name
    return worst, where


def run_setting(name, setting, archive, data, expected, folder, sfsdp):
    title, ranks, micro_batches, flags = setting
    run = os.path.join(folder, "run")
    shutil.rmtree(run, ignore_errors=True)
    result = subprocess.run(command_of(ZOO[name][2], archive, data, ranks, micro_batches, run, flags, sfsdp), capture_output=True, text=True, timeout=600)
    if result.returncode:
        lines = [re.sub(r"\x1b\[[0-9;]*m", "", line) for line in (result.stderr + result.stdout).splitlines()]
        begin = next((i for i, line in enumerate(lines) if "error" in line), max(len(lines) - 4, 0))
        return dict(setting=title, refused="\n".join(lines[begin:begin + 4]))
    with open(os.path.join(run, "metrics.jsonl")) as file:
        steps = [json.loads(line) for line in file]
    steps = [step for step in steps if "loss" in step]
    floor = 1e-3 if flags[-2:] == PLANNED else 0
    moments = first_moments(os.path.join(run, "checkpoint", "step-1"))
    gradient, where = gradient_error(moments, expected["moments"], floor)
    return dict(setting=title, loss=relative([s["loss"] for s in steps], expected["losses"]),
                norm=relative([s["grad_norm"] for s in steps], expected["norms"]), gradient=gradient, parameter=where,
                norms=[s["grad_norm"] for s in steps], moment=moments.get(where))


def against_float64(name, found, batches, expected, parts, max_norm):
    """Where a bar is missed: how far PyTorch in float32 is from itself in float64, and how far we are."""
    try:
        exact = train_eagerly(name, batches, parts, max_norm, torch.float64)
    except RuntimeError as error:  # of models that name float32's least number
        return f"{found['setting']}: no float64 to compare with: {error}"
    where = found["parameter"]
    theirs = ours = 0.0
    if where in exact["moments"] and found["moment"] is not None:
        theirs, ours = (gradient_error({where: got.reshape(-1)}, {where: exact["moments"][where]}, 0)[0]
                        for got in (expected["moments"][where], found["moment"]))
    return (f"{found['setting']}: norm is {relative(found['norms'], exact['norms']):.1e} from PyTorch's in float64,"
            f" PyTorch's in float32 {relative(expected['norms'], exact['norms']):.1e}; {where or 'each gradient'} {ours:.1e} and {theirs:.1e}")


def run_one(name, flags):
    began = time.time()
    folder = os.path.join(flags.work, name)
    if not flags.keep:
        shutil.rmtree(folder, ignore_errors=True)
    os.makedirs(folder, exist_ok=True)
    batches = [make_batch(ZOO[name][2], seed) for seed in range(STEPS)]
    archive, notes = export_model(name, batches, folder, 1)
    row = dict(name=name, architecture=ZOO[name][0], notes=notes, settings=[])
    if archive is None:
        return dict(row, refused=notes[0], seconds=time.time() - began)
    data = os.path.join(folder, "batches.safetensors")
    safetensors.torch.save_file({n: torch.cat([b[n] for b in batches]) for n in batches[0]}, data)
    eager = {}
    for title, ranks, micro_batches, own in (s for s in SETTINGS if not flags.settings or s[0] in flags.settings.split("; ")):
        setting = (title, ranks, micro_batches, own + EXECUTORS[flags.executor])
        parts, max_norm = setting[1] * setting[2], clip_of(setting)
        if (parts, max_norm) not in eager:
            eager[parts, max_norm] = train_eagerly(name, batches, parts, max_norm)
        if os.path.basename(archive) != "model.pt2":
            archive = fixed_archive(name, batches, folder, parts)
        found = run_setting(name, setting, archive, data, eager[parts, max_norm], folder, flags.sfsdp)
        row["settings"].append(found)
        if "refused" in found:
            row["refused"] = found["refused"]
            break
        if not within_bars(found) and not AUTOCAST:  # which keeps float64 out of its casts
            row["notes"] = row["notes"] + [against_float64(name, found, batches, eager[parts, max_norm], parts, max_norm)]
        del found["moment"]
    if not flags.keep:
        shutil.rmtree(folder, ignore_errors=True)
    return dict(row, seconds=time.time() - began)


def expect_nan_to_miss():
    nan, one = torch.tensor([1.0, math.nan]), torch.ones(2)
    assert relative([1.0, math.nan], [1.0, 1.0]) == relative([1.0, 1.0], [1.0, math.nan]) == math.inf
    assert gradient_error({"w": nan}, {"w": one}, 0)[0] == gradient_error({"w": one}, {"w": nan}, 0)[0] == math.inf
    assert gradient_error({}, {"w": one}, 0)[0] == gradient_error({}, {"w": nan}, 0)[0] == math.inf
    assert gradient_error({"w": nan}, {"w": torch.zeros(2)}, 0)[0] == math.inf and gradient_error({"w": one}, {"w": one}, 0)[0] == 0


def within_bars(setting):
    return all(setting[bar] <= BARS[bar] for bar in BARS)


def verdict(row):
    if "refused" in row:
        return "refused"
    return "ok" if all(map(within_bars, row["settings"])) else "MISSED"


def line_of(row):
    worst = lambda bar: max((s[bar] for s in row["settings"] if bar in s), default=float("nan"))
    line = f"{row['name']:14} {verdict(row):8} {worst('loss'):8.1e} {worst('norm'):8.1e} {worst('gradient'):8.1e} {row['seconds']:6.0f} s"
    for note in row["notes"] if "refused" not in row else []:
        line += f"\n    note: {note}"
    return line + (f"\n    {row['refused']}" if "refused" in row else "")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", help="names, with commas")
    parser.add_argument("--settings", help=f"some of: {'; '.join(s[0] for s in SETTINGS)}", default="")
    parser.add_argument("--autocast", action="store_true", help="forward and loss under torch.autocast to bfloat16")
    parser.add_argument("--executor", choices=EXECUTORS, default="reference")
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--work", default=os.path.join(ROOT, "build", "exported_zoo"), help="folder for archives and runs")
    parser.add_argument("--keep", action="store_true", help="leave archives there, and use those that are there")
    parser.add_argument("--out", help="JSON lines; default: results.jsonl in --work")
    parser.add_argument("--sfsdp", default=os.path.join(ROOT, "build", "release", "sfsdp"))
    flags = parser.parse_args()
    if flags.list:
        print("\n".join(ZOO))
        return
    expect_nan_to_miss()
    global AUTOCAST
    AUTOCAST = flags.autocast
    os.environ["OMP_NUM_THREADS"] = "1"
    torch.set_num_threads(1)
    os.makedirs(flags.work, exist_ok=True)
    print(f"torch {torch.__version__}, transformers {transformers.__version__}\n{'model':14} {'':8} {'loss':>8} {'norm':>8} {'gradient':>8}")
    rows = []
    with open(flags.out or os.path.join(flags.work, "results.jsonl"), "a") as out:
        for name in flags.only.split(",") if flags.only else ZOO:
            with contextlib.redirect_stderr(open(os.devnull, "w")) if flags.only is None else contextlib.nullcontext():
                rows.append(run_one(name, flags))
            out.write(json.dumps(rows[-1]) + "\n")
            out.flush()
            print(line_of(rows[-1]), flush=True)
    counts = {v: sum(verdict(r) == v for r in rows) for v in ("ok", "refused", "MISSED")}
    print(", ".join(f"{count} {word}" for word, count in counts.items()))
    sys.exit(counts["MISSED"] > 0)


if __name__ == "__main__":
    main()
