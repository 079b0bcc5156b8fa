#include <sfsdp/sfsdp.h>
#include <torch/nn/functional/loss.h>
#include <torch/nn/modules/linear.h>

#include <iostream>

#include "drop_mul_by_one.h"

struct NetImpl : torch::nn::Module {
  explicit NetImpl(double branch_scale)
      : scale(branch_scale),
        branch(register_module("branch", torch::nn::Linear(64, 64))),
        head(register_module("head", torch::nn::Linear(64, 10))) {}
  at::Tensor forward(const at::Tensor& x) { return head(x + torch::relu(branch(x)) * scale); }
  double scale;
  torch::nn::Linear branch, head;
};
TORCH_MODULE(Net);

int main() {
  using namespace sfsdp;
  register_drop_mul_by_one();  // once, before compile; every rank the same
  CompileOptions options;
  options.pipeline.extra = {{"drop_mul_by_one", {{"backward", true}}, passes::ExtraPass::Place::Before, "remat"}};

  auto world = init();
  auto net = meta_init([] { return Net(1.0); });
  auto loss = [](Net& m, const Batch& b) { return torch::nn::functional::cross_entropy(m->forward(b[0]), b[1]); };
  torch::manual_seed(world->rank());
  Batch batch = {torch::randn({32, 64}), torch::randint(10, {32}, torch::kLong)};
  auto mesh = init_device_mesh({{"dp_shard", world->world_size()}});
  auto program = compile_program(net, loss, AdamW{.lr = 1e-2}, batch, data_parallel(mesh), options);
  const auto variant = program->training(batch);
  std::cout << passes::table(variant->passes);
  Step step(program, world.get());
  for (int k = 1; k <= 20; ++k) std::cout << "step " << k << " loss " << step(batch).loss << "\n";
}
