// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/tools/launch.h"

#include <doctest/doctest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <map>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "sfsdp/base/cores.h"
#include "sfsdp/base/strings.h"
#include "sfsdp/comm/progress_page.h"
#include "sfsdp/testing/one_core.h"
#include "sfsdp/testing/temporary_folder.h"

namespace sfsdp::tools::launch_test {
namespace {

constexpr double kAtOnce = 20;  // seconds, of the 60 that ranks sleep here: a busy machine may hold up any process

struct Result {
  int code = 0;
  std::string out, err;
  double seconds = 0;
};

Result launch(const std::vector<std::string>& args) {
  std::ostringstream out, err;
  const auto begin = std::chrono::steady_clock::now();
  const int code = run_command(find_command("launch"), args, run_launch, out, err);
  return {code, out.str(), err.str(), std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count()};
}

std::vector<std::string> shell(const std::string& script, std::vector<std::string> flags) {
  for (const char* arg : {"--exec", "/bin/sh", "--", "-c"}) flags.emplace_back(arg);
  flags.push_back(script);
  return flags;
}

std::vector<std::string> sorted_lines(const std::string& text) {
  auto lines = split(trim(text), '\n');
  std::ranges::sort(lines);
  return lines;
}

bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

bool within(std::chrono::milliseconds limit, const std::function<bool()>& holds) {
  const auto end = std::chrono::steady_clock::now() + limit;
  while (!holds()) {
    if (std::chrono::steady_clock::now() > end) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  return true;
}

// Nobody may reap an orphan here at once, and a zombie is as gone as it gets.
bool is_gone(pid_t pid) {
  std::ifstream stat("/proc/" + std::to_string(pid) + "/stat");
  std::string text;
  if (!std::getline(stat, text)) return true;
  const size_t state = text.rfind(')') + 2;
  return state >= text.size() || text[state] == 'Z' || text[state] == 'X';
}

// The process ids that the ranks write into a file of their own, one each.
class PidFiles {
 public:
  // Written under another name first, so that nobody reads half a number.
  std::string write_command(const std::string& what) const {
    return "echo " + what + " > " + folder_ / "new$RANK; mv " + folder_ / "new$RANK " + folder_ / "$RANK; ";
  }
  std::string exists_command(int rank) const { return "while [ ! -e " + path(rank) + " ]; do sleep 0.01; done; "; }
  pid_t get(int rank) const {
    pid_t pid = 0;
    std::ifstream(path(rank)) >> pid;
    return pid;
  }

 private:
  std::string path(int rank) const { return folder_ / std::to_string(rank); }
  testing::TemporaryFolder folder_;
};

// Runs `body` in a process of its own; the test kills it.
pid_t fork_launcher(const std::vector<std::string>& args) {
  const pid_t pid = fork();
  if (pid == 0) {
    signal(SIGHUP, SIG_DFL);  // whatever started the tests
    std::ostringstream out, err;
    _exit(run_command(find_command("launch"), args, run_launch, out, err));
  }
  return pid;
}

TEST_CASE("launch: all ranks succeed, and their lines carry the rank") {
  const auto result = launch(shell("echo hello; echo oops >&2", {"-n", "3"}));
  CHECK(result.code == 0);
  CHECK(sorted_lines(result.out) == std::vector<std::string>{"[rank0]: hello", "[rank1]: hello", "[rank2]: hello"});
  CHECK(sorted_lines(result.err) == std::vector<std::string>{"[rank0]: oops", "[rank1]: oops", "[rank2]: oops"});
}

TEST_CASE("launch: --log-rank picks output, but errors of all ranks are shown") {
  const auto one = launch(shell("echo out $RANK; echo err $RANK >&2", {"-n", "3", "--log-rank", "1,1"}));
  CHECK(one.out == "out 1\n");
  CHECK(sorted_lines(one.err) == std::vector<std::string>{"[rank0]: err 0", "[rank1]: err 1", "[rank2]: err 2"});
  const auto two = launch(shell("echo out $RANK", {"-n", "3", "--log-rank", "2,0"}));
  CHECK(sorted_lines(two.out) == std::vector<std::string>{"[rank0]: out 0", "[rank2]: out 2"});
  CHECK(launch(shell("printf 'no line end'", {"-n", "1"})).out == "no line end\n");
}

TEST_CASE(
    "launch: a live line is shown before it ends, and makes room for errors; of several shown ranks there is none") {
  const std::string script = "printf '\\r1 of 2\\033[K'; echo oops >&2; sleep 0.1; printf '\\r\\033[Kdone\\n'";
  const auto one = launch(shell(script, {"-n", "1"}));
  CHECK(one.out == "\r1 of 2\033[K\r\033[K\r\033[Kdone\n");  // shown, cleared for the error, cleared by the rank
  const auto two = launch(shell(script, {"-n", "2"}));
  CHECK(sorted_lines(two.out) ==
        std::vector<std::string>{"[rank0]: \r1 of 2\033[K\r\033[Kdone", "[rank1]: \r1 of 2\033[K\r\033[Kdone"});
}

TEST_CASE("launch: output of any length arrives whole") {
  const auto result =
      launch(shell("i=0; while [ $i -lt 20000 ]; do echo line $i; i=$((i+1)); done", {"-n", "2", "--log-rank", "1"}));
  const auto lines = split(trim(result.out), '\n');
  REQUIRE(lines.size() == 20000);
  for (size_t i = 0; i < lines.size(); ++i) REQUIRE(lines[i] == "line " + std::to_string(i));
}

TEST_CASE("launch: ranks see torchrun's environment") {
  unsetenv("OMP_NUM_THREADS");
  const std::string script =
      "echo $RANK $LOCAL_RANK $WORLD_SIZE $LOCAL_WORLD_SIZE $GROUP_RANK $MASTER_ADDR $MASTER_PORT $OMP_NUM_THREADS; "
      "test -n \"$TORCHELASTIC_RUN_ID\"";
  const auto given = launch(shell(script, {"-n", "2", "--master-port", "29511"}));
  CHECK(given.code == 0);
  const std::string threads = std::to_string(share_of_cores(usable_cores(), 2));
  CHECK(sorted_lines(given.out) == std::vector<std::string>{"[rank0]: 0 0 2 2 0 127.0.0.1 29511 " + threads,
                                                            "[rank1]: 1 1 2 2 0 127.0.0.1 29511 " + threads});

  setenv("OMP_NUM_THREADS", "7", 1);
  const auto chosen = launch(shell("echo $MASTER_PORT $OMP_NUM_THREADS", {"-n", "1"}));
  unsetenv("OMP_NUM_THREADS");
  const auto words = split(trim(chosen.out), ' ');
  REQUIRE(words.size() == 2);
  CHECK(parse_int(words[0]).value_or(0) > 0);
  CHECK(words[1] == "7");
}

TEST_CASE("launch: ranks share the cores that the launcher may use, not those of the machine") {
  unsetenv("OMP_NUM_THREADS");
  const testing::OneCore bound;
  CHECK(trim(launch(shell("echo $OMP_NUM_THREADS", {"-n", "1"})).out) == "1");
}

TEST_CASE("launch: ranks get one token by descriptor, a new one after a restart, and none by the environment") {
  setenv("SFSDP_JOB_TOKEN", "0123456789abcdef0123456789abcdef", 1);
  const PidFiles pids;
  const auto result = launch(shell(
      "echo \"$(cat /proc/self/fd/$SFSDP_JOB_TOKEN_FD) $RANK [$SFSDP_JOB_TOKEN]\"; "
      "test $RANK = 1 && { " +
          pids.write_command("$$") + "exit 0; }; " + pids.exists_command(1) + "test $TORCHELASTIC_RESTART_COUNT = 1",
      {"-n", "2", "--max-restarts", "1"}));
  unsetenv("SFSDP_JOB_TOKEN");
  CHECK(result.code == 0);
  const auto lines = sorted_lines(result.out);
  std::map<std::string, int> tokens;
  for (const std::string& line : lines) {
    const auto words = split(line, ' ');
    REQUIRE(words.size() == 4);  // "[rank0]:", token, rank, "[]"
    CHECK(words[1].size() == 64);
    CHECK(words[3] == "[]");
    ++tokens[words[1]];
  }
  CHECK(tokens.size() == 2);
  CHECK_FALSE(contains(result.err, lines[0].substr(10, 16)));
}

TEST_CASE("launch: a rank that fails is named, with its last errors, and ends the others") {
  const PidFiles pids;
  const auto result = launch(shell("if [ $RANK = 1 ]; then " + pids.exists_command(0) +
                                       "for i in 1 2 3 4 5 6 7 8 9 10 11 12; do echo bad $i >&2; done; exit 3; fi; " +
                                       "sleep 60 & " + pids.write_command("$!") + "wait",
                                   {"-n", "2"}));
  CHECK(result.code == 3);
  CHECK(result.seconds < kAtOnce);
  CHECK(contains(result.err, "launch: rank 1 of 2 (process "));
  CHECK(contains(result.err, ") exited with code 3; its last errors:\n  bad 3\n"));
  CHECK(contains(result.err, "\n  bad 12\n"));
  CHECK_FALSE(contains(result.err, "\n  bad 2\n"));
  REQUIRE(pids.get(0) > 0);
  CHECK(within(std::chrono::seconds(20), [&] { return is_gone(pids.get(0)); }));  // the sleep that rank 0 had started
}

TEST_CASE("launch: a rank that a signal ends is named with the signal") {
  const auto result = launch(shell("if [ $RANK = 0 ]; then kill -SEGV $$; fi; sleep 60", {"-n", "2"}));
  CHECK(result.code == 128 + SIGSEGV);
  CHECK(result.seconds < kAtOnce);
  CHECK(contains(result.err, "launch: rank 0 of 2 (process "));
  CHECK(contains(result.err, "was ended by SIGSEGV (Segmentation fault, signal 11); it wrote no errors"));
}

// On a busy host the launcher looks when both have ended.
TEST_CASE("launch: a rank that was killed is the cause, not one that waited for it and exited with an error") {
  const PidFiles pids;
  const pid_t launcher = fork_launcher(
      shell("trap 'exit 1' TERM; " + pids.write_command("$$") + "while true; do sleep 0.05; done", {"-n", "2"}));
  REQUIRE(within(std::chrono::seconds(10), [&] { return pids.get(0) > 0 && pids.get(1) > 0; }));
  kill(launcher, SIGSTOP);
  int status = 0;
  REQUIRE(waitpid(launcher, &status, WUNTRACED) == launcher);
  kill(pids.get(1), SIGKILL);
  kill(pids.get(0), SIGTERM);
  const bool both_ended =
      within(std::chrono::seconds(10), [&] { return is_gone(pids.get(0)) && is_gone(pids.get(1)); });
  kill(launcher, SIGCONT);
  REQUIRE(waitpid(launcher, &status, 0) == launcher);
  REQUIRE(both_ended);
  CHECK(WEXITSTATUS(status) == 128 + SIGKILL);
}

// Before ranks meet nobody else knows of them.
TEST_CASE("launch: a rank that is stopped is named and ends the group, one that goes on in time does not") {
  const auto stopped = launch(shell("[ $RANK = 1 ] && kill -STOP $$; sleep 60", {"-n", "3"}));
  CHECK(stopped.code == 1);
  CHECK(contains(stopped.err, "launch: rank 1 of 3 (process "));
  CHECK(contains(stopped.err, ") is stopped, by SIGSTOP or a debugger, and holds up the others\n"));
  CHECK(stopped.seconds < 30);
  const auto for_a_moment =
      launch(shell("[ $RANK = 1 ] && { (sleep 1; kill -CONT $$) & kill -STOP $$; }; exit 0", {"-n", "2"}));
  CHECK(for_a_moment.code == 0);
  CHECK(for_a_moment.err.empty());
}

TEST_CASE("launch: what a rank leaves running does not keep the launcher waiting") {
  const PidFiles pids;
  const auto result = launch(shell("sleep 60 & " + pids.write_command("$!"), {"-n", "1"}));
  CHECK(result.code == 0);
  CHECK(result.seconds < kAtOnce);
  CHECK(within(std::chrono::seconds(20), [&] { return is_gone(pids.get(0)); }));
}

TEST_CASE("launch: a program that does not exist is named") {
  const auto result = launch({"-n", "1", "--exec", "/no/such/program", "--"});
  CHECK(result.code == 127);
  CHECK(contains(result.err, "cannot run /no/such/program: No such file or directory"));
}

TEST_CASE("launch: signals are forwarded to the ranks") {
  for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGUSR1}) {
    const PidFiles pids;
    const pid_t launcher = fork_launcher(shell(pids.write_command("$$") + "exec sleep 60", {"-n", "2"}));
    REQUIRE(within(std::chrono::seconds(10), [&] { return pids.get(0) > 0 && pids.get(1) > 0; }));
    kill(launcher, signal);
    int status = 0;
    REQUIRE(waitpid(launcher, &status, 0) == launcher);
    CHECK(WIFEXITED(status));
    CHECK(WEXITSTATUS(status) == 128 + signal);
    for (const int rank : {0, 1}) CHECK(is_gone(pids.get(rank)));
  }
}

TEST_CASE("launch: ranks that save when they are told to stop end with the code for it") {
  const PidFiles pids;
  const pid_t launcher = fork_launcher(
      shell("trap 'sleep 0.1; exit 75' TERM; " + pids.write_command("$$") + "while true; do sleep 0.05; done",
            {"-n", "2", "--max-restarts", "5"}));
  REQUIRE(within(std::chrono::seconds(10), [&] { return pids.get(0) > 0 && pids.get(1) > 0; }));
  kill(launcher, SIGTERM);
  int status = 0;
  REQUIRE(waitpid(launcher, &status, 0) == launcher);
  CHECK(WEXITSTATUS(status) == 75);
}

TEST_CASE("launch: a rank that stops by itself does not end the others before they have saved") {
  const auto result = launch(shell("trap 'exit 9' TERM; [ $RANK = 0 ] || sleep 0.3; exit 75", {"-n", "2"}));
  CHECK(result.code == 75);
  CHECK(result.err == "launch: all ranks have stopped and saved, exit code 75\n");
}

TEST_CASE("launch: ranks that do not end within the grace are killed") {
  const PidFiles pids;
  const pid_t launcher = fork_launcher(shell(
      "trap '' TERM; " + pids.write_command("$$") + "while true; do sleep 0.05; done", {"-n", "2", "--grace", "0"}));
  REQUIRE(within(std::chrono::seconds(10), [&] { return pids.get(0) > 0 && pids.get(1) > 0; }));
  kill(launcher, SIGTERM);
  int status = 0;
  REQUIRE(waitpid(launcher, &status, 0) == launcher);
  CHECK(WEXITSTATUS(status) == 128 + SIGTERM);
}

TEST_CASE("launch: --max-restarts starts all ranks again, with torchrun's count and another port") {
  const auto result = launch(shell(
      "echo $RANK $TORCHELASTIC_RESTART_COUNT $TORCHELASTIC_MAX_RESTARTS; test $TORCHELASTIC_RESTART_COUNT = 2 "
      "&& exit 0; test $RANK = 1 || sleep 60; if [ $TORCHELASTIC_RESTART_COUNT = 0 ]; then kill -KILL $$; fi; exit 3",
      {"-n", "2", "--max-restarts", "4"}));
  CHECK(result.code == 0);
  const auto lines = sorted_lines(result.out);
  CHECK(std::ranges::count(lines, "[rank0]: 0 2 4") == 1);
  CHECK(std::ranges::count(lines, "[rank1]: 1 0 4") == 1);
  CHECK(contains(result.err, "launch: restart 1 of 4, as rank 1 was ended by SIGKILL (Killed, signal 9)\n"));
  CHECK(contains(result.err, "launch: restart 2 of 4, as rank 1 exited with code 3\n"));
  CHECK_FALSE(contains(result.err, "restart 3"));
}

TEST_CASE("launch: a rank that was asked to end and has nothing to save is not restarted") {
  const auto result = launch(shell("exit 143", {"-n", "2", "--max-restarts", "3"}));
  CHECK(result.code == 143);
  CHECK(result.err.empty());
}

TEST_CASE("launch: what would fail again is not restarted") {
  const auto usage = launch(shell("exit 2", {"-n", "1", "--max-restarts", "4"}));
  CHECK(usage.code == 2);
  CHECK(contains(usage.err, "launch: no restart, as it would fail again\n"));
  const auto missing = launch({"-n", "1", "--max-restarts", "4", "--exec", "/no/such/program", "--"});
  CHECK(missing.code == 127);
  CHECK_FALSE(contains(missing.err, "restart 1"));
  const auto used_up = launch(shell("exit 7", {"-n", "1", "--max-restarts", "4"}));  // it reports no progress
  CHECK(used_up.code == 7);
  CHECK(contains(used_up.err, "launch: restart 4 of 4, as rank 0 exited with code 7\n"));
  CHECK(contains(used_up.err, "launch: no restart is left of 4\n"));
}

// A rank of the next test: says that it has done as many steps as its restarts allow, then fails.
TEST_CASE("launch process: steps are reported" * doctest::skip()) {
  auto page = comm::ProgressPage::from_environment();
  REQUIRE(page.has_value());
  CHECK(std::getenv("SFSDP_PROGRESS_FD") == nullptr);
  const int64_t restart = parse_int(std::getenv("TORCHELASTIC_RESTART_COUNT")).value();
  page->report(restart < 3 ? restart : 57);
  std::_Exit(9);
}

TEST_CASE("launch: a group that fails at one step three times in a row is given up") {
  const auto result = launch({"-n", "1", "--max-restarts", "40", "--exec", "/proc/self/exe", "--", "--no-skip",
                              "-tc=launch process: steps are reported"});
  CHECK(result.code == 9);
  CHECK(contains(result.err, "launch: restart 5 of 40, as rank 0 exited with code 9\n"));
  CHECK(contains(result.err, "launch: no restart, as it failed 3 times in a row after step 57\n"));
}

TEST_CASE("launch: ranks do not outlive a launcher that was killed") {
  const PidFiles pids;
  const pid_t launcher = fork_launcher(shell(pids.write_command("$$") + "exec sleep 60", {"-n", "2"}));
  const bool started = within(std::chrono::seconds(10), [&] { return pids.get(0) > 0 && pids.get(1) > 0; });
  kill(launcher, SIGKILL);
  waitpid(launcher, nullptr, 0);
  REQUIRE(started);
  for (const int rank : {0, 1}) CHECK(within(std::chrono::seconds(2), [&] { return is_gone(pids.get(rank)); }));
}

TEST_CASE("launch: wrong arguments are refused with what was expected and got") {
  const auto refused = [](const std::vector<std::string>& args, const std::string& message) {
    const auto result = launch(args);
    CHECK(result.code == 2);
    CHECK(result.err == "error: " + message + "\n");
  };
  refused({"-n", "0", "--"}, "-n = 0\n  expected a number from 1 to 1024");
  refused({"-n", "two", "--"}, "-n = two\n  expected a number from 1 to 1024");
  refused({"-n", "--"}, "-n without a value\n  expected -n N");
  refused({"--"}, "-n is missing\n  expected -n N, the number of ranks");
  refused({"-n", "2"}, "no -- and nothing after it\n  expected what the ranks run, as in: sfsdp launch -n 2 -- train");
  refused(
      {"train"},
      "argument train\n  expected a flag of sfsdp launch, or -- before what the ranks run, as in: sfsdp launch -n 2 "
      "-- train");
  refused({"-n", "2", "--log-rank", "0,2", "--"}, "--log-rank = 2\n  expected a number from 0 to 1");
  refused({"-n", "2", "--log-rank", "0,", "--"}, "--log-rank = \n  expected a number from 0 to 1");
  refused({"-n", "2", "--master-port", "70000", "--"}, "--master-port = 70000\n  expected a number from 1 to 65535");
  refused({"-n", "2", "--max-restarts", "-1", "--"}, "--max-restarts = -1\n  expected a number from 0 to 1000000");
  refused({"--log-ranks", "1"},
          "unknown flag --log-ranks\n  expected a flag that sfsdp launch --help lists; did you mean --log-rank?");
}

}  // namespace
}  // namespace sfsdp::tools::launch_test
