#include <sfsdp/sfsdp.h>
#include <torch/nn/functional/loss.h>
#include <torch/nn/modules/linear.h>

#include <iostream>

struct NetImpl : torch::nn::Module {
  NetImpl()
      : up(register_module("up", torch::nn::Linear(64, 256))),
        down(register_module("down", torch::nn::Linear(256, 10))) {}
  at::Tensor forward(const at::Tensor& x) { return down(torch::relu(up(x))); }
  torch::nn::Linear up, down;
};
TORCH_MODULE(Net);

int main() {
  using namespace sfsdp;
  auto world = init();                         // the ranks that sfsdp launch or torchrun started, or this process alone
  auto net = meta_init([] { return Net(); });  // allocates nothing: each rank will only make its shards
  auto loss = [](Net& m, const Batch& b) { return torch::nn::functional::cross_entropy(m->forward(b[0]), b[1]); };

  auto mesh = init_device_mesh({{"dp_shard", world->world_size()}});
  torch::manual_seed(mesh.axis_rank(world->rank(), "dp_shard"));  // ranks along dp_shard have batches of their own
  Batch batch = {torch::randn({32, 64}), torch::randint(10, {32}, torch::kLong)};
  auto step = compile(net, loss, AdamW{.lr = 1e-2}, batch, data_parallel(mesh), world.get());
  for (int k = 1; k <= 20; ++k) std::cout << "step " << k << " loss " << step(batch).loss << "\n";  // of all ranks
  std::cout << "norm of up.weight " << step.gather("up.weight").norm().item<double>() << "\n";
}
