// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/train/metrics.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <string_view>

#include "sfsdp/base/check.h"
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

std::string color_code(Color color, std::string_view code) {
  return color == Color::On ? concat("\033[", code, "m") : std::string();
}

}  // namespace

std::string console_line(const StepMetrics& metrics, Color color) {
  const auto in = [&](std::string_view code) { return color_code(color, code); };
  return concat(in("31"), "step: ", padded(metrics.step, 2), "  ",                           // red
                in("32"), "loss: ", fixed(metrics.loss, 8, 5), "  ",                         // green
                in("38;2;180;60;0"), "grad_norm: ", fixed(metrics.grad_norm, 7, 4), "  ",    // orange
                in("38;2;54;234;195"), "memory: ", fixed(metrics.memory_gib, 5, 2), "GiB(",  // turquoise
                fixed(metrics.memory_percent, 0, 2), "%)  ",                                 //
                in("34"), "tps: ", with_commas(std::nearbyint(metrics.tps), 0), "  ",        // blue
                in("36"), "tflops: ", with_commas(metrics.tflops, 2),                        // cyan
                metrics.mfu_percent ? concat("  ", in("35"), "mfu: ", fixed(*metrics.mfu_percent, 0, 2), "%") : "",
                in("39"),  // magenta
                metrics.eta_s ? "  eta: " + duration_text(*metrics.eta_s) : "");
}

std::string console_line(const ValidationMetrics& metrics, Color color) {
  const auto in = [&](std::string_view code) { return color_code(color, code); };
  return concat(in("33"), "validate step: ", padded(metrics.step, 2), "  ",                  // yellow
                in("32"), "loss: ", fixed(metrics.loss, 7, 4), "  ",                         // green
                in("38;2;54;234;195"), "memory: ", fixed(metrics.memory_gib, 5, 2), "GiB(",  // turquoise
                fixed(metrics.memory_percent, 0, 2), "%)  ",                                 //
                in("34"), "tps: ", with_commas(std::nearbyint(metrics.tps), 0), in("39"));   // blue
}

std::string duration_text(double seconds) {
  if (!(seconds < 1e9)) return "?";  // 30 years, or no number
  const auto whole = static_cast<int64_t>(std::ceil(std::max(seconds, 0.0)));
  const int64_t days = whole / 86400, hours = whole / 3600 % 24;
  char text[64];
  std::snprintf(text, sizeof text, days > 0 ? "%02lld:%02lld:%02lld" : "%lld:%02lld:%02lld",
                static_cast<long long>(hours), static_cast<long long>(whole / 60 % 60),
                static_cast<long long>(whole % 60));
  return days > 0 ? concat(days, "d ", text) : text;
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

std::string json_number(double value) {
  if (std::isnan(value)) return "\"nan\"";
  if (std::isinf(value)) return value > 0 ? "\"inf\"" : "\"-inf\"";
  char buffer[64];
  std::snprintf(buffer, sizeof(buffer), "%.17g", value);
  return buffer;
}

std::string json_line(const StepMetrics& metrics) {
  std::string text = concat("{\"step\": ", metrics.step, ", \"loss\": ", json_number(metrics.loss));
  const auto add = [&](std::string_view name, double value) {
    text += concat(", \"", name, "\": ", json_number(value));
  };
  if (metrics.max_loss) add("max_loss", *metrics.max_loss);
  if (metrics.expert_tokens) add("expert_tokens", *metrics.expert_tokens);
  if (metrics.expert_rows) add("expert_rows", *metrics.expert_rows);
  if (metrics.expert_rounds) add("expert_rounds", *metrics.expert_rounds);
  add("grad_norm", metrics.grad_norm);
  add("lr", metrics.lr);
  text += concat(", \"tokens\": ", metrics.tokens);
  if (metrics.targets) text += concat(", \"targets\": ", *metrics.targets);
  add("step_time_s", metrics.step_time_s);
  add("tps", metrics.tps);
  add("memory_gib", metrics.memory_gib);
  add("memory_state_gib", metrics.memory_state_gib);
  add("data_s", metrics.data_s);
  add("forward_backward_s", metrics.forward_backward_s);
  add("optimizer_s", metrics.optimizer_s);
  add("comm_exposed_s", metrics.comm_exposed_s);
  add("between_s", metrics.between_s);
  return text + "}";
}

std::string json_line(const ValidationMetrics& metrics) {
  return concat("{\"step\": ", metrics.step, ", \"validation_loss\": ", json_number(metrics.loss),
                ", \"validation_tokens\": ", metrics.tokens, ", \"validation_s\": ", json_number(metrics.seconds),
                ", \"validation_tps\": ", json_number(metrics.tps),
                ", \"validation_memory_gib\": ", json_number(metrics.memory_gib), "}");
}

}  // namespace sfsdp::train
