#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Exports a PyTorch model for sfsdp: its training graph, parameters and buffers, as an archive of torch.export.

From Python, with torch alone:

    import sfsdp_export
    sfsdp_export.export(model, dict(input_ids=ids, labels=labels), "model.pt2")

From a shell, with transformers: a local folder of Hugging Face, a config.json (random weights), or the name of an
architecture (random weights, small sizes):

    python3 python/sfsdp_export.py FOLDER --batch 2 --seq 1024 --dtype bf16 -o model.pt2

docs/exported_models.md says what is done with the archive.
"""
import argparse, contextlib, functools, os, re, shutil, sys, tempfile, traceback

import torch


class ExportError(Exception):
    """What failed, where, and what to change."""


def export(model, example, path, dynamic="auto"):
    """Writes the training graph of `model` to `path`, and returns notes for a human: what was baked in, and why.

    example: the inputs by name, the batch in dimension 0 of each tensor
    dynamic: "auto": batch, and length of token ids, may vary where torch.export can do that; "none": sizes of the example
             are baked in; else what torch.export.export takes as dynamic_shapes
    raises:  ExportError
    """
    check_example(example)
    model.train()
    notes, failures = [], []
    for shapes in candidates(example, dynamic, failures):
        try:
            with masks_of_training(example), marked_checkpoints(model, notes):
                program = torch.export.export(model, (), dict(example), dynamic_shapes=shapes, strict=False)
            break
        except Exception as error:  # whatever the model's own code raises too
            failures.append(error)
    else:
        raise ExportError(explain(failures[-1]))
    if shapes is None and failures:
        notes.append(f"torch.export cannot let sizes vary: {first_line(failures[-1])}")
    notes += fixed_sizes(program, example)
    notes += unread(program, example)
    write(program, os.fspath(path))
    return notes


def write(program, path):
    """Under its own name in a folder beside `path`, and there once it is read back: a failure leaves nothing, and what was there."""
    try:
        folder = tempfile.mkdtemp(prefix=".sfsdp_export-", dir=os.path.dirname(path) or ".")
    except OSError as error:
        raise ExportError(f"{path} cannot be written: {error.strerror}; expected a name in a folder that is there") from error
    try:
        beside = os.path.join(folder, os.path.basename(path))
        torch.export.save(program, beside)
        check_loads(program, beside)
        os.replace(beside, path)
    except ExportError:
        raise
    except OSError as error:
        raise ExportError(f"{path} cannot be written: {error}") from error
    except Exception as error:
        raise ExportError(explain(error)) from error
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def masks_of_training(example):
    """transformers writes attention masks out while torch.export traces: for graphs that generate, one token at a time, and
    for sequences packed by position_ids, at which it may not look. In training it leaves a causal mask, or none, to the attention
    op where a batch has no mask, and one sequence in each row where it has no positions. So does this graph. With positions
    the mask is written as sfsdp/models/documents.h does it, which sfsdp's attention op reads as the number of each token's sequence.
    Source: _ignore_causal_mask_sdpa and find_packed_sequence_indices of transformers' masking_utils.py."""
    masking = sys.modules.get("transformers.masking_utils")
    others = {"is_torchdynamo_exporting": lambda: False}
    if "position_ids" not in example:
        others["find_packed_sequence_indices"] = lambda position_ids: None
    elif masking is not None:
        others.update(masks_of_sequences(masking))
    before = {name: getattr(masking, name) for name in others if hasattr(masking, name)}
    try:
        for name in before:
            setattr(masking, name, others[name])
        yield
    finally:
        for name, own in before.items():
            setattr(masking, name, own)


def masks_of_sequences(masking):
    """In place of functions of transformers' masking_utils.py: the causal mask of packed sequences, with the same truth at each
    place. Positions of one sequence rise by 1, so a key whose position is no greater is no later. What else a model adds to a
    mask (a window, padding, its own function) is made as transformers makes it."""
    names = ["remap_positions_for_packed_sequence", "packed_sequence_mask_function", "and_masks"]
    if not all(hasattr(masking, name) for name in names + ["causal_mask_function", "sdpa_mask", "ALL_MASK_ATTENTION_FUNCTIONS"]):
        return {}
    remap, of_sequences, both = (getattr(masking, name) for name in names)
    registered = masking.ALL_MASK_ATTENTION_FUNCTIONS

    def remap_marked(function, position_ids):
        remapped = remap(function, position_ids)
        remapped.is_causal = function is masking.causal_mask_function
        return remapped

    def of_sequences_marked(sequences):
        function = of_sequences(sequences)
        function.sequences = sequences
        return function

    def both_marked(*functions):
        function = both(*functions)
        if len(functions) == 2 and getattr(functions[0], "is_causal", False):
            function.sequences = getattr(functions[1], "sequences", None)
        return function

    class Masks(type(registered)):
        def __getitem__(self, name):
            usual = registered[name]  # perhaps a function of the user's in place of transformers' own
            return written_out(usual) if usual is masking.sdpa_mask else usual

    def written_out(usual):
        def mask(*args, mask_function=None, attention_mask=None, **kwargs):
            sequences = getattr(mask_function, "sequences", None)
            if sequences is None or attention_mask is not None:
                given = {} if mask_function is None else {"mask_function": mask_function}
                return usual(*args, attention_mask=attention_mask, **given, **kwargs)
            return (sequences.unsqueeze(2) == sequences.unsqueeze(1)).tril().unsqueeze(1)
        return mask

    return dict(zip(names, [remap_marked, of_sequences_marked, both_marked]), ALL_MASK_ATTENTION_FUNCTIONS=Masks())


@contextlib.contextmanager
def marked_checkpoints(model, notes):
    """Modules that run in torch.utils.checkpoint are exported as if they were called, each op with a mark: what backward
    computes again is decided where the model is trained. Without this torch.export forgets use_reentrant=False, and writes
    use_reentrant=True down as torch.no_grad, whose parameters nobody can train."""
    from torch.utils import checkpoint as module
    annotate = getattr(torch.fx.traceback, "annotate", None)  # since torch 2.9
    seen = []

    def marked(function, *args, use_reentrant=None, context_fn=None, determinism_check=None, preserve_rng_state=None,
               debug=None, early_stop=None, **kwargs):
        seen.append(function)
        with annotate({"activation_checkpoint": True}) if annotate else contextlib.nullcontext():
            return function(*args, **kwargs)

    original = module.checkpoint
    spaces = {id(vars(module)): vars(module)}
    for part in model.modules():
        for cls in type(part).__mro__:
            space = vars(sys.modules[cls.__module__]) if cls.__module__ in sys.modules else {}
            spaces[id(space)] = space
        spaces[id(vars(part))] = vars(part)  # transformers keeps functools.partial(checkpoint, …) in each layer
    places = [(space, name, value) for space in spaces.values() for name, value in list(space.items())
              if value is original or isinstance(value, functools.partial) and value.func is original]
    try:
        for space, name, _ in places:
            space[name] = marked
        with torch.fx.traceback.preserve_node_meta(annotate is not None):
            yield
    finally:
        for space, name, value in places:
            space[name] = value
    if seen and not annotate:
        notes.append(f"{len(seen)} calls of torch.utils.checkpoint are exported without a mark, as torch {torch.__version__}"
                     " has none; give activation_checkpoint.mode full where the model is trained")


def check_example(example):
    tensors = {name: value for name, value in example.items() if isinstance(value, torch.Tensor)}
    if not tensors:
        raise ExportError("the example has no tensors; expected a dict of name -> tensor, as the model's forward takes them")
    names = list(tensors)
    for i, name in enumerate(names):
        for other in names[:i]:
            if tensors[name] is tensors[other]:
                raise ExportError(f"{other} and {name} of the example are one tensor, so the graph would read one of them;"
                                  f" give {name} a copy: {name}.clone()")


def candidates(example, dynamic, failures):
    """dynamic_shapes to try, best first. A named size is one for all inputs, and holds for a batch of 1 too; where torch.export
    says which numbers it may have, those; where a model fixes it, each input's for itself."""
    if dynamic != "auto":
        yield None if dynamic == "none" else dynamic
        return

    def shapes(batch, length):
        found = {}
        for name, value in example.items():
            found[name] = None
            if isinstance(value, torch.Tensor) and value.dim() > 0:
                found[name] = {0: batch}
                if has_length(value):
                    found[name][1] = length
        return found

    Dim = torch.export.Dim
    batch, length = Dim("batch", min=1), Dim("length", min=2)
    yield shapes(batch, length)
    suggested = {}
    for name, least, most in re.findall(r"(batch|length) = Dim\('\w+'(?:, min=(\d+))?(?:, max=(\d+))?\)", str(failures[-1])):
        suggested[name] = Dim(name, min=int(least or (1 if name == "batch" else 2)), max=int(most) if most else None)
    if suggested:
        yield shapes(suggested.get("batch", batch), suggested.get("length", length))
    yield shapes(Dim.AUTO, Dim.AUTO)
    yield None


def has_length(value):
    return value.dim() == 2 and not value.is_floating_point()


def inputs_of(program):
    """The user's inputs by name, as the graph has them."""
    by_name = {node.name: node.meta.get("val") for node in program.graph.nodes if node.op == "placeholder"}
    return {name: by_name.get(name) for name in program.graph_signature.user_inputs if isinstance(name, str)}


def fixed_sizes(program, example):
    notes = []
    for name, value in inputs_of(program).items():
        given = example.get(name)
        if not isinstance(given, torch.Tensor) or given.dim() == 0:
            continue
        kinds = ["batch"] + (["length"] if has_length(given) else [])
        for d, kind in enumerate(kinds):
            if str(value.shape[d]).isdigit():  # also a symbol that has become a number
                notes.append(f"{kind} of {name} is baked in: {value.shape[d]}")
    return notes


def unread(program, example):
    used = {node.name for node in program.graph.nodes if node.op == "placeholder" and node.users}
    outputs = program.graph_signature.user_outputs
    return [f"{name} is not read by the model" for name in inputs_of(program)
            if name not in used and name not in outputs and isinstance(example.get(name), torch.Tensor)]


def check_loads(program, path):
    try:
        loaded = torch.export.load(path)
    except Exception as error:
        if "\n  change:" in explain(error):
            raise ExportError(explain(error)) from error
        raise ExportError(f"torch.export.load of torch {torch.__version__} cannot read what its torch.export.save wrote\n  torch says:"
                          f" {type(error).__name__}: {first_line(error)}\n  change: the op that it names, written in others;"
                          " another version of torch; or another model") from error
    if len(loaded.graph.nodes) != len(program.graph.nodes):
        raise ExportError(f"{path} was written, but torch.export.load reads another graph; is the disk full?")


def first_line(error):
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0][:200] if lines else type(error).__name__


def model_line(error):
    """The innermost line of the model's code that led to `error`: "modeling_x.py:12: if x.sum() > 0:"."""
    root, here = os.path.dirname(torch.__file__), os.path.abspath(__file__)
    frames = [f for f in traceback.extract_tb(error.__traceback__) if not f.filename.startswith(root) and f.filename != here]
    for frame in reversed(frames):
        if os.sep + "contextlib" not in frame.filename and not frame.filename.startswith("<"):
            return f"{os.path.basename(frame.filename)}:{frame.lineno}: {frame.line}"
    return ""


CURES = [  # words of torch's message or the error's type -> what happened, what to change
    (r"data-dependent|GuardOnDataDependent|DataDependent|\.item\(\)|_local_scalar_dense|aten\.nonzero|aten\.equal",
     "a branch or a shape depends on values of tensors",
     "torch.where or masks instead of the branch; a flag of the config that chooses one branch; or compute the value before"
     " and pass it in the batch. Experts of transformers: --experts batched_mm"),
    (r"use_cache|Cache\b|pytree|unflatten|Unsupported.*(output|type)",
     "an input or an output is an object that torch.export does not know",
     "use_cache=False; a forward that takes and returns tensors, lists, tuples and dicts"),
    (r"vmap|functorch", "the model calls torch.func inside of its forward",
     "attn_implementation eager or sdpa, whose masks are plain ops"),
    (r"ConstraintViolation|Constraints violated|specializ", "a size of the example is used as a constant",
     'dynamic="none", or other sizes in dynamic_shapes'),
    (r"SpecViolation|missing val field",
     "a region of torch.no_grad or autocast gives nothing that is read after it, which torch.export cannot write down",
     "detach() outside of torch.no_grad in its place, as in buffer.mul_(0.9).add_(h.detach()); or read what the region gives"),
    (r"unexpected keyword|missing .* argument", "the example's names are not those of forward",
     "the names of forward's arguments"),
]


def explain(error):
    text = f"{type(error).__name__}: {error}"
    line = model_line(error)
    where = f"\n  at {line}" if line else ""
    for pattern, what, cure in CURES:
        if re.search(pattern, text):
            return f"torch.export failed: {what}{where}\n  torch says: {first_line(error)}\n  change: {cure}"
    return f"torch.export failed{where}\n  torch says: {type(error).__name__}: {first_line(error)}"


# ---- models of transformers ----

DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}

SMALL = dict(vocab_size=256, hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4,
             num_key_value_heads=2, max_position_embeddings=128, n_embd=64, n_layer=2, n_head=4, n_positions=128, d_model=64,
             d_ff=128, d_kv=16, num_layers=2, num_heads=4, head_dim=16, ffn_dim=128, encoder_layers=2, decoder_layers=2,
             encoder_attention_heads=4, decoder_attention_heads=4, encoder_ffn_dim=128, decoder_ffn_dim=128,
             num_local_experts=4, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=64, embedding_size=64)


def prepare(model, attention=None, experts=None):
    """Sets what the training graph of a transformers model needs: no cache, attention in ops of LibTorch, training mode."""
    for part in model.modules():
        config = getattr(part, "config", None)
        if config is not None and hasattr(config, "use_cache"):
            config.use_cache = False
    for kind in [attention] if attention else ["sdpa", "eager"]:
        try:
            model.set_attn_implementation(kind)
            break
        except (ValueError, AttributeError, ImportError):
            continue
    if experts and hasattr(model, "set_experts_implementation"):
        model.set_experts_implementation(experts)
    return model.train()


OWN_EXAMPLE = ("expected a model of token ids; for others make model and example in Python:"
               " sfsdp_export.export(sfsdp_export.prepare(model), example, \"model.pt2\")")


def transformers_model(source, dtype, attention=None, experts=None):
    try:
        return prepare(make_transformers_model(source, dtype), attention, experts)
    except ExportError:
        raise
    except Exception as error:  # whatever transformers makes of a config
        raise ExportError(f"{source}: transformers cannot make the model{' with small sizes' if not os.path.exists(source) else ''}:"
                          f" {type(error).__name__}: {first_line(error)}\n  {OWN_EXAMPLE}") from error


def make_transformers_model(source, dtype):
    import transformers
    if os.path.isdir(source):
        config = transformers.AutoConfig.from_pretrained(source, local_files_only=True)
        model = class_of(config, source).from_pretrained(source, dtype=dtype, local_files_only=True)
        expect_tokens(type(model))
    else:
        if os.path.isfile(source):
            config = transformers.AutoConfig.from_pretrained(source)
            made = class_of(config, source)
            expect_tokens(made)
        else:
            made = getattr(transformers, source, None)
            if made is None or getattr(made, "config_class", None) is None:
                raise ExportError(f"{source} is no folder, no config.json and no architecture of transformers"
                                  f" {transformers.__version__}; expected one, such as LlamaForCausalLM")
            expect_tokens(made)
            config = made.config_class()
            for key, value in SMALL.items():
                if isinstance(getattr(config, key, None), int):
                    setattr(config, key, value)
        torch.manual_seed(0)
        model = made(config).to(dtype)
    return model


def expect_tokens(made):
    reads = getattr(made, "main_input_name", "input_ids")
    if reads != "input_ids":
        raise ExportError(f"{made.__name__} reads {reads}, and this command makes examples of token ids alone\n  {OWN_EXAMPLE}")


def class_of(config, source):
    import transformers
    for name in config.architectures or []:
        if hasattr(transformers, name):
            return getattr(transformers, name)
    raise ExportError(f"{source}: no architecture of transformers {transformers.__version__} is named in its config"
                      f" ({config.architectures}); expected one in \"architectures\", such as LlamaForCausalLM")


def token_example(model, batch, seq):
    """input_ids and labels of their own: of one tensor given twice, the graph would read one."""
    config = model.config.get_text_config() if hasattr(model.config, "get_text_config") else model.config
    vocab = getattr(config, "vocab_size", None)
    if vocab is None:
        raise ExportError(f"the config of {type(model).__name__} has no vocab_size\n  {OWN_EXAMPLE}")
    generator = torch.Generator().manual_seed(0)
    return {name: torch.randint(3, vocab, (batch, seq), generator=generator) for name in ("input_ids", "labels")}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", help="folder, config.json or architecture")
    parser.add_argument("--batch", type=int, default=2, help="samples of the example; at least 2, so that it is not taken for a constant")
    parser.add_argument("--seq", type=int, default=64, help="tokens of a sample")
    parser.add_argument("--dtype", choices=DTYPES, default="f32")
    parser.add_argument("--attention", choices=["sdpa", "eager"], help="default: sdpa where the model has it")
    parser.add_argument("--experts", choices=["grouped_mm", "batched_mm"], help="how experts are computed")
    parser.add_argument("--static", action="store_true", help="bake batch and length in")
    parser.add_argument("-o", "--out", default="model.pt2")
    flags = parser.parse_args()
    try:
        model = transformers_model(flags.source, DTYPES[flags.dtype], flags.attention, flags.experts)
        example = token_example(model, flags.batch, flags.seq)
        notes = export(model, example, flags.out, "none" if flags.static else "auto")
    except ExportError as error:
        sys.exit(f"error: {error}")
    for note in notes:
        print(f"note: {note}")
    size = sum(p.numel() for p in model.parameters())
    print(f"{flags.out}: {type(model).__name__}, {size:,} parameters, inputs {', '.join(example)}")


if __name__ == "__main__":
    main()
