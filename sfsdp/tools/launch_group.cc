// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/tools/launch_group.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <ostream>
#include <stdexcept>
#include <utility>

#include "sfsdp/base/check.h"
#include "sfsdp/base/exit_code.h"
#include "sfsdp/base/strings.h"
#include "sfsdp/comm/peer_process.h"

namespace sfsdp::tools {
namespace {

constexpr std::chrono::seconds kFailureGrace{5};  // from SIGTERM to SIGKILL after a failure: time to write last lines
constexpr size_t kLastLines = 10;                 // of a failed rank's errors, repeated where the reader looks
// From the stop of a rank to its failure: ranks that wait for it in a collective come first, and name that.
constexpr std::chrono::seconds kMostStopped{6};
constexpr int64_t kLookMs = 500;  // how often is looked whether one is stopped

// Codes of a rank that a signal has asked to end, with and without a checkpoint. All ranks have agreed to it, so the others
// are about to end too.
bool is_stop(int code) {
  return code == kExitStopped || code == 128 + SIGTERM || code == 128 + SIGINT || code == 128 + SIGUSR1;
}

std::vector<char*> pointers(std::vector<std::string>& texts) {
  std::vector<char*> result;
  for (std::string& text : texts) result.push_back(text.data());
  result.push_back(nullptr);
  return result;
}

volatile std::sig_atomic_t signal_pipe_in = -1;

void on_signal(int signal) {
  const int saved = errno;
  const auto byte = static_cast<unsigned char>(signal);
  [[maybe_unused]] const auto written = write(signal_pipe_in, &byte, 1);  // full: a wake-up is on its way already
  errno = saved;
}

}  // namespace

std::runtime_error launch_error(const char* what, const char* cure) {
  return std::runtime_error(concat(what, ": ", std::strerror(errno), "\n  expected one; ", cure));
}

std::string signal_name(int signal) {
  const char* name = sigabbrev_np(signal);
  return name ? concat("SIG", name, " (", sigdescr_np(signal), ", signal ", signal, ")") : concat("signal ", signal);
}

SignalPipe::SignalPipe() {
  if (pipe2(pipe_.data(), O_CLOEXEC | O_NONBLOCK) != 0) throw launch_error("no pipe", "raise ulimit -n");
  signal_pipe_in = pipe_[1];
  struct sigaction action {};
  action.sa_handler = on_signal;
  action.sa_flags = SA_RESTART | SA_NOCLDSTOP;
  for (size_t i = 0; i < kHandled.size(); ++i) sigaction(kHandled[i], &action, &before_[i]);
  if (before_[2].sa_handler == SIG_IGN) sigaction(SIGHUP, &before_[2], nullptr);  // under nohup
}

SignalPipe::~SignalPipe() {
  for (size_t i = 0; i < kHandled.size(); ++i) sigaction(kHandled[i], &before_[i], nullptr);
  signal_pipe_in = -1;
  for (const int fd : pipe_) close(fd);
}

int SignalPipe::next() {
  unsigned char byte = 0;
  return read(pipe_[0], &byte, 1) == 1 ? byte : 0;
}

sigset_t SignalPipe::set() {
  sigset_t signals;
  sigemptyset(&signals);
  for (const int signal : kHandled) sigaddset(&signals, signal);
  return signals;
}

void SignalPipe::set_default() {
  for (const int signal : kHandled) std::signal(signal, SIG_DFL);
}

int LinePipe::open() {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) throw launch_error("no pipe", "raise ulimit -n");
  fd_ = ends[0];
  fcntl(fd_, F_SETFL, O_NONBLOCK);
  return ends[1];
}

bool LinePipe::read_some(const OnLine& line, const OnLine& live) {
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
  if (live && begun_.starts_with('\r') && begun_.ends_with("\033[K")) live(std::exchange(begun_, {}));
  return true;
}

void LinePipe::read_rest(const OnLine& line) {
  for (int turn = 0; turn < 16 && read_some(line); ++turn) {
  }
  finish(line);
}

void LinePipe::finish(const OnLine& line) {
  if (!begun_.empty()) line(std::exchange(begun_, {}));
  close_end();
}

void LinePipe::close_end() {
  if (fd_ >= 0) close(fd_);
  fd_ = -1;
}

RankGroup::RankGroup(const LaunchRequest& request, Environment environment, std::vector<int> inherited,
                     SignalPipe& signals, std::ostream& out, std::ostream& err)
    : request_(request),
      environment_(std::move(environment)),
      inherited_(std::move(inherited)),
      signals_(signals),
      out_(out),
      err_(err),
      children_(static_cast<size_t>(request.ranks)) {}

RankGroup::~RankGroup() {
  signal_all(SIGKILL);
  for (const Child& child : children_)
    if (child.pid > 0) waitpid(child.pid, nullptr, 0);
}

GroupEnd RankGroup::run() {
  for (size_t rank = 0; rank < children_.size(); ++rank) start(rank);
  while (std::ranges::any_of(children_, [](const Child& child) { return child.pid > 0; })) {
    wait_for_events();
    while (const int signal = signals_.next())
      if (signal != SIGCHLD) stop(signal);
    for (size_t rank = 0; rank < children_.size(); ++rank) {
      children_[rank].out.read_some(to_out(rank), to_live(rank));
      children_[rank].err.read_some(to_err(rank));
    }
    for (const size_t rank : ended()) reap(rank);
    for (size_t rank = 0; rank < children_.size(); ++rank) fail_if_stopped(rank);
    for (std::ostream* stream : {&out_, &err_}) {
      stream->flush();
      stream->clear();  // what a full disk has no room for is lost, not all that follows
    }
    if (kill_at_ && Clock::now() >= *kill_at_) kill_now();
  }
  end_.signalled = signalled_ != 0;
  return end_;
}

void RankGroup::start(size_t rank) {
  Child& child = children_[rank];
  auto variables = environment_(static_cast<int64_t>(rank));
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
  const sigset_t blocked = SignalPipe::set();
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
  if (child.pid < 0) throw launch_error("no process", "raise ulimit -u, or start fewer ranks");
}

void RankGroup::become_rank(pid_t launcher, int out, int err, char* const* argv, char* const* envp,
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
  for (const int fd : inherited_) fcntl(fd, F_SETFD, 0);
  SignalPipe::set_default();
  pthread_sigmask(SIG_SETMASK, &mask, nullptr);
  execve(request_.executable.c_str(), argv, envp);
  dprintf(STDERR_FILENO, "cannot run %s: %s; see --exec\n", request_.executable.c_str(), std::strerror(errno));
  _exit(127);  // as a shell's
}

void RankGroup::wait_for_events() {
  std::vector<pollfd> fds = {{signals_.fd(), POLLIN, 0}};
  for (const Child& child : children_)
    for (const int fd : {child.out.fd(), child.err.fd()})
      if (fd >= 0) fds.push_back({fd, POLLIN, 0});
  int64_t timeout_ms = children_.size() > 1 ? kLookMs : -1;
  if (kill_at_)
    timeout_ms = std::max<int64_t>(0, std::chrono::ceil<std::chrono::milliseconds>(*kill_at_ - Clock::now()).count());
  poll(fds.data(), fds.size(), static_cast<int>(timeout_ms));
}

OnLine RankGroup::to_out(size_t rank) {
  const auto shown = static_cast<int64_t>(rank);
  const bool show = request_.log_ranks.empty() || std::ranges::binary_search(request_.log_ranks, shown);
  const bool one = request_.ranks == 1 || request_.log_ranks.size() == 1;
  return [this, show, prefix = one ? "" : concat("[rank", rank, "]: ")](const std::string& line) {
    if (!show) return;
    out_ << prefix << line << '\n';
    live_is_shown_ = false;  // a rank clears it before its next line
  };
}

OnLine RankGroup::to_live(size_t rank) {
  if (request_.ranks > 1 && request_.log_ranks != std::vector{static_cast<int64_t>(rank)}) return {};
  return [this](const std::string& text) {
    out_ << text << std::flush;
    live_is_shown_ = true;
  };
}

OnLine RankGroup::to_err(size_t rank) {
  return [this, rank](const std::string& line) {
    if (std::exchange(live_is_shown_, false)) out_ << "\r\033[K" << std::flush;
    err_ << "[rank" << rank << "]: " << line << '\n';
    auto& last = children_[rank].last_errors;
    last.push_back(line);
    if (last.size() > kLastLines) last.pop_front();
  };
}

// Naive idea: in the order of ranks. What breaks it: on a busy host this comes late. One that was killed and one that waited
// for it and exited with an error have both ended by then, and the latter is no cause.
std::vector<size_t> RankGroup::ended() const {
  std::vector<size_t> killed, exited;
  for (size_t rank = 0; rank < children_.size(); ++rank) {
    const pid_t pid = children_[rank].pid;
    siginfo_t info{};
    if (pid < 0 || waitid(P_PID, static_cast<id_t>(pid), &info, WEXITED | WNOHANG | WNOWAIT) != 0 || info.si_pid == 0)
      continue;
    (info.si_code == CLD_EXITED ? exited : killed).push_back(rank);
  }
  killed.insert(killed.end(), exited.begin(), exited.end());
  return killed;
}

void RankGroup::reap(size_t rank) {
  Child& child = children_[rank];
  kill(-child.pid, SIGKILL);  // what it has started; before waitpid, while nobody else can have this id
  child.out.read_rest(to_out(rank));
  child.err.read_rest(to_err(rank));
  int status = 0;
  waitpid(child.pid, &status, 0);
  const pid_t pid = std::exchange(child.pid, -1);

  // The first failure is the cause; what other ranks do from there on is a consequence.
  if (status == 0 || end_.kind == GroupEnd::Kind::Failed || end_.kind == GroupEnd::Kind::Ended) return;
  if (WIFEXITED(status) && is_stop(WEXITSTATUS(status))) {
    const bool saved = WEXITSTATUS(status) == kExitStopped;
    end_ = {saved ? GroupEnd::Kind::Stopped : GroupEnd::Kind::Ended, WEXITSTATUS(status)};
    if (!kill_at_) kill_at_ = Clock::now() + request_.grace;
  } else if (signalled_ != 0 && WIFSIGNALED(status) && WTERMSIG(status) != SIGSEGV && WTERMSIG(status) != SIGABRT) {
    end_ = {GroupEnd::Kind::Ended, 128 + signalled_};
  } else {
    tell_failure(rank, pid, status);
  }
}

void RankGroup::tell_failure(size_t rank, pid_t pid, int status) {
  const Child& child = children_[rank];
  const int code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  const std::string how =
      WIFEXITED(status) ? concat("exited with code ", code) : concat("was ended by ", signal_name(WTERMSIG(status)));
  end_ = {GroupEnd::Kind::Failed, code, concat("rank ", rank, " ", how)};
  err_ << "launch: rank " << rank << " of " << request_.ranks << " (process " << pid << ") " << how;
  err_ << (child.last_errors.empty() ? "; it wrote no errors\n" : "; its last errors:\n");
  for (const std::string& line : child.last_errors) err_ << "  " << line << '\n';
  end(SIGTERM, kFailureGrace);
}

void RankGroup::fail_if_stopped(size_t rank) {
  Child& child = children_[rank];
  if (children_.size() == 1 || child.pid < 0 || kill_at_) return;
  if (!comm::PeerProcess{child.pid, 0}.is_stopped()) return child.stopped_since.reset();
  if (!child.stopped_since) child.stopped_since = Clock::now();
  if (Clock::now() - *child.stopped_since < kMostStopped) return;
  end_ = {GroupEnd::Kind::Failed, kExitFailed, concat("rank ", rank, comm::kIsStopped)};
  err_ << "launch: rank " << rank << " of " << request_.ranks << " (process " << child.pid << ")" << comm::kIsStopped
       << ", and holds up the others\n";
  end(SIGTERM, kFailureGrace);
}

void RankGroup::stop(int signal) {
  if (signal != SIGUSR1 && ending_signal_ != 0) return kill_now();  // the second one: somebody is impatient
  if (signal != SIGUSR1) ending_signal_ = signal;
  if (signalled_ == 0) signalled_ = signal;
  err_ << "launch: " << signal_name(signal) << ", forwarded to all ranks\n";
  if (end_.kind != GroupEnd::Kind::Failed) end(signal, request_.grace);
}

void RankGroup::end(int signal, Clock::duration grace) {
  kill_at_ = Clock::now() + grace;
  signal_all(signal);
  signal_all(SIGCONT);  // a stopped rank would take no other signal until it is killed
}

void RankGroup::kill_now() {
  kill_at_.reset();
  for (size_t rank = 0; rank < children_.size(); ++rank)
    if (children_[rank].pid > 0) err_ << "launch: rank " << rank << " did not end, killed\n";
  signal_all(SIGKILL);
}

void RankGroup::signal_all(int signal) {
  for (const Child& child : children_)
    if (child.pid > 0) kill(-child.pid, signal);
}

}  // namespace sfsdp::tools
