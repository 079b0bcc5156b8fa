# Which translation units may include LibTorch headers. Everything else under sfsdp/ is the torch-free core.
# A test x_test.cc follows its x.cc; paths are relative to the repository root, globs allowed.
# Such a unit costs some 17 s without and 2-5 s with the precompiled header, so there are at most SFSDP_MAX_TORCH_UNITS.
set(SFSDP_TORCH_FOLDERS
    sfsdp/capture
    sfsdp/exec
    sfsdp/step
    sfsdp/models
    sfsdp/comm/agent)

# Single files of folders that otherwise are torch-free.
set(SFSDP_TORCH_FILES
    sfsdp/train/*_torch.cc
    sfsdp/train/trainer.cc
    sfsdp/train/weights/hf_weights.cc
    sfsdp/tools/*_torch.cc
    sfsdp/testing/*torch*.cc)

set(SFSDP_MAX_TORCH_UNITS 46)
