// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/train/data/token_cache.h"

#include <doctest/doctest.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <functional>
#include <set>
#include <thread>

#include "sfsdp/base/check.h"
#include "sfsdp/base/error.h"
#include "sfsdp/testing/temporary_folder.h"
#include "sfsdp/train/data/documents.h"

namespace sfsdp::train::token_cache_test {

namespace {

namespace fs = std::filesystem;

struct Cache {
  testing::TemporaryFolder folder;
  std::atomic<int> made = 0;
  std::function<void()> before_making = [] {};

  std::string ask(const std::vector<std::string>& inputs, const std::string& recipe = "r") {
    return cached_tokens({folder / "cache", inputs, recipe}, [this](const std::string& path) {
      before_making();
      ++made;
      fs::create_directories(path);
      std::ofstream(path + "/dataset.json") << "{}";
    });
  }
};

}  // namespace

TEST_CASE("token files are made once for the same contents and recipe, and anew for others") {
  Cache cache;
  const std::string a = cache.folder.write("a.txt", "one"), b = cache.folder.write("b.txt", "two");
  const std::string first = cache.ask({a, b});
  CHECK(cache.made == 1);
  CHECK(cache.ask({a, b}) == first);
  CHECK(cache.made == 1);
  CHECK(cache.ask({b, a}) != first);
  CHECK(cache.ask({a}) != first);
  CHECK(cache.ask({a, b}, "other tokenizer") != first);
  CHECK(cache.made == 4);
  cache.folder.write("a.txt", "One");  // of the same size, perhaps in the same tick of the clock
  const std::string changed = cache.ask({a, b});
  CHECK(changed != first);
  cache.folder.write("a.txt", "one");
  CHECK(cache.ask({a, b}) == first);
  CHECK(cache.made == 5);
}

TEST_CASE("a file is hashed again where its size or time changed, and only there") {
  Cache cache;
  const std::string a = cache.folder.write("a.txt", "one");
  const auto old = fs::file_time_type::clock::now() - std::chrono::hours(1);
  fs::last_write_time(a, old);
  const std::string first = cache.ask({a});
  cache.folder.write("a.txt", "One");
  fs::last_write_time(a, old);  // nothing to be seen from outside
  CHECK(cache.ask({a}) == first);
  fs::last_write_time(a, old + std::chrono::seconds(1));
  CHECK(cache.ask({a}) != first);
  cache.folder.write("cache/inputs.txt", "no numbers\n1 2\n\n");  // only hints
  fs::last_write_time(a, old);
  CHECK(cache.ask({a}) != first);
}

TEST_CASE("token files of an input that changed while they were made are thrown away") {
  Cache cache;
  const std::string a = cache.folder.write("a.txt", "one");
  const auto old = fs::file_time_type::clock::now() - std::chrono::hours(1);
  for (const bool is_new : {false, true}) {  // a new file may change without another time
    const auto time = is_new ? fs::file_time_type::clock::now() : old;
    cache.folder.write("a.txt", "one");
    fs::last_write_time(a, time);
    cache.before_making = [&] {
      cache.folder.write("a.txt", "One");
      if (is_new) fs::last_write_time(a, time);
    };
    CHECK_THROWS_WITH_AS(cache.ask({a}), doctest::Contains("a.txt: changed while it was read"), InputChanged);
    size_t folders = 0;
    for (const auto& entry : fs::directory_iterator(cache.folder / "cache")) folders += entry.is_directory();
    CHECK(folders == 0);
  }
  cache.before_making = [] {};
  cache.folder.write("a.txt", "one");
  cache.made = 0;
  cache.ask({a});
  CHECK(cache.made == 1);
}

TEST_CASE("an unfinished folder is gone on with as long as its inputs have the same times, and removed after that") {
  Cache cache;
  const std::string a = cache.folder.write("a.txt", "one");
  const auto old = fs::file_time_type::clock::now() - std::chrono::hours(1);
  fs::last_write_time(a, old);
  std::vector<std::string> folders;
  const auto stop = [&] {
    cached_tokens({cache.folder / "cache", {a}, "r"}, [&](const std::string& path) {
      folders.push_back(path);
      fs::create_directories(path);
      throw UserError("stopped");
    });
  };
  CHECK_THROWS_AS(stop(), UserError);
  CHECK_THROWS_AS(stop(), UserError);
  fs::last_write_time(a, old + std::chrono::minutes(1));
  CHECK_THROWS_AS(stop(), UserError);
  CHECK(folders[1] == folders[0]);
  CHECK(folders[2] != folders[0]);
  CHECK(!fs::exists(folders[0]));
  CHECK(cache.ask({a}) == folders[2].substr(0, folders[2].find('.', folders[2].rfind('/'))));
  CHECK(!fs::exists(folders[2]));
}

// Two writes in one tick of the clock leave the same size and time.
TEST_CASE("a file written just now is hashed again even if it looks the same") {
  Cache cache;
  const std::string a = cache.folder.write("a.txt", "one");
  const auto now = fs::file_time_type::clock::now();
  fs::last_write_time(a, now);
  const std::string first = cache.ask({a});
  cache.folder.write("a.txt", "One");
  fs::last_write_time(a, now);
  CHECK(cache.ask({a}) != first);
}

TEST_CASE("of many that ask at once one makes the files and the others wait") {
  Cache cache;
  const std::string a = cache.folder.write("a.txt", "one");
  std::vector<std::thread> threads;
  std::vector<std::string> folders(8);
  std::atomic<size_t> asked = 0;
  cache.before_making = [&] {  // until the others had time to come
    while (asked < folders.size()) std::this_thread::yield();
    for (int i = 0; i < 1000; ++i) std::this_thread::yield();
  };
  for (std::string& folder : folders)
    threads.emplace_back([&] {
      ++asked;
      folder = cache.ask({a});
    });
  for (std::thread& thread : threads) thread.join();
  CHECK(cache.made == 1);
  CHECK(std::set<std::string>(folders.begin(), folders.end()).size() == 1);
}

TEST_CASE("whoever comes after one that failed makes the files") {
  Cache cache;
  const std::string a = cache.folder.write("a.txt", "one");
  const auto fails = [](const std::string&) { throw UserError("a line that is no JSON"); };
  CHECK_THROWS_WITH_AS(cached_tokens({cache.folder / "cache", {a}, "r"}, fails), "a line that is no JSON", UserError);
  cache.ask({a});
  CHECK(cache.made == 1);
}

TEST_CASE("inputs and folders that cannot be used are named") {
  Cache cache;
  CHECK_THROWS_WITH_AS(cache.ask({cache.folder / "none.txt"}), doctest::Contains("none.txt: No such file"), UserError);
  const std::string a = cache.folder.write("a.txt", "one");
  CHECK_THROWS_WITH_AS(cached_tokens({a + "/cache", {a}, "r"}, [](const std::string&) {}),
                       doctest::Contains("set --job.dump_folder"), UserError);
}

}  // namespace sfsdp::train::token_cache_test
