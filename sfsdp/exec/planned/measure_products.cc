// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/exec/planned/measure_products.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <torch/version.h>

#include <algorithm>
#include <bit>
#include <chrono>
#include <ctime>
#include <fstream>
#include <map>
#include <utility>

#include "sfsdp/base/check.h"
#include "sfsdp/base/error.h"
#include "sfsdp/base/hash.h"
#include "sfsdp/base/strings.h"
#include "sfsdp/capture/tensor_type.h"
#include "sfsdp/comm/same_texts.h"
#include "sfsdp/tune/choose_products.h"

namespace sfsdp::exec {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

// A rank of one thread counts what it has computed itself: others that run on its core meanwhile cost the one library as much as the
// next. With more threads how they share the work is part of what is measured.
double now() {
  timespec time{};
  clock_gettime(at::get_num_threads() == 1 ? CLOCK_THREAD_CPUTIME_ID : CLOCK_MONOTONIC, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

// 0.08 s at 200 GFLOP/s: rates do not depend on sizes that are larger than caches (docs/benchmarks.md, "Products by library").
constexpr double kMostFlops = 16e9;
constexpr int kRounds = 9, kLeastRounds = 2;
constexpr double kSecondsOfShape = 0.1;  // after which no further round begins
// Slower than the best by more than this, a library is out: after the first round, which also makes kernels and touches
// memory, and after later ones.
constexpr double kFirstMargin = 2, kMargin = 1.25;

ir::ProductShape cut(ir::ProductShape shape) {
  while (shape.flops() > kMostFlops) {
    int64_t* const largest =
        std::ranges::max({&shape.m, &shape.n, &shape.k}, {}, [](const int64_t* size) { return *size; });
    *largest = (*largest + 1) / 2;
  }
  return shape;
}

at::Tensor operand(int64_t rows, int64_t columns, bool transposed, ir::DType dtype) {
  const auto options = at::TensorOptions(capture::scalar_type_of(dtype));
  return transposed ? at::ones({columns, rows}, options).t() : at::ones({rows, columns}, options);
}

}  // namespace

cost::ProductSeconds time_product(const ir::ProductShape& shape, const std::vector<ProductKernel>& kernels) {
  const ir::ProductShape s = cut(shape);
  const at::Tensor a = operand(s.m, s.k, s.a_transposed, s.dtype), b = operand(s.k, s.n, s.b_transposed, s.dtype);
  const at::Tensor out = at::zeros({s.m, s.n}, a.options());
  std::vector<ProductKernel> left = kernels;
  std::map<ProductKernel, double> best;
  const auto start = Clock::now();
  for (int round = 0; round < kRounds && (round < kLeastRounds || seconds_since(start) < kSecondsOfShape); ++round) {
    for (const ProductKernel kernel : left) {
      const double begin = now();
      multiply(kernel, a, b, out, 0);
      const double seconds = std::max(now() - begin, 1e-9);
      const auto [known, is_new] = best.emplace(kernel, seconds);
      if (!is_new) known->second = std::min(known->second, seconds);
    }
    double least = best.begin()->second;
    for (const auto& [kernel, seconds] : best) least = std::min(least, seconds);
    std::erase_if(left, [&](ProductKernel k) { return best.at(k) > least * (round == 0 ? kFirstMargin : kMargin); });
    std::ranges::rotate(left, left.begin() + 1);  // who is first finds the caches as another has left them
  }
  const double whole = s.flops() > 0 ? shape.flops() / s.flops() : 1;
  cost::ProductSeconds found;
  for (const auto& [kernel, seconds] : best) found[to_string(kernel)] = seconds * whole;
  return found;
}

namespace {

// What the first processor says of itself, in a line.
std::string processor() {
  std::ifstream info("/proc/cpuinfo");
  std::string text;
  for (std::string line; std::getline(info, line) && !line.empty();)
    for (const char* name : {"model name", "cpu family", "model\t", "stepping", "cache size", "CPU implementer",
                             "CPU part", "CPU variant"})
      if (line.starts_with(name)) text += concat(text.empty() ? "" : " ", trim(line.substr(line.find(':') + 1)));
  return text.empty() ? "a processor" : text;
}

std::string version_of(ProductKernel kernel) {
  return kernel == ProductKernel::OpenBlas ? described(kernel)
                                           : concat(to_string(kernel), " of LibTorch ", TORCH_VERSION);
}

// All ranks' numbers, in rank order.
std::vector<uint64_t> gather(comm::CommWorld* world, const std::vector<uint64_t>& mine) {
  return world ? comm::gather_numbers(*world, mine, "times of products") : mine;
}

class Chooser {
 public:
  Chooser(const std::vector<ir::ProductShape>& shapes, const ProductOptions& options, comm::CommWorld* world)
      : options_(options), world_(world), ranks_(world ? static_cast<size_t>(world->world_size()) : 1) {
    for (const ir::ProductShape& shape : shapes) {
      std::vector<ProductKernel> kernels = product_kernels(shape.dtype);
      if (shape.flops() > 0) shapes_.emplace_back(shape, std::move(kernels));
    }
  }

  ProductChoice run() {
    if (!agree_on_kernels()) return std::move(choice_);
    read_cache();
    const size_t measured = measure();
    share_out();
    choice_.table = tune::choose_products(choice_.seconds, options_.rule);
    say(measured);
    if (measured > 0) write_cache();
    return std::move(choice_);
  }

 private:
  // Those that every rank has, in the version that rank 0 has. False: nothing to choose from, or other shapes on other ranks, which
  // those that compare programs will say.
  bool agree_on_kernels() {
    constexpr ProductKernel kAll[] = {ProductKernel::Aten, ProductKernel::OneDnn, ProductKernel::OpenBlas};
    std::string text;
    for (const auto& [shape, kernels] : shapes_) text += to_string(shape) + "\n";
    std::vector<uint64_t> mine = {xxh3(text)};
    for (const ProductKernel kernel : kAll)
      mine.push_back(!shapes_.empty() && has_product(kernel) ? xxh3(version_of(kernel)) : 0);
    const std::vector<uint64_t> all = gather(world_, mine);
    const auto same = [&](size_t place) {
      for (size_t r = 1; r < ranks_; ++r)
        if (all[r * mine.size() + place] != all[place]) return false;
      return all[place] != 0;
    };
    if (!same(0) || shapes_.empty()) return false;
    for (size_t i = 0; i < std::size(kAll); ++i) {
      if (same(i + 1)) {
        key_ += concat("; ", version_of(kAll[i]));
        continue;
      }
      if (has_product(kAll[i]))
        choice_.notes.push_back(
            concat("Products: not by ", described(kAll[i]), ", which other ranks have not, or in another version"));
      for (auto& [shape, kernels] : shapes_) std::erase(kernels, kAll[i]);
    }
    std::erase_if(shapes_, [](const auto& entry) { return entry.second.size() < 2; });
    key_ = concat(processor(), "; ", at::get_num_threads(), " threads; ", ranks_, " ranks", key_);
    return !shapes_.empty();
  }

  void read_cache() {
    if (options_.cache_folder.empty()) return;
    cost::KeptProducts kept = cost::read_product_times(options_.cache_folder, key_);
    own_ = std::move(kept.times);
    if (!kept.fault.empty()) choice_.notes.push_back(concat("Products: ", kept.fault, "; they are measured again"));
  }

  bool knows(const std::pair<ir::ProductShape, std::vector<ProductKernel>>& entry) const {
    const auto found = own_.find(entry.first);
    return found != own_.end() && std::ranges::all_of(entry.second, [&](ProductKernel kernel) {
             return found->second.contains(to_string(kernel));
           });
  }

  // Each shape that some rank does not know, on all ranks. Returns how many.
  size_t measure() {
    std::vector<uint64_t> mine;
    for (const auto& entry : shapes_) mine.push_back(knows(entry) ? 1 : 0);
    const std::vector<uint64_t> all = gather(world_, mine);
    const auto start = Clock::now();
    size_t measured = 0;
    for (size_t s = 0; s < shapes_.size(); ++s) {
      bool known = true;
      for (size_t r = 0; r < ranks_; ++r) known &= all[r * shapes_.size() + s] != 0;
      if (known) continue;
      gather(world_, {0});  // all begin at once
      own_[shapes_[s].first] = options_.time(shapes_[s].first, shapes_[s].second);
      ++measured;
    }
    seconds_ = seconds_since(start);
    return measured;
  }

  void share_out() {
    std::vector<uint64_t> mine;
    for (const auto& [shape, kernels] : shapes_)
      for (const ProductKernel kernel : kernels)
        mine.push_back(std::bit_cast<uint64_t>(own_.at(shape).at(to_string(kernel))));
    const std::vector<uint64_t> all = gather(world_, mine);
    size_t place = 0;
    for (const auto& [shape, kernels] : shapes_)
      for (const ProductKernel kernel : kernels) {
        double sum = 0;
        for (size_t r = 0; r < ranks_; ++r) sum += std::bit_cast<double>(all[r * mine.size() + place]);
        choice_.seconds[shape][to_string(kernel)] = sum / static_cast<double>(ranks_);
        ++place;
      }
  }

  void say(size_t measured) {
    std::map<std::string, size_t> counts;
    for (const auto& [shape, kernel] : choice_.table) ++counts[kernel];
    std::vector<std::string> parts;
    for (const auto& [kernel, count] : counts)
      parts.push_back(concat(count, " by ", described(*product_kernel(kernel))));
    choice_.notes.push_back(
        concat("Products of ", choice_.table.size(), " shapes: ", join(parts, ", "), "; ",
               measured == 0 ? std::string("as measured before")
                             : concat(measured, " measured in ", with_commas(seconds_, 2), " s"),
               options_.cache_folder.empty() ? "" : ", kept in ",
               options_.cache_folder.empty() ? "" : cost::products_file(options_.cache_folder, key_)));
  }

  // Every rank: hosts may have folders of their own. All have the same means, so that the next run chooses as this one did.
  void write_cache() {
    if (options_.cache_folder.empty()) return;
    try {
      cost::add_product_times(options_.cache_folder, key_, choice_.seconds);
    } catch (const UserError& error) {
      const std::string text = error.what();
      choice_.notes.push_back(concat("Products: they will be measured again, as their times cannot be kept: ",
                                     text.substr(0, text.find('\n'))));
    }
  }

  const ProductOptions& options_;
  comm::CommWorld* world_;
  size_t ranks_;
  std::vector<std::pair<ir::ProductShape, std::vector<ProductKernel>>> shapes_;
  std::string key_;
  cost::ProductTimes own_;  // of this rank, kept or measured
  ProductChoice choice_;
  double seconds_ = 0;  // of measuring
};

}  // namespace

ProductChoice choose_products(const std::vector<ir::ProductShape>& shapes, const ProductOptions& options,
                              comm::CommWorld* world) {
  return Chooser(shapes, options, world).run();
}

}  // namespace sfsdp::exec
