# Which translation units may include LibTorch headers. Everything else under sfsdp/ is the torch-free core.
# A test x_test.cc follows its x.cc; paths are relative to the repository root, globs allowed.
# What the rules about them protect: a changed file compiles in seconds. Such a unit costs some 17 s without the precompiled header
# and 2-5 s with it: it takes that header, includes none of LibTorch's collections (scripts/check_layers.sh), and is measured
# (scripts/check_compile_time.sh). And the core stays without LibTorch by name: SFSDP_TORCH_FREE_FOLDERS.
set(SFSDP_TORCH_FOLDERS
    sfsdp/capture
    sfsdp/exec
    sfsdp/step
    sfsdp/models
    sfsdp/comm/agent)

# Single files of folders that otherwise are torch-free.
set(SFSDP_TORCH_FILES
    sfsdp/train/*_torch.cc
    sfsdp/train/*_torch_test.cc
    sfsdp/train/trainer.cc
    sfsdp/train/weights/hf_weights.cc
    sfsdp/tools/*_torch.cc
    sfsdp/testing/*torch*.cc)

# No unit of these may include LibTorch, whatever is listed above: what decides about a step knows no tensor.
set(SFSDP_TORCH_FREE_FOLDERS
    sfsdp/base
    sfsdp/mesh
    sfsdp/ir
    sfsdp/cost
    sfsdp/plan
    sfsdp/passes
    sfsdp/sim
    sfsdp/tune
    sfsdp/parallel
    sfsdp/optim
    sfsdp/compile
    sfsdp/exported
    sfsdp/kernels
    sfsdp/device
    sfsdp/comm/thread
    sfsdp/comm/null
    sfsdp/comm/shm
    sfsdp/comm/tcp
    sfsdp/train/checkpoint
    sfsdp/train/config
    sfsdp/train/data
    sfsdp/train/report
    sfsdp/testing/interp)
