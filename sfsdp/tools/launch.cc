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
#include <array>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <optional>
#include <ostream>
#include <thread>
#include <utility>
#include <vector>

#include "sfsdp/base/check.h"
#include "sfsdp/base/error.h"
#include "sfsdp/base/strings.h"

namespace sfsdp::tools {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::chrono::milliseconds kGraceMs{5000};  // from SIGTERM to SIGKILL: time to write last lines
constexpr size_t kLastLines = 10;                    // of a failed rank's errors, repeated where the reader looks

using Line = std::function<void(const std::string& text)>;

struct LaunchRequest {
  int64_t ranks = 0;
  std::vector<int64_t> log_ranks;  // sorted; empty: all
  int64_t master_port = 0;         // 0: a free one
  std::string executable = "/proc/self/exe";
  std::vector<std::string> args;
};

// throws: UserError
LaunchRequest read_request(const Request& given) {
  LaunchRequest request;
  if (!given.has("n")) throw UserError("-n is missing\n  expected -n N, the number of ranks");
  request.ranks = number_of("-n", given.get("n"), 1, kMaxRanks);
  if (given.has("master-port")) request.master_port = number_of("--master-port", given.get("master-port"), 1, 65535);
  request.executable = given.get("exec", request.executable);
  if (given.has("log-rank"))
    for (const std::string& rank : split(given.get("log-rank"), ','))
      request.log_ranks.push_back(number_of("--log-rank", rank, 0, request.ranks - 1));
  std::ranges::sort(request.log_ranks);
  const auto repeated = std::ranges::unique(request.log_ranks);
  request.log_ranks.erase(repeated.begin(), repeated.end());
  if (!given.own.rest)
    throw UserError("no -- and nothing after it\n  expected what the ranks run, as in: sfsdp launch -n 2 -- train");
  request.args = *given.own.rest;
  return request;
}

std::runtime_error system_error(const char* what, const char* cure) {
  return std::runtime_error(concat(what, ": ", std::strerror(errno), "\n  expected one; ", cure));
}

// Nothing holds it until rank 0 listens; as the kernel hands such ports out in turn, nobody else gets it soon.
int64_t free_port() {
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof address;
  const bool ok = fd >= 0 && bind(fd, reinterpret_cast<sockaddr*>(&address), length) == 0 &&
                  getsockname(fd, reinterpret_cast<sockaddr*>(&address), &length) == 0;
  if (fd >= 0) close(fd);
  if (!ok) throw system_error("no free port", "try --master-port");
  return ntohs(address.sin_port);
}

// This process's environment and what torchrun adds to it, for one rank.
std::vector<std::string> environment(const LaunchRequest& request, int64_t rank) {
  std::map<std::string, std::string> variables;
  for (char** variable = environ; *variable; ++variable) {
    const std::string text = *variable;
    const size_t end = text.find('=');
    if (end != std::string::npos) variables[text.substr(0, end)] = text.substr(end + 1);
  }
  for (const char* name : {"RANK", "LOCAL_RANK", "ROLE_RANK"}) variables[name] = std::to_string(rank);
  for (const char* name : {"WORLD_SIZE", "LOCAL_WORLD_SIZE", "ROLE_WORLD_SIZE"})
    variables[name] = std::to_string(request.ranks);
  variables["GROUP_RANK"] = "0";
  variables["GROUP_WORLD_SIZE"] = "1";
  variables["MASTER_ADDR"] = "127.0.0.1";
  variables["MASTER_PORT"] = std::to_string(request.master_port);
  variables["TORCHELASTIC_RUN_ID"] = concat("launch-", getpid());
  const int64_t cores = std::thread::hardware_concurrency();
  variables.try_emplace("OMP_NUM_THREADS", std::to_string(std::max<int64_t>(1, cores / request.ranks)));
  std::vector<std::string> lines;
  for (const auto& [name, value] : variables) lines.push_back(concat(name, "=", value));
  return lines;
}

std::vector<char*> pointers(std::vector<std::string>& texts) {
  std::vector<char*> result;
  for (std::string& text : texts) result.push_back(text.data());
  result.push_back(nullptr);
  return result;
}

std::string signal_name(int signal) {
  const char* name = sigabbrev_np(signal);
  return name ? concat("SIG", name, " (", sigdescr_np(signal), ", signal ", signal, ")") : concat("signal ", signal);
}

// Turns signals into bytes of a pipe. A flag would be missed if its signal came between looking at it and poll.
volatile std::sig_atomic_t signal_pipe_in = -1;

void on_signal(int signal) {
  const int saved = errno;
  const auto byte = static_cast<unsigned char>(signal);
  [[maybe_unused]] const auto written = write(signal_pipe_in, &byte, 1);  // full: a wake-up is on its way already
  errno = saved;
}

class Signals {
 public:
  Signals() {
    if (pipe2(pipe_.data(), O_CLOEXEC | O_NONBLOCK) != 0) throw system_error("no pipe", "raise ulimit -n");
    signal_pipe_in = pipe_[1];
    struct sigaction action {};
    action.sa_handler = on_signal;
    action.sa_flags = SA_RESTART | SA_NOCLDSTOP;
    for (size_t i = 0; i < kHandled.size(); ++i) sigaction(kHandled[i], &action, &before_[i]);
    if (before_[2].sa_handler == SIG_IGN) sigaction(SIGHUP, &before_[2], nullptr);  // under nohup
  }
  ~Signals() {
    for (size_t i = 0; i < kHandled.size(); ++i) sigaction(kHandled[i], &before_[i], nullptr);
    signal_pipe_in = -1;
    for (const int fd : pipe_) close(fd);
  }
  Signals(const Signals&) = delete;
  Signals& operator=(const Signals&) = delete;

  int fd() const { return pipe_[0]; }
  int next() {  // 0: no more for now
    unsigned char byte = 0;
    return read(pipe_[0], &byte, 1) == 1 ? byte : 0;
  }
  static sigset_t set() {
    sigset_t signals;
    sigemptyset(&signals);
    for (const int signal : kHandled) sigaddset(&signals, signal);
    return signals;
  }
  static void set_default() {
    for (const int signal : kHandled) std::signal(signal, SIG_DFL);
  }

 private:
  static constexpr std::array kHandled = {SIGINT, SIGTERM, SIGHUP, SIGCHLD};
  std::array<int, 2> pipe_{};
  std::array<struct sigaction, kHandled.size()> before_{};
};

// The reading end of a child's output, cut into lines.
class LinePipe {
 public:
  LinePipe() = default;
  ~LinePipe() { close_end(); }
  LinePipe(const LinePipe&) = delete;
  LinePipe& operator=(const LinePipe&) = delete;

  // Returns the end for the child, which the caller closes.
  int open() {
    int ends[2];
    if (pipe2(ends, O_CLOEXEC) != 0) throw system_error("no pipe", "raise ulimit -n");
    fd_ = ends[0];
    fcntl(fd_, F_SETFL, O_NONBLOCK);
    return ends[1];
  }
  int fd() const { return fd_; }  // -1: closed

  // Calls line(text) for what there is, at most 64 KiB of it, so that a rank that floods does not silence the others.
  // False: nothing is there.
  bool read_some(const Line& line) {
    if (fd_ < 0) return false;
    std::array<char, 65536> buffer;
    const ssize_t n = read(fd_, buffer.data(), buffer.size());
    if (n < 0) return errno == EINTR;
    if (n == 0) {
      finish(line);
      return false;
    }
    begun_.append(buffer.data(), static_cast<size_t>(n));
    size_t begin = 0;
    for (size_t end; (end = begun_.find('\n', begin)) != std::string::npos; begin = end + 1)
      line(begun_.substr(begin, end - begin));
    begun_.erase(0, begin);
    return true;
  }

  // What is left of a dead child. Bounded, as a process that has left its group may still write: 1 MiB is the most a
  // pipe holds.
  void read_rest(const Line& line) {
    for (int turn = 0; turn < 16 && read_some(line); ++turn) {
    }
    finish(line);
  }

 private:
  void finish(const Line& line) {
    if (!begun_.empty()) line(std::exchange(begun_, {}));
    close_end();
  }
  void close_end() {
    if (fd_ >= 0) close(fd_);
    fd_ = -1;
  }

  int fd_ = -1;
  std::string begun_;  // a line whose end has not come
};

struct Child {
  pid_t pid = -1;  // -1: not started, or reaped
  LinePipe out, err;
  std::deque<std::string> last_errors;
};

class Launcher {
 public:
  Launcher(LaunchRequest request, std::ostream& out, std::ostream& err)
      : request_(std::move(request)), out_(out), err_(err), children_(static_cast<size_t>(request_.ranks)) {}

  // After an error half-way, ranks may be running.
  ~Launcher() {
    signal_all(SIGKILL);
    for (const Child& child : children_)
      if (child.pid > 0) waitpid(child.pid, nullptr, 0);
  }
  Launcher(const Launcher&) = delete;
  Launcher& operator=(const Launcher&) = delete;

  int run() {
    if (request_.master_port == 0) request_.master_port = free_port();
    for (size_t rank = 0; rank < children_.size(); ++rank) start(rank);
    while (std::ranges::any_of(children_, [](const Child& child) { return child.pid > 0; })) {
      wait_for_events();
      while (const int signal = signals_.next())
        if (signal != SIGCHLD) stop(signal);
      for (size_t rank = 0; rank < children_.size(); ++rank) {
        children_[rank].out.read_some(to_out(rank));
        children_[rank].err.read_some(to_err(rank));
      }
      for (size_t rank = 0; rank < children_.size(); ++rank) reap(rank);
      out_.flush();
      err_.flush();
      if (kill_at_ && Clock::now() >= *kill_at_) kill_now();
    }
    return code_;
  }

 private:
  void start(size_t rank) {
    Child& child = children_[rank];
    auto variables = environment(request_, static_cast<int64_t>(rank));
    std::vector<std::string> args = {"sfsdp"};
    args.insert(args.end(), request_.args.begin(), request_.args.end());
    const auto argv = pointers(args), envp = pointers(variables);  // before fork: after it, only system calls are safe
    const int out = child.out.open();
    int err = -1;
    try {
      err = child.err.open();
    } catch (...) {
      close(out);
      throw;
    }

    // A signal that reached the child before exec would write into the launcher's pipe.
    const sigset_t blocked = Signals::set();
    sigset_t before;
    pthread_sigmask(SIG_BLOCK, &blocked, &before);
    const pid_t launcher = getpid();
    child.pid = fork();
    if (child.pid == 0) become_rank(launcher, out, err, argv.data(), envp.data(), before);
    const int fork_error = errno;
    if (child.pid > 0) setpgid(child.pid, child.pid);  // here and in the child: whoever comes first
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
    close(out);
    close(err);
    errno = fork_error;
    if (child.pid < 0) throw system_error("no process", "raise ulimit -u, or start fewer ranks");
  }

  [[noreturn]] void become_rank(pid_t launcher, int out, int err, char* const* argv, char* const* envp,
                                const sigset_t& mask) {
    // A group of its own, so that whatever the rank starts can be ended with it. A terminal would stop such a group
    // when it reads, and N ranks could not share the input anyway.
    setpgid(0, 0);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != launcher) _exit(1);  // it died before prctl
    const int nothing = open("/dev/null", O_RDONLY | O_CLOEXEC);
    if (nothing >= 0) dup2(nothing, STDIN_FILENO);
    dup2(out, STDOUT_FILENO);
    dup2(err, STDERR_FILENO);
    Signals::set_default();
    pthread_sigmask(SIG_SETMASK, &mask, nullptr);
    execve(request_.executable.c_str(), argv, envp);
    dprintf(STDERR_FILENO, "cannot run %s: %s; see --exec\n", request_.executable.c_str(), std::strerror(errno));
    _exit(127);  // as a shell's
  }

  void wait_for_events() {
    std::vector<pollfd> fds = {{signals_.fd(), POLLIN, 0}};
    for (const Child& child : children_)
      for (const int fd : {child.out.fd(), child.err.fd()})
        if (fd >= 0) fds.push_back({fd, POLLIN, 0});
    int64_t timeout_ms = -1;
    if (kill_at_)
      timeout_ms = std::max<int64_t>(0, std::chrono::ceil<std::chrono::milliseconds>(*kill_at_ - Clock::now()).count());
    poll(fds.data(), fds.size(), static_cast<int>(timeout_ms));
  }

  Line to_out(size_t rank) {
    const auto shown = static_cast<int64_t>(rank);
    const bool show = request_.log_ranks.empty() || std::ranges::binary_search(request_.log_ranks, shown);
    const bool one = request_.ranks == 1 || request_.log_ranks.size() == 1;
    return [this, show, prefix = one ? "" : concat("[rank", rank, "]: ")](const std::string& line) {
      if (show) out_ << prefix << line << '\n';
    };
  }

  Line to_err(size_t rank) {
    return [this, rank](const std::string& line) {
      err_ << "[rank" << rank << "]: " << line << '\n';
      auto& last = children_[rank].last_errors;
      last.push_back(line);
      if (last.size() > kLastLines) last.pop_front();
    };
  }

  void reap(size_t rank) {
    Child& child = children_[rank];
    siginfo_t info{};
    if (child.pid < 0 || waitid(P_PID, static_cast<id_t>(child.pid), &info, WEXITED | WNOHANG | WNOWAIT) != 0 ||
        info.si_pid == 0)
      return;
    kill(-child.pid, SIGKILL);  // what it has started; before waitpid, while nobody else can have this id
    child.out.read_rest(to_out(rank));
    child.err.read_rest(to_err(rank));
    int status = 0;
    waitpid(child.pid, &status, 0);
    const pid_t pid = std::exchange(child.pid, -1);
    if (status == 0 || ending_) return;

    code_ = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    err_ << "launch: rank " << rank << " of " << request_.ranks << " (process " << pid << ") "
         << (WIFEXITED(status) ? concat("exited with code ", code_)
                               : concat("was ended by ", signal_name(WTERMSIG(status))));
    err_ << (child.last_errors.empty() ? "; it wrote no errors\n" : "; its last errors:\n");
    for (const std::string& line : child.last_errors) err_ << "  " << line << '\n';
    end(SIGTERM);
  }

  void stop(int signal) {
    if (code_ == 128 + signal && ending_) return kill_now();  // the second one: somebody is impatient
    err_ << "launch: " << signal_name(signal) << ", forwarded to all ranks\n";
    code_ = 128 + signal;
    end(signal);
  }

  void end(int signal) {
    ending_ = true;
    kill_at_ = Clock::now() + kGraceMs;
    signal_all(signal);
  }

  void kill_now() {
    kill_at_.reset();
    for (size_t rank = 0; rank < children_.size(); ++rank)
      if (children_[rank].pid > 0) err_ << "launch: rank " << rank << " did not end, killed\n";
    signal_all(SIGKILL);
  }

  void signal_all(int signal) {
    for (const Child& child : children_)
      if (child.pid > 0) kill(-child.pid, signal);
  }

  LaunchRequest request_;
  std::ostream& out_;
  std::ostream& err_;
  Signals signals_;
  std::vector<Child> children_;
  int code_ = 0;
  bool ending_ = false;  // the cause has been told; what ranks do from here on is a consequence
  std::optional<Clock::time_point> kill_at_;
};

}  // namespace

int run_launch(const Request& request, std::ostream& out, std::ostream& err) {
  return Launcher(read_request(request), out, err).run();
}

}  // namespace sfsdp::tools
