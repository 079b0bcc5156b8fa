// SPDX-License-Identifier: BSD-3-Clause
#include "benchmarks/call_bench.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <algorithm>
#include <cstdio>
#include <ctime>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "sfsdp/base/strings.h"
#include "sfsdp/exec/planned/planned_executor.h"
#include "sfsdp/ir/parser.h"
#include "sfsdp/kernels/pointwise.h"
#include "sfsdp/kernels/rms_norm.h"
#include "sfsdp/plan/step_plan.h"

namespace {

using namespace sfsdp;

constexpr int64_t kSide = 8;
constexpr int kRounds = 51;

// Every op reads what the one before it made, and makes a tensor of [8, 8].
struct Chain {
  const char* name;
  const char* op;  // with its operands after the first, as in text; %w: [8, 8], %n: [8]
  const char* more_results;
  // One of the same calls, by hand.
  std::function<void(const at::Tensor& in, const at::Tensor& w, const at::Tensor& n, const at::Tensor& out)> by_hand;
};

ir::Graph graph_of(const Chain& chain, int64_t ops) {
  std::string text =
      "graph mesh [dp_shard=1] view local\n  %y0 = input name=x : f32[8, 8]\n  %w = input name=w : f32[8, 8]\n"
      "  %n = input name=n : f32[8]\nfwd:\n";
  const std::string op = chain.op;
  const size_t space = op.find(' ');
  for (int64_t i = 0; i < ops; ++i) {
    const bool several = *chain.more_results != '\0';
    text += concat("  %y", i + 1, several ? concat(", %s", i + 1) : "", " = ", op.substr(0, space), " %y", i,
                   op.substr(space), " : f32[8, 8]", chain.more_results, "\n");
  }
  return ir::parse_or_throw(concat(text, "  return %y", ops, "\n"));
}

// The thread's own time, in which other programs, and ranks on the same core, count little.
double thread_ns() {
  timespec now = {};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return 1e9 * static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec);
}

double median_ns(int64_t ops, const std::function<void()>& run) {
  std::vector<double> found;
  for (int i = 0; i < kRounds; ++i) {
    const double begin = thread_ns();
    run();
    found.push_back((thread_ns() - begin) / static_cast<double>(ops));
  }
  std::ranges::nth_element(found, found.begin() + kRounds / 2);
  return found[kRounds / 2];
}

// A chain on an executor, and the same by hand.
class Contest {
 public:
  Contest(const Chain& chain, int64_t ops) : ops_(ops), chain_(chain), plan_(plan::make_plan(graph_of(chain, ops))) {
    executor_ =
        std::make_unique<exec::PlannedExecutor>(plan_, std::vector<at::Tensor>{}, exec::Groups{}, exec::DataPosition{},
                                                0, exec::Rng::Counter, std::make_shared<exec::RankMemory>());
    const at::Tensor wave = at::arange(kSide * kSide, at::kFloat).sin().view({kSide, kSide});
    batch_ = {{wave.cos(), wave / 4, at::ones({kSide})}};
    for (int64_t i = 0; i <= ops; ++i) made_.push_back(i == 0 ? batch_[0][0] : at::zeros({kSide, kSide}));
  }
  at::Tensor by_executor() { return executor_->run(batch_, {})[0]; }
  at::Tensor by_hand() {
    at::AutoDispatchBelowADInplaceOrView below_autograd;
    for (size_t i = 0; i + 1 < made_.size(); ++i) chain_.by_hand(made_[i], batch_[0][1], batch_[0][2], made_[i + 1]);
    return made_.back();
  }
  // ns a kernel: by hand and by the executor, in turn, as other programs come and go; the least of five medians of each.
  std::pair<double, double> measure() {
    double hand = 1e300, executor = 1e300;
    for (int i = 0; i < 5; ++i) {
      hand = std::min(hand, median_ns(ops_, [&] { by_hand(); }));
      executor = std::min(executor, median_ns(ops_, [&] { by_executor(); }));
    }
    return {hand, executor};
  }

 private:
  int64_t ops_;
  Chain chain_;
  plan::StepPlan plan_;
  std::unique_ptr<exec::PlannedExecutor> executor_;
  std::vector<std::vector<at::Tensor>> batch_;
  std::vector<at::Tensor> made_;
};

void measure(const Chain& chain) {
  std::printf("%-31s", chain.name);
  bool same = true;
  for (const int64_t ops : {64, 1024}) {
    Contest contest(chain, ops);
    same = same && at::equal(contest.by_executor(), contest.by_hand());
    const auto [hand, executor] = contest.measure();
    std::printf(" %8.0f %8.0f %6.0f |", hand, executor, executor - hand);
  }
  std::printf(" %s\n", same ? "same bits" : "OTHER NUMBERS");
}

void measure_ranks(const Chain& chain) {
  std::printf(
      "%s, 1,024 of them, ranks that are threads: ns a kernel by hand, by the executor, of each rank's own time\n",
      chain.name);
  for (const int ranks : {1, 2, 4, 8, 16}) {
    std::vector<std::pair<double, double>> found(static_cast<size_t>(ranks));
    std::vector<std::thread> threads;
    for (auto& of : found) threads.emplace_back([&] { of = Contest(chain, 1024).measure(); });
    for (std::thread& thread : threads) thread.join();
    double hand = 0, executor = 0;
    for (const auto& [a, b] : found) {
      hand += a / ranks;
      executor += b / ranks;
    }
    std::printf("  %2d ranks: %8.0f %8.0f\n", ranks, hand, executor);
  }
}

}  // namespace

void measure_calls() {
  at::set_num_threads(1);
  const at::Tensor rstd = at::zeros({kSide, 1});
  const std::vector<Chain> chains = {
      {"aten.mm.out", "aten.mm , %w", "",
       [](const auto& in, const auto& w, const auto&, at::Tensor out) { at::mm_out(out, in, w); }},
      {"aten.tanh.out", "aten.tanh ", "",
       [](const auto& in, const auto&, const auto&, at::Tensor out) { at::tanh_out(out, in); }},
      {"sfsdp.rows, an op on elements", "aten.mul.Tensor , %w row_kernel=sfsdp.rows", "",
       [call = kernels::Pointwise{{{nullptr, ir::DType::f32, 0}, {nullptr, ir::DType::f32, 1}},
                                  {{kernels::PointOp::Multiply, 2, 0, 1}},
                                  {{nullptr, ir::DType::f32, 2}}}](const auto& in, const auto& w, const auto&,
                                                                   const auto& out) mutable {
         call.inputs[0].data = in.data_ptr();
         call.inputs[1].data = w.data_ptr();
         call.outputs[0].data = out.data_ptr();
         kernels::pointwise(call, 0, kSide * kSide);
       }},
      {"sfsdp.rows, a norm", "rms_norm , %n eps=1e-05 row_kernel=sfsdp.rows", ", f32[8, 1]",
       [rstd](const auto& in, const auto&, const auto& n, const auto& out) {
         kernels::RmsNorm call;
         call.rows = kSide;
         call.width = kSide;
         call.eps = 1e-5;
         call.x = in.data_ptr();
         call.weight = n.data_ptr();
         call.y = out.data_ptr();
         call.rstd = rstd.data_ptr<float>();
         kernels::rms_norm(call, 0, kernels::norm_blocks(call));
       }},
      {"linear: LibTorch's product", "linear , %w", "",
       [turned = at::Tensor()](const auto& in, const auto& w, const auto&, at::Tensor out) mutable {
         if (!turned.defined()) turned = w.t();
         at::mm_out(out, in, turned);
       }},
  };
  std::printf("%-31s %24s | %24s\n%-31s", "ns a kernel", "64 of them ", "1,024 of them ", "");
  for (int i = 0; i < 2; ++i) std::printf(" %8s %8s %6s |", "by hand", "executor", "more");
  std::printf("\n");
  for (const Chain& chain : chains) measure(chain);
  measure_ranks(chains[0]);
}
