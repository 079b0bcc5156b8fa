// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/tools/launch.h"

#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <optional>
#include <ostream>
#include <thread>
#include <vector>

#include "sfsdp/base/check.h"
#include "sfsdp/base/error.h"
#include "sfsdp/base/strings.h"

namespace sfsdp::tools {
namespace {

using Clock = std::chrono::steady_clock;
constexpr int kGraceMs = 5000;     // between SIGTERM and SIGKILL
constexpr size_t kLastLines = 10;  // of a failed rank's errors, repeated at the end

struct Request {
  int ranks = 0;
  std::vector<int64_t> log_ranks;  // empty: all
  int master_port = 0;             // 0: a free one
  std::string executable = "/proc/self/exe";
  std::vector<std::string> args;
};

int64_t number(const std::string& flag, const std::string& text, int64_t low, int64_t high) {
  const auto value = parse_int(text);
  if (!value || *value < low || *value > high)
    throw UserError(concat("launch: ", flag, " ", text, "\n  expected a number from ", low, " to ", high));
  return *value;
}

Request parse(std::span<const std::string> args) {
  Request request;
  size_t i = 0;
  for (; i < args.size() && args[i] != "--"; i += 2) {
    const std::string& flag = args[i];
    if (flag != "-n" && flag != "--log-rank" && flag != "--master-port" && flag != "--exec")
      throw UserError(
          concat("launch: unknown flag ", flag, "\n  expected -n, --log-rank, --master-port, --exec or --"));
    if (i + 1 == args.size()) throw UserError(concat("launch: ", flag, "\n  expected a value behind it"));
    const std::string& value = args[i + 1];
    if (flag == "-n") request.ranks = static_cast<int>(number(flag, value, 1, 1024));
    if (flag == "--master-port") request.master_port = static_cast<int>(number(flag, value, 1, 65535));
    if (flag == "--exec") request.executable = value;
    if (flag == "--log-rank")
      for (const std::string& rank : split(value, ',')) request.log_ranks.push_back(number(flag, rank, 0, 1023));
  }
  if (request.ranks == 0) throw UserError("launch: no -n\n  expected -n N, the number of ranks");
  if (i == args.size()) throw UserError("launch: no command\n  expected -- and the arguments of each rank behind it");
  request.args.assign(args.begin() + static_cast<ptrdiff_t>(i) + 1, args.end());
  for (int64_t rank : request.log_ranks)
    if (rank >= request.ranks)
      throw UserError(concat("launch: --log-rank ", rank, "\n  expected a rank below ", request.ranks));
  return request;
}

int free_port() {
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof address;
  const bool ok = fd >= 0 && bind(fd, reinterpret_cast<sockaddr*>(&address), length) == 0 &&
                  getsockname(fd, reinterpret_cast<sockaddr*>(&address), &length) == 0;
  if (fd >= 0) close(fd);
  if (!ok) throw UserError(concat("launch: no free port: ", std::strerror(errno), "\n  set --master-port"));
  return ntohs(address.sin_port);
}

volatile std::sig_atomic_t stop_signal = 0;
void on_signal(int signal) { stop_signal = signal; }

// One pipe of a child, cut into lines.
struct Stream {
  int fd = -1;
  std::string partial;

  // Reads what is there; calls line(text) for each whole line. Closes the pipe at its end.
  template <class Line>
  void drain(Line line) {
    char buffer[65536];
    for (;;) {
      const ssize_t n = read(fd, buffer, sizeof buffer);
      if (n < 0 && errno == EINTR) continue;
      if (n < 0) return;  // EAGAIN
      if (n == 0) break;
      partial.append(buffer, static_cast<size_t>(n));
      size_t begin = 0;
      for (size_t end; (end = partial.find('\n', begin)) != std::string::npos; begin = end + 1)
        line(partial.substr(begin, end - begin));
      partial.erase(0, begin);
    }
    if (!partial.empty()) line(partial);
    partial.clear();
    close(fd);
    fd = -1;
  }
};

struct Child {
  pid_t pid = -1;
  Stream out, err;
  std::deque<std::string> last_errors;
  std::optional<int> status;
};

class Launcher {
 public:
  Launcher(Request request, std::ostream& out, std::ostream& err)
      : request_(std::move(request)), out_(out), err_(err), children_(static_cast<size_t>(request_.ranks)) {}

  int run() {
    if (request_.master_port == 0) request_.master_port = free_port();
    for (int r = 0; r < request_.ranks; ++r) start(r);
    while (std::ranges::any_of(children_, [](const Child& c) { return !c.status || c.out.fd >= 0 || c.err.fd >= 0; })) {
      pump();
      reap();
      if (stop_signal && !ending_) end_all(concat("launch: signal ", strsignal(stop_signal)));
      if (ending_ && Clock::now() > kill_at_) kill_all(SIGKILL);
    }
    if (stop_signal && code_ == 0) code_ = 128 + stop_signal;
    return code_;
  }

 private:
  void start(int rank) {
    Child& child = children_[static_cast<size_t>(rank)];
    int out[2], err[2];
    if (pipe2(out, O_CLOEXEC) != 0 || pipe2(err, O_CLOEXEC) != 0)
      throw UserError(
          concat("launch: no pipe: ", std::strerror(errno), "\n  raise the limit of open files (ulimit -n)"));
    const pid_t parent = getpid();
    child.pid = fork();
    if (child.pid < 0) throw UserError(concat("launch: fork: ", std::strerror(errno)));
    if (child.pid == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      if (getppid() != parent) _exit(1);  // the launcher died before prctl
      dup2(out[1], STDOUT_FILENO);
      dup2(err[1], STDERR_FILENO);
      exec(rank);
    }
    close(out[1]);
    close(err[1]);
    child.out.fd = out[0];
    child.err.fd = err[0];
    for (int fd : {out[0], err[0]}) fcntl(fd, F_SETFL, O_NONBLOCK);
  }

  [[noreturn]] void exec(int rank) {
    const auto set = [](const char* name, const std::string& value) { setenv(name, value.c_str(), 1); };
    for (const char* name : {"RANK", "LOCAL_RANK", "ROLE_RANK"}) set(name, std::to_string(rank));
    for (const char* name : {"WORLD_SIZE", "LOCAL_WORLD_SIZE", "ROLE_WORLD_SIZE"})
      set(name, std::to_string(request_.ranks));
    set("GROUP_RANK", "0");
    set("MASTER_ADDR", "127.0.0.1");
    set("MASTER_PORT", std::to_string(request_.master_port));
    set("TORCHELASTIC_RUN_ID", concat("launch-", getppid()));
    const unsigned cores = std::thread::hardware_concurrency();
    setenv("OMP_NUM_THREADS", std::to_string(std::max(1u, cores / static_cast<unsigned>(request_.ranks))).c_str(), 0);
    std::vector<char*> argv = {const_cast<char*>("sfsdp")};
    for (std::string& arg : request_.args) argv.push_back(arg.data());
    argv.push_back(nullptr);
    execv(request_.executable.c_str(), argv.data());
    dprintf(STDERR_FILENO, "cannot run %s: %s\n", request_.executable.c_str(), std::strerror(errno));
    _exit(127);
  }

  bool shows(size_t rank) const {
    return request_.log_ranks.empty() ||
           std::ranges::find(request_.log_ranks, static_cast<int64_t>(rank)) != request_.log_ranks.end();
  }

  // Waits up to 100 ms for output and hands it on.
  void pump() {
    std::vector<pollfd> fds;
    for (const Child& c : children_)
      for (int fd : {c.out.fd, c.err.fd})
        if (fd >= 0) fds.push_back({fd, POLLIN, 0});
    poll(fds.data(), fds.size(), 100);
    const bool one_shown = request_.log_ranks.size() == 1 || request_.ranks == 1;
    for (size_t r = 0; r < children_.size(); ++r) {
      Child& c = children_[r];
      const std::string prefix = one_shown ? "" : concat("[rank", r, "]: ");
      if (c.out.fd >= 0)
        c.out.drain([&](const std::string& line) {
          if (shows(r)) out_ << prefix << line << "\n";
        });
      if (c.err.fd >= 0)
        c.err.drain([&](const std::string& line) {
          err_ << "[rank" << r << "]: " << line << "\n";
          c.last_errors.push_back(line);
          if (c.last_errors.size() > kLastLines) c.last_errors.pop_front();
        });
    }
    out_.flush();
    err_.flush();
  }

  void reap() {
    for (size_t r = 0; r < children_.size(); ++r) {
      Child& c = children_[r];
      int status = 0;
      if (c.status || waitpid(c.pid, &status, WNOHANG) != c.pid) continue;
      c.status = status;
      const bool failed = !WIFEXITED(status) || WEXITSTATUS(status) != 0;
      if (!failed || ending_) continue;
      pump();  // its last words
      code_ = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
      std::string text = concat(
          "launch: rank ", r, " (process ", c.pid, ") ",
          WIFEXITED(status) ? concat("exited with code ", code_)
                            : concat("was ended by signal ", WTERMSIG(status), " (", strsignal(WTERMSIG(status)), ")"));
      if (!c.last_errors.empty()) text += "; its last errors:";
      for (const std::string& line : c.last_errors) text += "\n  " + line;
      end_all(text);
    }
  }

  void end_all(const std::string& why) {
    err_ << why << "\nlaunch: ending the other ranks" << std::endl;
    ending_ = true;
    kill_at_ = Clock::now() + std::chrono::milliseconds(kGraceMs);
    kill_all(SIGTERM);
  }

  void kill_all(int signal) {
    for (const Child& c : children_)
      if (!c.status) kill(c.pid, signal);
  }

  Request request_;
  std::ostream& out_;
  std::ostream& err_;
  std::vector<Child> children_;
  int code_ = 0;
  bool ending_ = false;
  Clock::time_point kill_at_;
};

}  // namespace

int run_launch(std::span<const std::string> args, std::ostream& out, std::ostream& err) {
  Request request;
  try {
    request = parse(args);
  } catch (const UserError& error) {
    err << "error: " << error.what() << "\n";
    return 2;
  }
  stop_signal = 0;
  struct sigaction action {};
  action.sa_handler = on_signal;
  struct sigaction old_int {
  }, old_term{};
  sigaction(SIGINT, &action, &old_int);
  sigaction(SIGTERM, &action, &old_term);
  int code = 1;
  try {
    code = Launcher(std::move(request), out, err).run();
  } catch (const UserError& error) {
    err << "error: " << error.what() << "\n";
  }
  sigaction(SIGINT, &old_int, nullptr);
  sigaction(SIGTERM, &old_term, nullptr);
  return code;
}

}  // namespace sfsdp::tools
