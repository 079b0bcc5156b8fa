// SPDX-License-Identifier: BSD-3-Clause
// What compiled steps send over model axes, block by block, to the byte, against the tables of docs/model_axes.md. What leaves one rank counts
// (testing::bytes_sent); nothing runs.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "sfsdp/base/check.h"
#include "sfsdp/models/deepseek_v3/deepseek_v3.h"
#include "sfsdp/models/tensor_parallel_plans.h"
#include "sfsdp/step/step.h"
#include "sfsdp/testing/block_collectives.h"
#include "sfsdp/testing/tiny_models_torch.h"

namespace sfsdp {
namespace sent_bytes_test {

using passes::RematMode;
using testing::Sent;
using List = std::vector<Sent>;

// Samples of a rank of data, tokens, width, heads of queries and of keys, width of a head and of the feed-forward, words, layers; experts
// and those of a token. Activations, queries and keys are of different widths, and no bucket is padded.
constexpr int64_t B = 4, S = 32, D = 512, H = 12, K = 4, E = 64, F = 320, V = 96, L = 3, X = 8, Chosen = 3;
constexpr int64_t kData = 2;  // ranks of dp_shard

struct Setting {
  int64_t t = 1, c = 1, ep = 1;  // ranks of tp, cp and ep
  TensorParallelOptions tensor = {};
  RotateMethod rotate = RotateMethod::AllGather;
  DispatchMethod dispatch = DispatchMethod::Exchange;
  int64_t w = 4;  // bytes of an element of activations and of weights that are computed with
  RematMode remat = RematMode::None;
  int64_t kept =
      0;  // elements of a block's weights that backward reads as forward computed with them, in float32, and are not gathered again

  bool sp() const { return tensor.sequence_parallel; }
  bool again() const { return remat != RematMode::None; }  // gathers of forward are made again
  int64_t tokens() const { return B * S / c / ep; }        // of a rank of cp and ep
  int64_t A() const { return tokens() * D * w; }           // bytes of an activation of as many
};

// What one of n ranks sends of a whole that each has a part of, for all others to have it, or to add it up.
int64_t part(int64_t whole, int64_t n) { return whole * (n - 1) / n; }

List& add(List& list, bool backward, const char* kind, const char* axis, int64_t bytes, int64_t times) {
  if (times > 0) list.push_back({backward, kind, axis, bytes, times});
  return list;
}
List& fwd(List& list, const char* kind, const char* axis, int64_t bytes, int64_t times = 1) {
  return add(list, false, kind, axis, bytes, times);
}
List& bwd(List& list, const char* kind, const char* axis, int64_t bytes, int64_t times = 1) {
  return add(list, true, kind, axis, bytes, times);
}

// ---- the tables

// Attention and a feed-forward over tp. Selective recomputation gathers again; full makes attention's sum again too, and not the block's
// last one, which nothing of backward reads.
void products(List& list, const Setting& s) {
  const int64_t full = s.remat == RematMode::Full ? 1 : 0, gathers = s.again() ? 2 : 0, one = part(s.A(), s.t);
  if (s.t == 1) return;
  if (s.sp()) {
    fwd(list, "all_gather", "tp", one, 2);
    fwd(list, "reduce_scatter", "tp", one, 2);
    bwd(list, "all_gather", "tp", one, 2 + gathers);
    bwd(list, "reduce_scatter", "tp", one, 2 + full);
  } else {
    fwd(list, "all_reduce", "tp", 2 * one, 2);
    bwd(list, "all_reduce", "tp", 2 * one, 2 + full);
  }
}

// Attention over cp, of a rank's heads: k and v, or heads of q, k, v and the result.
void attention(List& list, const Setting& s) {
  const int64_t own = B * S / s.ep, kv = own * (K / s.t) * E * s.w, q = own * (H / s.t) * E * s.w,
                full = s.remat == RematMode::Full;
  if (s.c == 1) return;
  if (s.rotate == RotateMethod::AllGather) {
    fwd(list, "all_gather", "cp", part(kv, s.c), 2);
    bwd(list, "all_gather", "cp", part(kv, s.c), s.again() ? 2 : 0);
    bwd(list, "reduce_scatter", "cp", part(kv, s.c), 2);
  } else if (s.rotate == RotateMethod::AllToAll) {
    for (const int64_t bytes : {q / s.c, kv / s.c}) {
      fwd(list, "all_to_all", "cp", part(bytes, s.c), 2);
      bwd(list, "all_to_all", "cp", part(bytes, s.c), 2 + 2 * full);
    }
  } else {
    fwd(list, "permute", "cp", kv / s.c, 2 * (s.c - 1));
    bwd(list, "permute", "cp", kv / s.c, (4 + 2 * full) * (s.c - 1));
  }
}

// A mixture over ep. Numbers of experts are i64, weights float32 as the router computes. In float32 what a token's experts give is weighted
// and added up before it is reduced; in half precision a cast to float32 stands in front of that, so that copies are reduced, and backward
// wants weights in place of forward.
void mixture(List& list, const Setting& s) {
  const int64_t all = B * S, again = s.again() ? 1 : 0;
  if (s.ep == 1) return;
  fwd(list, "all_gather", "ep", part(all * Chosen * 8, s.ep));
  bwd(list, "all_gather", "ep", part(all * Chosen * 8, s.ep), again);
  if (s.dispatch == DispatchMethod::Exchange) {
    const int64_t rows = part(all / s.ep * Chosen * D * s.w, s.ep);
    fwd(list, "all_to_all_v", "ep", rows, 2);
    bwd(list, "all_to_all_v", "ep", rows, 2 + 2 * again);
    return;
  }
  const int64_t tokens = part(all * D * s.w, s.ep), weights = part(all * Chosen * 4, s.ep);
  fwd(list, "all_gather", "ep", tokens);
  bwd(list, "all_gather", "ep", tokens, 1 + again);  // and their gradients
  bwd(list, "reduce_scatter", "ep", tokens);
  if (s.w == 4) {
    fwd(list, "all_gather", "ep", weights);
    fwd(list, "reduce_scatter", "ep", tokens);
    bwd(list, "all_gather", "ep", weights, again);
    bwd(list, "reduce_scatter", "ep", weights);
  } else {
    fwd(list, "reduce_scatter", "ep", Chosen * tokens);
    bwd(list, "all_gather", "ep", weights);
    bwd(list, "reduce_scatter", "ep", Chosen * tokens, s.remat == RematMode::Full ? 1 : 0);
  }
}

// Over cp, beside what attention sends: experts are given the tokens of all ranks, with what the router of each made of its own; backward
// wants the weights and the gradients of all of them. Where ranks of ep gather weights in forward, those of cp do so before.
void sequence_of_mixture(List& list, const Setting& s) {
  const int64_t all = B * S / s.ep, again = s.again() ? 1 : 0;
  if (s.c == 1) return;
  fwd(list, "all_gather", "cp", part(all * Chosen * 8, s.c));
  fwd(list, "all_gather", "cp", part(all * D * s.w, s.c));
  bwd(list, "all_gather", "cp", part(all * Chosen * 8, s.c), again);
  const bool before = s.ep > 1 && s.dispatch == DispatchMethod::Gather;
  fwd(list, "all_gather", "cp", part(all * Chosen * 4, s.c), before ? 1 : 0);
  bwd(list, "all_gather", "cp", part(all * Chosen * 4, s.c), before ? again : 1);
  bwd(list, "all_gather", "cp", part(all * D * s.w, s.c), 1 + again);
}

// Over tp, beside what products send: what the weights of a token's experts are owed is a summand, as each rank has a part of what experts
// give. With cut rows each rank routes its own, and all have what came of it.
void routes(List& list, const Setting& s) {
  const int64_t routes = s.tokens() * Chosen;
  if (s.t == 1) return;
  bwd(list, "all_reduce", "tp", 2 * part(routes * 4, s.t));
  if (!s.sp()) return;
  for (const int64_t size : {8, 4}) {
    fwd(list, "all_gather", "tp", part(routes * size, s.t));
    bwd(list, "all_gather", "tp", part(routes * size, s.t), s.again() ? 1 : 0);
  }
}

// A table, a head and the loss; two sums of a loss over each axis that cuts tokens. The head's rows stay gathered for backward.
//   whole: elements of weights that all ranks of tp have, whose gradients each makes of a part of the rows, or of the heads
List ends(const Setting& s, int64_t whole) {
  List list;
  if (s.c > 1) fwd(list, "all_reduce", "cp", 2 * part(4, s.c), 2);
  if (s.ep > 1) fwd(list, "all_reduce", "ep", 2 * part(4, s.ep), 2);
  if (s.t == 1) return list;
  const int64_t one = part(s.A(), s.t);
  fwd(list, "all_gather", "tp", s.tensor.loss_parallel ? 12 * s.tokens() * (s.t - 1) : part(s.tokens() * V * s.w, s.t));
  if (s.sp()) {
    fwd(list, "reduce_scatter", "tp", one);
    fwd(list, "all_gather", "tp", one);
    bwd(list, "reduce_scatter", "tp", one);
    bwd(list, "all_gather", "tp", one);
  } else {
    fwd(list, "all_reduce", "tp", 2 * one);
    bwd(list, "all_reduce", "tp", 2 * one);
  }
  if (whole > 0) bwd(list, "all_reduce", "tp", 2 * part(whole / kData / s.c / s.ep * 4, s.t));
  return list;
}

// ---- what is compiled

Batch sentences() {
  const at::Tensor ids = at::zeros({B, S}, at::kLong);
  return {ids, ids};
}

models::Llama3Args llama() {
  models::Llama3Args args;
  args.dim = D;
  args.n_layers = L;
  args.n_heads = H;
  args.n_kv_heads = K;
  args.head_dim = E;
  args.vocab_size = V;
  args.hidden_dim = F;
  return args;
}

models::Llama3Args mixed() {
  models::Llama3Args args = llama();
  args.num_experts = X;
  args.top_k = Chosen;
  args.moe_inter_dim = 48;
  return args;
}

// models/tensor_parallel_plans.h
std::vector<TensorParallelRule> plan_of(const char* model) {
  std::vector<TensorParallelRule> rules;
  for (const std::string& entry : models::tensor_parallel_plan(model)) {
    const size_t equals = entry.rfind('='), colon = entry.find(':', equals);
    const int64_t blocks = colon == std::string::npos ? 1 : entry[colon + 1] - '0';
    rules.push_back({entry.substr(0, equals), Shard(entry[equals + 1] - '0', {.blocks = blocks}), true});
  }
  return rules;
}

struct Compiled {
  testing::SentByBlock sent;
  std::map<std::string, int64_t>
      weights;  // by block, elements that one rank sends for all that share them to have them
};

template <class Make>
Compiled compiled(Make make, const char* model, const Setting& s) {
  std::vector<MeshAxis> axes = {{"dp_shard", kData}};
  for (const MeshAxis& axis : {MeshAxis{"ep", s.ep}, MeshAxis{"cp", s.c}, MeshAxis{"tp", s.t}})
    if (axis.size > 1) axes.push_back(axis);
  DataParallelOptions data;
  if (s.w == 2) data.mixed_precision = {ir::DType::bf16, ir::DType::f32};
  CompileOptions options;
  options.pipeline.remat.mode = s.remat;
  TensorParallel tensor;
  if (s.t > 1) tensor = tensor_parallel(plan_of(model), s.tensor);
  const ContextParallelOptions context = {.rotate_method = s.rotate};
  ExpertParallelOptions expert;
  expert.dispatch = s.dispatch;
  const Strategy strategy = data_parallel(init_device_mesh(axes), data, tensor, context, expert);
  const auto program =
      compile_program(meta_init(make), testing::loss_of, testing::kAdamW, sentences(), strategy, options);
  const auto variant = program->first();
  Compiled result = {testing::sent_by_block(variant->graph), {}};
  std::set<std::string> buffers;
  for (const StoredTensor& t : program->tensors())
    if (t.trainable && buffers.insert(t.buffer).second)
      result.weights[std::string(ir::block_of(t.name))] += t.shard * (strategy.mesh.group_size(t.shard_axes) - 1);
  return result;
}

// What is sent over data axes: weights, gathered in forward, and their gradients, in float32. A block's are gathered again in backward;
// beside blocks those of the last unit are kept.
//   returns: all else
std::string without_data(const std::string& block, const List& all, int64_t weights, const Setting& s) {
  List list;
  std::map<std::string, int64_t> bytes;
  for (const Sent& sent : all) {
    if (sent.axes.starts_with("dp_shard"))
      bytes[concat(sent.backward ? "bwd " : "fwd ", sent.kind)] += sent.bytes * sent.times;
    else
      list.push_back(sent);
  }
  std::map<std::string, int64_t> expected = {{"fwd all_gather", weights * s.w}, {"bwd reduce_scatter", weights * 4}};
  if (block.empty()) {
    CHECK(bytes["bwd all_gather"] <= weights * s.w);
    bytes.erase("bwd all_gather");
  } else {
    expected["bwd all_gather"] = (weights - part(s.kept, kData * s.ep)) * s.w;
  }
  CHECK(bytes == expected);
  return testing::to_string(list);
}

// All blocks alike, but for what stands in another place: `moved` in the block `to` instead of `from`.
struct Moved {
  Sent sent;
  std::string from, to;
};

template <class Make>
void expect_sent(Make make, const char* model, const Setting& s, const List& block, const List& ends,
                 const std::vector<Moved>& moved = {}) {
  CAPTURE(s.t);
  CAPTURE(s.c);
  CAPTURE(s.ep);
  CAPTURE(s.sp());
  CAPTURE(s.tensor.loss_parallel);
  CAPTURE(static_cast<int>(s.rotate));
  CAPTURE(static_cast<int>(s.dispatch));
  CAPTURE(s.w);
  CAPTURE(static_cast<int>(s.remat));
  const Compiled step = compiled(make, model, s);
  CHECK(step.sent.size() == L + 1);
  for (const auto& [name, list] : step.sent) {
    CAPTURE(name);
    List expected = name.empty() ? ends : block;
    for (const Moved& one : moved) {
      Sent less = one.sent;
      less.times = -less.times;
      if (name == one.to) expected.push_back(one.sent);
      if (name == one.from) expected.push_back(less);
    }
    CHECK(without_data(name, list, step.weights.at(name), s) == testing::to_string(expected));
  }
}

constexpr RematMode kRemats[] = {RematMode::None, RematMode::Op, RematMode::Full};
constexpr RotateMethod kRotates[] = {RotateMethod::AllGather, RotateMethod::AllToAll, RotateMethod::Ring};
const auto kLlama = [] { return models::Llama3(llama()); };
const auto kMixture = [] { return models::Llama3(mixed()); };

constexpr int64_t kNorms = (2 * L + 1) * D;  // of Llama, elements

// In half precision the last block's gradient is gathered where the norm before the head makes it.
std::vector<Moved> of_last_norm(const Setting& s) {
  if (s.w == 4 || !s.sp()) return {};
  return {{{true, "all_gather", "tp", part(s.A(), s.t), 1}, concat("layers.", L - 1), ""}};
}

void expect_llama(const Setting& s) {
  List block;
  products(block, s);
  attention(block, s);
  expect_sent(kLlama, "llama3", s, block, ends(s, s.sp() ? kNorms : 0), of_last_norm(s));
}

TEST_CASE("bytes of Llama over tp: with and without sequence parallelism, with logits in parts and gathered") {
  for (const RematMode remat : kRemats)
    for (const bool by_sequence : {false, true}) {
      for (const int64_t t : {2, 4})
        for (const bool in_parts : {false, true})
          expect_llama(
              {.t = t, .tensor = {.sequence_parallel = by_sequence, .loss_parallel = in_parts}, .remat = remat});
      expect_llama({.t = 2, .tensor = {.sequence_parallel = by_sequence}, .w = 2, .remat = remat});
    }
}

TEST_CASE("bytes of GPT over tp: as of Llama; norms and the biases after sums are whole") {
  const auto make = [] {
    models::GptArgs args;
    args.dim = D;
    args.n_layers = L;
    args.n_heads = 8;
    args.vocab_size = V;
    args.max_positions = S;
    return models::Gpt(args);
  };
  for (const RematMode remat : kRemats)
    for (const bool by_sequence : {false, true}) {
      const Setting s = {.t = 2, .tensor = {.sequence_parallel = by_sequence}, .remat = remat};
      List block;
      products(block, s);
      expect_sent(make, "gpt", s, block, ends(s, by_sequence ? L * 6 * D + 2 * D : 0));
    }
}

TEST_CASE("bytes of Qwen3 over tp: as of Llama; norms of q and k are of the heads that a rank has") {
  const auto make = [] {
    models::Llama3Args args = llama();
    args.qk_norm = true;
    return models::Llama3(args);
  };
  for (const RematMode remat : kRemats)
    for (const bool by_sequence : {false, true}) {
      const Setting s = {.t = 2, .tensor = {.sequence_parallel = by_sequence}, .remat = remat};
      List block;
      products(block, s);
      expect_sent(make, "llama3", s, block, ends(s, L * 2 * E + (by_sequence ? kNorms : 0)));
    }
}

// Half a head of keys is no head: q, k and v are gathered, and all ranks compute all of attention.
TEST_CASE("bytes of fewer heads of keys than ranks of tp: q, k and v are gathered, and the gradient of the result") {
  const auto make = [] {
    models::Llama3Args args = llama();
    args.n_kv_heads = 2;
    return models::Llama3(args);
  };
  for (const RematMode remat : kRemats)
    for (const bool by_sequence : {false, true}) {
      const Setting s = {.t = 4, .tensor = {.sequence_parallel = by_sequence}, .remat = remat};
      const int64_t kv = part(B * S * 2 * E * s.w, s.t), q = part(B * S * H * E * s.w, s.t), again = s.again() ? 1 : 0;
      List block;
      products(block, s);
      fwd(block, "all_gather", "tp", kv, 2);
      fwd(block, "all_gather", "tp", q);
      bwd(block, "all_gather", "tp", kv, 2 * again);
      bwd(block, "all_gather", "tp", q, 1 + again);
      expect_sent(make, "llama3", s, block, ends(s, by_sequence ? kNorms : 0));
    }
}

TEST_CASE("bytes of Llama over cp: keys gathered, heads exchanged, and in a ring") {
  for (const RematMode remat : kRemats)
    for (const RotateMethod rotate : kRotates) {
      for (const int64_t c : {2, 4}) expect_llama({.c = c, .rotate = rotate, .remat = remat});
      expect_llama({.c = 2, .rotate = rotate, .w = 2, .remat = remat});
    }
}

TEST_CASE("bytes of Llama over cp beside tp: each axis sends as it does alone, of what the other leaves") {
  for (const RematMode remat : kRemats)
    for (const RotateMethod rotate : kRotates)
      for (const bool by_sequence : {false, true})
        expect_llama({.t = 2, .c = 2, .tensor = {.sequence_parallel = by_sequence}, .rotate = rotate, .remat = remat});
}

// The gradient of embeddings is gathered in the first block, which makes it.
void expect_mixture(Setting s) {
  if (s.w == 2 && !s.again()) s.kept = X * D;
  List block;
  products(block, s);
  attention(block, s);
  sequence_of_mixture(block, s);
  mixture(block, s);
  routes(block, s);
  std::vector<Moved> moved = of_last_norm(s);
  if (s.sp()) moved.push_back({{true, "all_gather", "tp", part(s.A(), s.t), 1}, "", "layers.0"});
  expect_sent(kMixture, "llama3", s, block, ends(s, s.sp() ? kNorms + L * X * D : 0), moved);
}

TEST_CASE("bytes of a mixture over ep: rows exchanged, and tokens gathered") {
  for (const RematMode remat : kRemats)
    for (const DispatchMethod dispatch : {DispatchMethod::Exchange, DispatchMethod::Gather}) {
      for (const int64_t ep : {2, 4}) expect_mixture({.ep = ep, .dispatch = dispatch, .remat = remat});
      expect_mixture({.ep = 2, .dispatch = dispatch, .w = 2, .remat = remat});
    }
}

TEST_CASE("bytes of a mixture over cp, alone and beside ep") {
  for (const RematMode remat : kRemats) {
    expect_mixture({.c = 2, .remat = remat});
    for (const DispatchMethod dispatch : {DispatchMethod::Exchange, DispatchMethod::Gather})
      expect_mixture({.c = 2, .ep = 2, .dispatch = dispatch, .remat = remat});
  }
}

TEST_CASE("bytes of a mixture over tp, alone and beside ep") {
  for (const RematMode remat : kRemats)
    for (const bool by_sequence : {false, true}) {
      const TensorParallelOptions tensor = {.sequence_parallel = by_sequence};
      expect_mixture({.t = 2, .tensor = tensor, .remat = remat});
      for (const DispatchMethod dispatch : {DispatchMethod::Exchange, DispatchMethod::Gather})
        expect_mixture({.t = 2, .ep = 2, .tensor = tensor, .dispatch = dispatch, .remat = remat});
    }
}

// ---- DeepSeek-V3: latents of queries and of keys, the turned part of a head, its other part, values

constexpr int64_t QL = 256, KL = 128, R = 16, N = 32, W = 32;

models::DeepSeekV3Args latent(bool mixtures) {
  models::DeepSeekV3Args args;
  args.dim = D;
  args.inter_dim = F;
  args.moe_inter_dim = 48;
  args.n_layers = L;
  args.n_dense_layers = mixtures ? 0 : L;
  args.n_heads = H;
  args.vocab_size = V;
  args.q_lora_rank = QL;
  args.kv_lora_rank = KL;
  args.qk_nope_head_dim = N;
  args.qk_rope_head_dim = R;
  args.v_head_dim = W;
  args.num_experts = X;
  args.num_shared_experts = 1;
  args.top_k = Chosen;
  args.score_func = models::RouterScore::Sigmoid;
  args.route_norm = true;
  return args;
}

// Over tp each rank makes the latents of its rows, or of all, and has some heads, which give it a part of the latents' gradients. So latents
// are gathered and added up in place of activations, which are wider.
void latent_products(List& list, const Setting& s) {
  const int64_t full = s.remat == RematMode::Full ? 1 : 0, again = s.again() ? 1 : 0, one = part(s.A(), s.t);
  if (s.t == 1) return;
  if (!s.sp()) {
    fwd(list, "all_reduce", "tp", 2 * one, 2);
    bwd(list, "all_reduce", "tp", 2 * one, 1 + full);
    for (const int64_t width : {QL, KL, R}) bwd(list, "all_reduce", "tp", 2 * part(s.tokens() * width * s.w, s.t));
    return;
  }
  fwd(list, "reduce_scatter", "tp", one, 2);
  bwd(list, "all_gather", "tp", one, 2);
  bwd(list, "reduce_scatter", "tp", one, full);
  for (const int64_t width : {QL, KL, R, D}) {
    const int64_t bytes = part(s.tokens() * width * s.w, s.t);
    fwd(list, "all_gather", "tp", bytes);
    bwd(list, "all_gather", "tp", bytes, again);
    bwd(list, "reduce_scatter", "tp", bytes);
  }
}

// Over cp: keys and values of all heads, and what heads share once. Exchanged and in a ring as attention reads them: keys with what is
// shared, values with zeros up to a key's width.
void latent_attention(List& list, const Setting& s) {
  const int64_t full = s.remat == RematMode::Full ? 1 : 0, heads = H / s.t;
  if (s.c == 1) return;
  if (s.rotate == RotateMethod::AllGather) {
    for (const int64_t width : {heads * N, R, heads * W}) {
      const int64_t bytes = part(B * S / s.ep * width * s.w, s.c);
      fwd(list, "all_gather", "cp", bytes);
      bwd(list, "all_gather", "cp", bytes, s.again() ? 1 : 0);
      bwd(list, "reduce_scatter", "cp", bytes);
    }
    return;
  }
  const int64_t own = s.tokens() * heads * (N + R) * s.w;
  if (s.rotate == RotateMethod::AllToAll) {
    fwd(list, "all_to_all", "cp", part(own, s.c), 4);
    bwd(list, "all_to_all", "cp", part(own, s.c), 4 + 4 * full);
  } else {
    fwd(list, "permute", "cp", own, 2 * (s.c - 1));
    bwd(list, "permute", "cp", own, (4 + 2 * full) * (s.c - 1));
  }
}

void expect_latent(const Setting& s, bool mixtures) {
  CAPTURE(mixtures);
  List block;
  latent_products(block, s);
  latent_attention(block, s);
  if (mixtures) {
    sequence_of_mixture(block, s);
    mixture(block, s);
    routes(block, s);
  }
  const int64_t whole = D + L * (2 * D + QL + KL + D * (QL + KL + R) + (mixtures ? X * D : 0));
  expect_sent([=] { return models::DeepSeekV3(latent(mixtures)); }, "deepseek_v3", s, block,
              ends(s, s.sp() ? whole : 0));
}

TEST_CASE("bytes of DeepSeek-V3 over tp") {
  for (const RematMode remat : kRemats)
    for (const bool by_sequence : {false, true})
      for (const int64_t t : {2, 4})
        for (const bool mixtures : {false, true})
          expect_latent({.t = t, .tensor = {.sequence_parallel = by_sequence}, .remat = remat}, mixtures);
}

TEST_CASE("bytes of DeepSeek-V3 over cp, alone and beside tp") {
  for (const RematMode remat : kRemats)
    for (const RotateMethod rotate : kRotates)
      for (const bool mixtures : {false, true}) {
        for (const int64_t c : {2, 4}) expect_latent({.c = c, .rotate = rotate, .remat = remat}, mixtures);
        expect_latent({.t = 2, .c = 2, .rotate = rotate, .remat = remat}, mixtures);
      }
}

}  // namespace sent_bytes_test
}  // namespace sfsdp
