// A test of a model of your own: four ranks, threads of this process, train as one does.
#include <sfsdp/sfsdp.h>
#include <sfsdp/testing.h>
#include <torch/nn/functional/loss.h>
#include <torch/nn/modules/linear.h>

#include <cmath>
#include <iostream>

// The loss after five steps over the same 32 samples, 32 / ranks of them on each rank.
double train_on(int ranks) {
  double loss = 0;
  sfsdp::testing::run_ranks(ranks, [&](sfsdp::comm::CommWorld& world) {
    auto net = sfsdp::meta_init([] { return torch::nn::Linear(64, 10); });
    auto loss_of = [](torch::nn::Linear& m, const sfsdp::Batch& b) {
      return torch::nn::functional::cross_entropy(m->forward(b[0]), b[1]);
    };
    const int64_t rows = 32 / ranks;
    const at::Tensor all = torch::arange(32 * 64).view({32, 64}).sin(), labels = torch::arange(32) % 10;
    const sfsdp::Batch mine = {all.narrow(0, world.rank() * rows, rows), labels.narrow(0, world.rank() * rows, rows)};
    auto mesh = sfsdp::init_device_mesh({{"dp_shard", ranks}});
    auto step = sfsdp::compile(net, loss_of, sfsdp::AdamW{.lr = 1e-2}, mine, sfsdp::data_parallel(mesh), &world);
    for (int k = 0; k < 5; ++k)
      if (const double now = step(mine).loss; world.rank() == 0) loss = now;
  });
  return loss;
}

int main() {
  const double one = train_on(1), four = train_on(4);
  std::cout << "loss on 1 rank " << one << ", on 4 ranks " << four << "\n";
  return std::abs(one - four) < 1e-5 ? 0 : 1;
}
