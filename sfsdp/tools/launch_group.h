// SPDX-License-Identifier: BSD-3-Clause
// One group of ranks as `sfsdp launch` runs it: started together, watched, ended together. launch.cc starts another one
// when a rank has failed.
#pragma once

#include <sys/types.h>

#include <array>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <deque>
#include <functional>
#include <iosfwd>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

namespace sfsdp::tools {

struct LaunchRequest {
  int64_t ranks = 0;
  std::vector<int64_t> log_ranks;  // sorted; empty: all
  int64_t master_port = 0;         // 0: a free one
  int64_t max_restarts = 0;
  std::chrono::seconds grace{120};  // from a forwarded signal to SIGKILL: time for a checkpoint
  std::string executable = "/proc/self/exe";
  std::vector<std::string> args;
};

// "no pipe: <what errno says>\n  expected one; <cure>".
std::runtime_error launch_error(const char* what, const char* cure);

// Turns signals into bytes of a pipe. A flag would be missed if its signal came between looking at it and poll. One at a
// time per process.
class SignalPipe {
 public:
  SignalPipe();
  ~SignalPipe();
  SignalPipe(const SignalPipe&) = delete;
  SignalPipe& operator=(const SignalPipe&) = delete;

  int fd() const { return pipe_[0]; }
  int next();  // 0: no more for now
  static sigset_t set();
  static void set_default();

 private:
  static constexpr std::array kHandled = {SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGCHLD};
  std::array<int, 2> pipe_{};
  std::array<struct sigaction, kHandled.size()> before_{};
};

using OnLine = std::function<void(const std::string& text)>;

// The reading end of a child's output, cut into lines.
class LinePipe {
 public:
  LinePipe() = default;
  ~LinePipe() { close_end(); }
  LinePipe(const LinePipe&) = delete;
  LinePipe& operator=(const LinePipe&) = delete;

  // Returns the end for the child, which the caller closes.
  int open();
  int fd() const { return fd_; }  // -1: closed

  // Calls line(text) for what there is, at most 64 KiB of it, so that a rank that floods does not silence the others.
  //   live: if set, gets a line that a rank writes over again and again, "\r…\033[K", before its end has come
  // False: nothing is there.
  bool read_some(const OnLine& line, const OnLine& live = {});
  // What is left of a dead child. Bounded, as a process that has left its group may still write: 1 MiB is the most a
  // pipe holds.
  void read_rest(const OnLine& line);

 private:
  void finish(const OnLine& line);
  void close_end();

  int fd_ = -1;
  std::string begun_;  // a line whose end has not come
};

// How a group has ended.
struct GroupEnd {
  enum class Kind : uint8_t {
    Done,     // all ranks with 0
    Stopped,  // with kExitStopped: they have saved what they had
    Ended,    // by a signal that the launcher got, without saving
    Failed,   // a rank exited with another code, or was killed
  };
  Kind kind = Kind::Done;
  int code = 0;            // what `sfsdp launch` returns if it does not go on
  std::string cause = {};  // of Failed: "rank 1 exited with code 3"
  bool signalled = false;  // the launcher was asked to stop
};

class RankGroup {
 public:
  // environment(rank): "NAME=value" of each variable.   inherited: descriptors that the ranks get, as they are
  using Environment = std::function<std::vector<std::string>(int64_t rank)>;
  RankGroup(const LaunchRequest& request, Environment environment, std::vector<int> inherited, SignalPipe& signals,
            std::ostream& out, std::ostream& err);
  // After an error half-way, ranks may be running.
  ~RankGroup();
  RankGroup(const RankGroup&) = delete;
  RankGroup& operator=(const RankGroup&) = delete;

  // Starts the ranks and returns when all have ended. At the first that fails the others get SIGTERM and after 5 s SIGKILL.
  // One of several that has been stopped for 6 s has failed: before the ranks have met, nobody else can see it.
  GroupEnd run();

 private:
  using Clock = std::chrono::steady_clock;
  struct Child {
    pid_t pid = -1;  // -1: not started, or reaped
    LinePipe out, err;
    std::deque<std::string> last_errors;
    std::optional<Clock::time_point> stopped_since = {};
  };

  void start(size_t rank);
  [[noreturn]] void become_rank(pid_t launcher, int out, int err, char* const* argv, char* const* envp,
                                const sigset_t& mask);
  void wait_for_events();
  std::vector<size_t> ended() const;  // ranks, not reaped yet; those that a signal has ended come first
  void reap(size_t rank);
  void tell_failure(size_t rank, pid_t pid, int status);
  void fail_if_stopped(size_t rank);
  void stop(int signal);
  void end(int signal, Clock::duration grace);
  void kill_now();
  void signal_all(int signal);
  OnLine to_out(size_t rank);
  OnLine to_live(size_t rank);  // unset where several ranks would write over each other
  OnLine to_err(size_t rank);

  const LaunchRequest& request_;
  Environment environment_;
  std::vector<int> inherited_;
  SignalPipe& signals_;
  std::ostream& out_;
  std::ostream& err_;
  std::vector<Child> children_;
  bool live_is_shown_ = false;  // the terminal's last line is a rank's live line
  GroupEnd end_;
  int signalled_ = 0;      // the first signal that was forwarded
  int ending_signal_ = 0;  // the first of those that a second one makes a kill
  std::optional<Clock::time_point> kill_at_;
};

// "SIGKILL (Killed, signal 9)"
std::string signal_name(int signal);

}  // namespace sfsdp::tools
