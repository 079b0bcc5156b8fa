// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/train/metrics.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string_view>

#include "sfsdp/base/check.h"
#include "sfsdp/base/error.h"
#include "sfsdp/base/strings.h"

namespace sfsdp::train {

namespace {

// As Python's {:width.decimalsf}: nan has no sign, whatever its bits.
std::string fixed(double value, int width, int decimals) {
  if (std::isnan(value)) value = std::abs(value);
  char buffer[400];
  std::snprintf(buffer, sizeof(buffer), "%*.*f", width, decimals, value);
  return buffer;
}

std::string padded(int64_t value, size_t width) {
  const std::string text = std::to_string(value);
  return std::string(width > text.size() ? width - text.size() : 0, ' ') + text;
}

}  // namespace

std::string console_line(const StepMetrics& metrics, Color color) {
  const auto in = [&](std::string_view code) {
    return color == Color::On ? concat("\033[", code, "m") : std::string();
  };
  return concat(in("31"), "step: ", padded(metrics.step, 2), "  ",                           // red
                in("32"), "loss: ", fixed(metrics.loss, 8, 5), "  ",                         // green
                in("38;2;180;60;0"), "grad_norm: ", fixed(metrics.grad_norm, 7, 4), "  ",    // orange
                in("38;2;54;234;195"), "memory: ", fixed(metrics.memory_gib, 5, 2), "GiB(",  // turquoise
                fixed(metrics.memory_percent, 0, 2), "%)  ",                                 //
                in("34"), "tps: ", with_commas(std::nearbyint(metrics.tps), 0), "  ",        // blue
                in("36"), "tflops: ", with_commas(metrics.tflops, 2),                        // cyan
                metrics.mfu_percent ? concat("  ", in("35"), "mfu: ", fixed(*metrics.mfu_percent, 0, 2), "%") : "",
                in("39"));  // magenta
}

int64_t flops_per_token(const ModelSize& size, int64_t seq_len) {
  SFSDP_CHECK(size.heads >= 1, "heads ", size.heads);
  return 6 * (size.parameters - size.embedding_parameters) +
         12 * size.layers * size.heads * (size.dim / size.heads) * seq_len;
}

void set_flops(StepMetrics& metrics, int64_t flops_per_token, std::optional<double> peak_flops) {
  const double flops = static_cast<double>(flops_per_token) * metrics.tps;
  metrics.tflops = flops / 1e12;
  metrics.mfu_percent = peak_flops ? std::optional(100 * flops / *peak_flops) : std::nullopt;
}

std::string json_line(const StepMetrics& metrics) {
  const auto number = [](double value) -> std::string {
    if (std::isnan(value)) return "\"nan\"";
    if (std::isinf(value)) return value > 0 ? "\"inf\"" : "\"-inf\"";
    char buffer[64];
    std::snprintf(buffer, sizeof(buffer), "%.17g", value);
    return buffer;
  };
  return concat("{\"step\": ", metrics.step, ", \"loss\": ", number(metrics.loss),
                ", \"grad_norm\": ", number(metrics.grad_norm), ", \"lr\": ", number(metrics.lr),
                ", \"tokens\": ", metrics.tokens, ", \"step_time_s\": ", number(metrics.step_time_s),
                ", \"tps\": ", number(metrics.tps), ", \"memory_gib\": ", number(metrics.memory_gib), "}");
}

namespace {

[[noreturn]] void fail_to_write(const std::string& path, const std::string& why) {
  throw UserError(concat(path, ": ", why, "\n  expected a file that can be written; set --job.dump_folder"));
}

// A short write (disk full, then space again) goes on where it stopped.
void write_all(int fd, std::string_view text, const std::string& path) {
  while (!text.empty()) {
    const ssize_t written = ::write(fd, text.data(), text.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) fail_to_write(path, std::strerror(errno));
    text.remove_prefix(static_cast<size_t>(written));
  }
}

}  // namespace

void cut_metrics(const std::string& path, int64_t step) {
  std::ifstream file(path, std::ios::binary);
  if (!file) return;
  std::string line;
  int64_t kept = 0;
  while (std::getline(file, line) && !file.eof()) {
    constexpr std::string_view kStep = "{\"step\": ";
    const auto found =
        line.starts_with(kStep) ? parse_int(line.substr(kStep.size(), line.find(',') - kStep.size())) : std::nullopt;
    if (found && *found > step) break;
    kept += static_cast<int64_t>(line.size()) + 1;
  }
  if (::truncate(path.c_str(), kept) != 0) fail_to_write(path, std::strerror(errno));
}

MetricsFile::MetricsFile(const std::string& path) : path_(path) {
  const std::filesystem::path folder = std::filesystem::path(path).parent_path();
  std::error_code error;
  if (!folder.empty()) std::filesystem::create_directories(folder, error);
  if (error) fail_to_write(path, error.message());
  fd_ = ::open(path.c_str(), O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
  if (fd_ < 0) fail_to_write(path, std::strerror(errno));
  char last = '\n';
  const off_t size = ::lseek(fd_, 0, SEEK_END);
  if (size > 0 && ::pread(fd_, &last, 1, size - 1) == 1 && last != '\n') write_all(fd_, "\n", path_);
}

MetricsFile::~MetricsFile() { ::close(fd_); }

void MetricsFile::write(const StepMetrics& metrics) { write_all(fd_, json_line(metrics) + "\n", path_); }

}  // namespace sfsdp::train
