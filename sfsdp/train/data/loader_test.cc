// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/train/data/loader.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <functional>
#include <map>
#include <memory>
#include <set>

#include "sfsdp/base/check.h"
#include "sfsdp/base/error.h"
#include "sfsdp/testing/temporary_folder.h"
#include "sfsdp/train/data/sample_source.h"

namespace sfsdp::train::loader_test {

namespace {

// Ids first, first + 1, ... of `lengths`, one document each; without documents: one length.
TokenStore store(const testing::TemporaryFolder& folder, const std::string& name, int first,
                 const std::vector<int64_t>& lengths) {
  std::string bytes;
  std::vector<int64_t> borders = {0};
  for (const int64_t length : lengths) borders.push_back(borders.back() + length);
  for (int i = 0; i < borders.back(); ++i) {
    bytes += static_cast<char>((first + i) & 0xff);
    bytes += static_cast<char>((first + i) >> 8);
  }
  TokenPiece piece = find_tokens(folder.write(name, bytes), TokenDtype::UInt16);
  return {name, {piece}, lengths.size() > 1 ? borders : std::vector<int64_t>{}};
}

// Three sources: documents, flat in file order, flat with shuffled samples; none a multiple of another.
std::vector<WeightedSource> three_sources(const testing::TemporaryFolder& folder) {
  std::vector<WeightedSource> sources;
  sources.emplace_back(SampleSource(store(folder, "documents", 100, {3, 0, 7, 1, 12, 5, 2, 9}),
                                    {3, 20000, SampleOrder::Documents, 1, 1, 2}),
                       0.5);
  sources.emplace_back(SampleSource(store(folder, "flat", 1000, {40}), {3, 20000, SampleOrder::File, 1}), 0.3);
  sources.emplace_back(SampleSource(store(folder, "shuffled", 2000, {35}), {3, 20000, SampleOrder::Samples, 1}), 0.2);
  return sources;
}

using Row = std::vector<int64_t>;  // seq_len + 1 ids

Row ids(const MicroBatch& batch, size_t tensor) {
  const std::span<const int64_t> of = ids_of(batch, tensor);
  return {of.begin(), of.end()};
}

Row row_of(const MicroBatch& batch, int64_t r, int64_t length) {
  const std::span<const int64_t> inputs = ids_of(batch, 0), targets = ids_of(batch, 1);
  Row row(inputs.begin() + r * length, inputs.begin() + (r + 1) * length);
  for (int64_t i = 0; i + 1 < length; ++i)  // targets are the inputs one further
    CHECK(targets[static_cast<size_t>(r * length + i)] == row[static_cast<size_t>(i + 1)]);
  row.push_back(targets[static_cast<size_t>((r + 1) * length - 1)]);
  return row;
}

// Rows of `steps` steps in global order, from all ranks; the loaders go on.
std::vector<Row> read_all(std::vector<std::unique_ptr<Loader>>& ranks, int64_t steps, int64_t local, int64_t micro) {
  std::vector<Row> rows;
  const auto world = static_cast<int64_t>(ranks.size());
  for (int64_t k = 0; k < steps; ++k) {
    std::vector<Row> step(static_cast<size_t>(local * micro * world));
    for (int64_t rank = 0; rank < world; ++rank) {
      const LoadedStep loaded = ranks[static_cast<size_t>(rank)]->next();
      REQUIRE(static_cast<int64_t>(loaded.micro_batches.size()) == micro);
      for (int64_t m = 0; m < micro; ++m)
        for (int64_t r = 0; r < local; ++r)
          step[static_cast<size_t>((m * world + rank) * local + r)] =
              row_of(loaded.micro_batches[static_cast<size_t>(m)], r, 3);
    }
    rows.insert(rows.end(), step.begin(), step.end());
  }
  return rows;
}

std::vector<std::unique_ptr<Loader>> loaders(const testing::TemporaryFolder& folder, int64_t world, int64_t local,
                                             int64_t micro) {
  std::vector<std::unique_ptr<Loader>> ranks;
  for (int64_t rank = 0; rank < world; ++rank)
    ranks.push_back(std::make_unique<Loader>(three_sources(folder), LoaderOptions{local, micro, rank, world}));
  return ranks;
}

}  // namespace

// By hand: samples of 3 + 1 ids from 0 .. 9, so N = 3, global batch 4 = 2 micro-batches of 1 row on 2 ranks.
TEST_CASE("a rank reads rows (m * ranks + rank) * local .. of each step, and after the last sample the first") {
  const testing::TemporaryFolder folder;
  const auto rank = [&](int64_t r) {
    std::vector<WeightedSource> sources;
    sources.emplace_back(SampleSource(store(folder, "t", 0, {10}), {3, 10}), 1);
    return std::make_unique<Loader>(std::move(sources), LoaderOptions{1, 2, r, 2});
  };
  auto first = rank(0), second = rank(1);
  const LoadedStep a = first->next(), b = second->next();
  CHECK(ids(a.micro_batches[0], 0) == Row{0, 1, 2});
  CHECK(ids(a.micro_batches[0], 1) == Row{1, 2, 3});
  CHECK(ids(b.micro_batches[0], 0) == Row{3, 4, 5});
  CHECK(ids(a.micro_batches[1], 0) == Row{6, 7, 8});
  CHECK(ids(b.micro_batches[1], 0) == Row{0, 1, 2});  // sample 3 mod 3
  CHECK(ids(first->next().micro_batches[0], 0) == Row{3, 4, 5});
}

// By hand: a's documents "10 11 12" and "20", in file order, with BOS 1 and EOS 2: 1 10 11 12 2 1 20 2, then an empty one.
TEST_CASE("documents get BOS and EOS, go over sample borders, and neighbours share one id") {
  const testing::TemporaryFolder folder;
  const std::string path = folder.write("t", std::string("\x0a\0\x0b\0\x0c\0\x14\0", 8));
  SampleSource source(TokenStore("t", {find_tokens(path, TokenDtype::UInt16)}, {0, 3, 3, 4}),
                      {3, 100, SampleOrder::File, 0, 1, 2});
  CHECK(source.num_documents() == 3);
  CHECK(source.num_tokens() == 8);  // an empty document is left out, BOS and EOS too
  CHECK(source.size() == 2);
  std::vector<int32_t> ids(4);
  source.read(0, ids);
  CHECK(ids == std::vector<int32_t>{1, 10, 11, 12});
  source.read(1, ids);
  CHECK(ids == std::vector<int32_t>{12, 2, 1, 20});
  source.read(2, ids);  // the second epoch
  CHECK(ids == std::vector<int32_t>{1, 10, 11, 12});
}

TEST_CASE("without BOS and EOS, documents in file order are the flat ids") {
  const testing::TemporaryFolder folder;
  SampleSource documents(store(folder, "d", 50, {3, 0, 4, 1, 9}), {2, 1000});
  SampleSource flat(store(folder, "f", 50, {17}), {2, 1000});
  REQUIRE(documents.size() == flat.size());
  std::vector<int32_t> a(3), b(3);
  for (const int64_t i : {0, 5, 3, 7, 11, 1}) {  // also backwards
    documents.read(i, a);
    flat.read(i, b);
    CHECK(a == b);
  }
}

TEST_CASE("each epoch has every document once, whole, in another order") {
  const testing::TemporaryFolder folder;
  // 60 documents of 4 ids each with BOS and EOS: a row of 360 ids, seen whole by one sample.
  std::vector<int64_t> lengths(60, 4);
  SampleSource source(store(folder, "d", 100, lengths), {359, 1000, SampleOrder::Documents, 3, 1, 2});
  std::set<std::vector<int32_t>> orders;
  for (int64_t epoch = 0; epoch < 4; ++epoch) {
    std::vector<int32_t> ids(360), order;
    source.read(epoch, ids);
    for (size_t d = 0; d < 60; ++d) {
      const int32_t* id = &ids[d * 6];
      CHECK((id[0] == 1 && id[5] == 2 && id[1] % 4 == 0 && id[2] == id[1] + 1 && id[4] == id[1] + 3));
      order.push_back(id[1]);
    }
    CHECK(std::set<int32_t>(order.begin(), order.end()).size() == 60);
    orders.insert(order);
  }
  CHECK(orders.size() == 4);
}

TEST_CASE("all ranks together read the same rows for any number of them") {
  const testing::TemporaryFolder folder;
  auto one = loaders(folder, 1, 12, 1);
  const std::vector<Row> expected = read_all(one, 9, 12, 1);
  CHECK(std::set<Row>(expected.begin(), expected.end()).size() > 30);
  const std::vector<std::array<int64_t, 3>> forms = {{1, 4, 3}, {2, 3, 2}, {2, 6, 1}, {3, 2, 2}, {4, 3, 1}, {12, 1, 1}};
  for (const auto& [world, local, micro] : forms) {
    CAPTURE(world);
    CAPTURE(local);
    auto ranks = loaders(folder, world, local, micro);
    CHECK(read_all(ranks, 9, local, micro) == expected);
    for (const auto& rank : ranks) CHECK(rank->state() == ranks[0]->state());
    CHECK(ranks[0]->state() == one[0]->state());
  }
}

TEST_CASE("a run that is stopped at any step goes on with the same rows on any number of ranks") {
  const testing::TemporaryFolder folder;
  auto one = loaders(folder, 1, 12, 1);
  const std::vector<Row> expected = read_all(one, 12, 12, 1);
  for (int64_t stop = 0; stop <= 12; ++stop)
    for (const auto& [world, local] : std::vector<std::pair<int64_t, int64_t>>{{1, 12}, {2, 6}, {3, 4}, {4, 3}}) {
      CAPTURE(stop);
      CAPTURE(world);
      auto before = loaders(folder, 2, 6, 1);
      std::vector<Row> rows = read_all(before, stop, 6, 1);
      auto after = loaders(folder, world, local, 1);
      for (auto& rank : after) rank->restore(before[0]->state());
      const std::vector<Row> rest = read_all(after, 12 - stop, local, 1);
      rows.insert(rows.end(), rest.begin(), rest.end());
      CHECK(rows == expected);
    }
}

TEST_CASE("a loader that has read ahead can be set back") {
  const testing::TemporaryFolder folder;
  auto ranks = loaders(folder, 1, 12, 1);
  const std::vector<Row> expected = read_all(ranks, 3, 12, 1);
  const LoaderState at_three = ranks[0]->state();
  CHECK(at_three.at("samples") == 36);
  const std::vector<Row> next = read_all(ranks, 2, 12, 1);
  ranks[0]->restore(at_three);
  CHECK(ranks[0]->state() == at_three);
  CHECK(read_all(ranks, 2, 12, 1) == next);
  auto fresh = loaders(folder, 1, 12, 1);
  ranks[0]->restore(fresh[0]->state());
  CHECK(read_all(ranks, 3, 12, 1) == expected);
}

TEST_CASE("the state is samples drawn, whatever the batch: another batch size goes on at the next sample") {
  const testing::TemporaryFolder folder;
  auto one = loaders(folder, 1, 12, 1);
  const std::vector<Row> expected = read_all(one, 8, 12, 1);
  auto first = loaders(folder, 1, 12, 1), then = loaders(folder, 2, 4, 1);
  std::vector<Row> rows = read_all(first, 2, 12, 1);
  for (auto& rank : then) rank->restore(first[0]->state());
  const std::vector<Row> rest = read_all(then, 9, 4, 1);
  rows.insert(rows.end(), rest.begin(), rest.end());
  CHECK(rows == expected);
}

TEST_CASE("sources come by their weights") {
  const testing::TemporaryFolder folder;
  auto ranks = loaders(folder, 1, 10, 1);
  std::map<int64_t, int> counts;
  for (const Row& row : read_all(ranks, 30, 10, 1)) ++counts[std::max<int64_t>(row[0], row[1]) / 1000];
  CHECK(counts == std::map<int64_t, int>{{0, 150}, {1, 90}, {2, 60}});
}

TEST_CASE("a step says which sources begin again, once each") {
  const testing::TemporaryFolder folder;
  auto ranks = loaders(folder, 1, 10, 1);  // N = 17, 13, 11; 5, 3 and 2 samples a step
  std::map<std::string, std::vector<int>> said;
  for (int k = 1; k <= 20; ++k)
    for (const Samples* source : ranks[0]->next().wrapped) said[source->name()].push_back(k);
  CHECK(said == std::map<std::string, std::vector<int>>{{"documents", {4}}, {"flat", {5}}, {"shuffled", {6}}});
}

// conventions.md: "after sample N-1 comes sample 0 again (said once in the log)"; N = 6.
TEST_CASE("that a source begins again is said at exactly one step: the first that reads sample 0 again") {
  const testing::TemporaryFolder folder;
  for (int64_t batch = 1; batch <= 15; ++batch) {
    CAPTURE(batch);
    std::vector<WeightedSource> sources;
    sources.emplace_back(SampleSource(store(folder, "t", 0, {25}), {4, 100}), 1);
    Loader loader(std::move(sources), {batch, 1, 0, 1});
    std::vector<int64_t> said;
    for (int64_t step = 1; step <= 15; ++step)
      if (!loader.next().wrapped.empty()) said.push_back(step);
    CHECK(said == std::vector<int64_t>{6 / batch + 1});
  }
}

TEST_CASE("what a sample is does not depend on what was read before it") {
  const testing::TemporaryFolder folder;
  auto sources = three_sources(folder), others = three_sources(folder);
  for (size_t s = 0; s < sources.size(); ++s) {
    const auto read = [&](const WeightedSource& from, int64_t sample) {
      MicroBatch batch(from.source->layout());
      from.source->append(sample, batch.tensors);
      return batch.tensors;
    };
    std::vector<std::vector<std::vector<std::byte>>> forwards;
    for (int64_t i = 0; i < 40; ++i) forwards.push_back(read(sources[s], i));
    for (int64_t i = 39; i >= 0; --i) CHECK(read(others[s], i) == forwards[static_cast<size_t>(i)]);
  }
}

TEST_CASE("an error comes with the step that it belongs to, not before, and comes again") {
  const testing::TemporaryFolder folder;
  std::vector<WeightedSource> sources;
  sources.emplace_back(SampleSource(store(folder, "t", 0, {31}), {3, 20}), 1);  // ids 20 .. 30 are none
  Loader loader(std::move(sources), {2, 1, 0, 1});
  for (int64_t step = 0; step < 3; ++step) CHECK(ids(loader.next().micro_batches[0], 0)[0] == 6 * step);
  const LoaderState state = loader.state();
  CHECK_THROWS_WITH_AS(loader.next(), doctest::Contains("token 20 at position 20"), UserError);
  CHECK_THROWS_WITH_AS(loader.next(), doctest::Contains("token 20 at position 20"), UserError);
  CHECK(loader.state() == state);
}

TEST_CASE("a state of other data, or none at all, is refused with the cure") {
  const testing::TemporaryFolder folder;
  auto ranks = loaders(folder, 1, 12, 1);
  read_all(ranks, 2, 12, 1);
  Loader& loader = *ranks[0];
  const LoaderState good = loader.state();
  const auto refuses = [&](const std::function<void(LoaderState&)>& change, const char* why) {
    LoaderState state = good;
    change(state);
    CHECK_THROWS_WITH_AS(loader.restore(state), doctest::Contains(why), UserError);
    CHECK_THROWS_WITH_AS(loader.restore(state), doctest::Contains("--checkpoint.exclude_from_loading dataloader"),
                         UserError);
    CHECK(loader.state() == good);
  };
  refuses([](LoaderState& s) { s.clear(); }, "no seq_len");
  refuses([](LoaderState& s) { s["seq_len"] = 4; }, "seq_len = 4, but training.seq_len has 3");
  refuses([](LoaderState& s) { s["source.1.size"] = 14; }, "source.1.size = 14, but flat has 13");
  refuses([](LoaderState& s) { s.erase("source.2.size"); }, "no source.2.size");
  refuses([](LoaderState& s) { s["source.3.size"] = 1; }, "of more sources than the 3");
  refuses([](LoaderState& s) { s["source.0.samples"] = -1; }, "source.0.samples = -1");
  refuses([](LoaderState& s) { s["source.0.samples"] = int64_t{1} << 62; }, "source.0.samples");
  refuses([](LoaderState& s) { ++s["source.0.credit"]; }, "credits that do not add up");
}

TEST_CASE("a state of as much data, but with other ids or in another order, is refused") {
  const testing::TemporaryFolder folder;
  const auto loader_of = [&](const char* name, int32_t first, SampleOrder order) {
    std::vector<WeightedSource> sources;
    sources.emplace_back(
        SampleSource(store(folder, name, first, {31}), {.seq_len = 3, .vocab_size = 100, .order = order}), 1);
    return std::make_unique<Loader>(std::move(sources), LoaderOptions{2, 1, 0, 1});
  };
  const LoaderState state = loader_of("a", 0, SampleOrder::File)->state();
  loader_of("same", 0, SampleOrder::File)->restore(state);
  CHECK_THROWS_WITH_AS(loader_of("b", 1, SampleOrder::File)->restore(state), doctest::Contains("source.0.content"),
                       UserError);
  CHECK_THROWS_WITH_AS(loader_of("a", 0, SampleOrder::Samples)->restore(state), doctest::Contains("source.0.content"),
                       UserError);
}

TEST_CASE("a loader that nobody reads from ends at once, with rows waiting or none") {
  const testing::TemporaryFolder folder;
  for (int steps = 0; steps < 3; ++steps) {
    auto ranks = loaders(folder, 1, 12, 1);
    read_all(ranks, steps, 12, 1);
  }
}

}  // namespace sfsdp::train::loader_test
