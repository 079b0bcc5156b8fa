# SPDX-License-Identifier: BSD-3-Clause
"""The models of peers.py: their sizes, in PyTorch, as flags of sfsdp, and as a folder of Hugging Face from which sfsdp takes PyTorch's weights."""
import json, os

LLAMA, GPT2 = "llama3", "gpt"
# name: (kind, sizes, sequences of a rank, tokens of one)
MODELS = {
    "125m": (LLAMA, dict(dim=768, n_layers=12, n_heads=12, n_kv_heads=4, hidden_dim=2048, vocab_size=32000), 2, 256),
    "debug": (LLAMA, dict(dim=256, n_layers=6, n_heads=16, n_kv_heads=16, hidden_dim=768, vocab_size=2048), 1, 2048),
    "gpt2": (GPT2, dict(dim=768, n_layers=12, n_heads=12, vocab_size=50257, max_positions=1024), 2, 256),
}
FLAVORS = {LLAMA: "debugmodel", GPT2: "124M"}
THETA, EPSILON = 500000.0, 1e-5


def make_model(name, own_weights=False):
    """The same weights in every process: matrices of standard deviation 0.02. own_weights: those that PyTorch gives its modules."""
    import torch
    kind, args, _, length = MODELS[name]
    torch.manual_seed(0)
    if kind == LLAMA:
        from torch_llama import make_llama
        model = make_llama(args, length, rope="real")
    else:
        from torch_gpt2 import make_gpt2
        model = make_gpt2(args)
    if not own_weights:
        for parameter in model.parameters():
            if parameter.dim() > 1:
                torch.nn.init.normal_(parameter, std=0.02)
    return model


def flags_of(name):
    kind, args = MODELS[name][:2]
    flags = ["--model.name", kind, "--model.flavor", FLAVORS[kind]]
    for key, value in dict(args, **(dict(rope_theta=THETA, rope_scaling="false") if kind == LLAMA else {})).items():
        flags += [f"--model.args.{key}", str(value)]
    return flags


def number_of_parameters(name):
    """Of a layer, and of what is in no layer."""
    kind, args = MODELS[name][:2]
    dim = args["dim"]
    if kind == GPT2:
        return 12 * dim**2 + 13 * dim, (args["vocab_size"] + args["max_positions"] + 2) * dim
    kv = dim // args["n_heads"] * args["n_kv_heads"]
    return 2 * dim**2 + 2 * dim * kv + 3 * dim * args["hidden_dim"] + 2 * dim, 2 * args["vocab_size"] * dim + dim


LLAMA_NAMES = {"attention_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm", "wq": "self_attn.q_proj", "wk": "self_attn.k_proj",
               "wv": "self_attn.v_proj", "wo": "self_attn.o_proj", "w1": "mlp.gate_proj", "w2": "mlp.down_proj", "w3": "mlp.up_proj"}
LLAMA_ENDS = {"tok_embeddings.weight": "model.embed_tokens.weight", "norm.weight": "model.norm.weight", "output.weight": "lm_head.weight"}


def llama_tensors(model, args):
    """Components 2i and 2i + 1 of a head turn together here, i and i + width / 2 there."""
    heads = dict(wq=args["n_heads"], wk=args["n_kv_heads"])
    tensors = {}
    for name, value in model.state_dict().items():
        if name in LLAMA_ENDS:
            tensors[LLAMA_ENDS[name]] = value
            continue
        layer, module = name.split(".")[1:3]
        if module in heads:
            value = value.unflatten(0, (heads[module], -1, 2)).transpose(1, 2).flatten(0, 2)
        tensors[f"model.layers.{layer}.{LLAMA_NAMES[module]}.weight"] = value.contiguous()
    return tensors


def gpt2_tensors(model):
    """Matrices of a block are [in, out] there."""
    transposed = ("c_attn.weight", "c_proj.weight", "c_fc.weight")
    return {f"transformer.{name}": value.t().contiguous() if name.endswith(transposed) else value for name, value in model.state_dict().items()}


def write_folder(name, folder):
    """config.json and model.safetensors, for checkpoint.initial_load_in_hf."""
    from safetensors.torch import save_file
    kind, args, _, length = MODELS[name]
    model = make_model(name)
    if kind == LLAMA:
        tensors = llama_tensors(model, args)
        config = dict(architectures=["LlamaForCausalLM"], model_type="llama", hidden_act="silu", hidden_size=args["dim"],
                      intermediate_size=args["hidden_dim"], num_hidden_layers=args["n_layers"], num_attention_heads=args["n_heads"],
                      num_key_value_heads=args["n_kv_heads"], head_dim=args["dim"] // args["n_heads"], vocab_size=args["vocab_size"],
                      rms_norm_eps=EPSILON, rope_theta=THETA, max_position_embeddings=length, tie_word_embeddings=False)
    else:
        tensors = gpt2_tensors(model)
        config = dict(architectures=["GPT2LMHeadModel"], model_type="gpt2", activation_function="gelu_new", n_embd=args["dim"],
                      n_layer=args["n_layers"], n_head=args["n_heads"], n_positions=args["max_positions"], vocab_size=args["vocab_size"],
                      layer_norm_epsilon=EPSILON, attn_pdrop=0.0, embd_pdrop=0.0, resid_pdrop=0.0)
    os.makedirs(folder, exist_ok=True)
    save_file(tensors, os.path.join(folder, "model.safetensors"), metadata={"format": "pt"})
    with open(os.path.join(folder, "config.json"), "w") as file:
        json.dump(config, file)
