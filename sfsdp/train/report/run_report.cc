// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/train/report/run_report.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <vector>

#include "sfsdp/base/check.h"
#include "sfsdp/base/html_page.h"
#include "sfsdp/base/strings.h"
#include "sfsdp/train/report/thin.h"

namespace sfsdp::train {
namespace {

std::string pairs_list(const std::vector<std::pair<std::string, std::string>>& pairs) {
  return page_list(pairs,
                   [](const auto& p) { return concat("[", json_quoted(p.first), ",", json_quoted(p.second), "]"); });
}

double median(std::vector<double> values) {
  std::erase_if(values, [](double v) { return !std::isfinite(v); });
  if (values.empty()) return kNan;
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

std::vector<double> column(const std::vector<StepLine>& steps, Field field) {
  std::vector<double> values;
  values.reserve(steps.size());
  for (const StepLine& line : steps) values.push_back(line[field]);
  return values;
}

// Adds the finite values; nan where there is none.
double sum(const std::vector<StepLine>& steps, Field field) {
  double total = kNan;
  for (const StepLine& line : steps)
    if (std::isfinite(line[field])) total = (std::isnan(total) ? 0 : total) + line[field];
  return total;
}

// What the table of runs says: of the last ten steps a mean, of speed the median, as one slow step says little.
std::string figures(const RunFiles& run) {
  const std::vector<StepLine>& steps = run.steps;
  double loss = 0, memory = kNan;
  const size_t last = std::min<size_t>(steps.size(), 10);
  for (size_t i = steps.size() - last; i < steps.size(); ++i) loss += steps[i][Field::Loss] / static_cast<double>(last);
  for (const StepLine& line : steps) memory = std::fmax(memory, line[Field::Memory]);  // the other one where one is nan
  const double between = sum(steps, Field::Between);
  const double seconds = sum(steps, Field::StepTime) + (std::isfinite(between) ? between : 0);
  const double tps = median(column(steps, Field::Tps));
  const RunStart start = run.starts.empty() ? RunStart() : run.starts.back();
  const double mfu = start.peak_flops > 0 ? 100 * tps * start.flops_per_token / start.peak_flops : kNan;
  return concat("{\"step\":", steps.empty() ? 0 : steps.back().step, ",\"loss\":", last ? page_number(loss) : "null",
                ",\"validation\":", run.validations.empty() ? "null" : page_number(run.validations.back().loss),
                ",\"tokens\":", steps.empty() ? "null" : page_number(steps.back()[Field::Tokens]),
                ",\"seconds\":", page_number(seconds), ",\"tps\":", page_number(tps), ",\"mfu\":", page_number(mfu),
                ",\"memory\":", page_number(memory), ",\"data\":", page_number(100 * sum(steps, Field::Data) / seconds),
                ",\"exposed\":", page_number(100 * sum(steps, Field::Exposed) / seconds), "}");
}

// Columns, as a list for each field; least and most only where points stand for several steps.
std::string curves(const std::vector<Point>& points, bool single) {
  const auto of_points = [&](const auto& value) {
    return page_list(points, [&](const Point& p) { return page_number(value(p)); });
  };
  std::string text =
      concat("\"first\":", of_points([](const Point& p) { return static_cast<double>(p.first); }),
             ",\n\"last\":", of_points([](const Point& p) { return static_cast<double>(p.last); }),
             ",\n\"seconds\":", of_points([](const Point& p) { return p.seconds; }),
             ",\n\"tokens\":", of_points([](const Point& p) { return p.tokens; }),
             ",\n\"notFinite\":", of_points([](const Point& p) { return static_cast<double>(p.not_finite); }));
  const auto add = [&](const char* name, std::array<double, kFields> Point::*values) {
    text += concat(",\n\"", name, "\":{");
    for (size_t f = 0; f < kFields; ++f)
      text += concat(f ? ",\n" : "", "\"", to_string(static_cast<Field>(f)),
                     "\":", of_points([&](const Point& p) { return (p.*values)[f]; }));
    text += "}";
  };
  add("mean", &Point::mean);
  if (!single) {
    add("least", &Point::least);
    add("most", &Point::most);
  }
  return text;
}

// At most `limit` of them, the last one too.
std::vector<ValidationLine> every_nth(const std::vector<ValidationLine>& lines, size_t limit) {
  const size_t n = (lines.size() + limit - 1) / limit;
  std::vector<ValidationLine> some;
  for (size_t i = 0; i < lines.size(); ++i)
    if ((lines.size() - 1 - i) % n == 0) some.push_back(lines[i]);
  return some;
}

std::string run_json(const RunFiles& run, size_t limit) {
  const RunStart start = run.starts.empty() ? RunStart() : run.starts.back();
  return concat(
      "{\"name\":", json_quoted(run.name), ",\"figures\":", figures(run), ",\"steps\":", run.steps.size(),
      ",\"starts\":", page_list(run.starts, [](const RunStart& s) { return std::to_string(s.first_step); }),
      ",\"validations\":",
      page_list(every_nth(run.validations, limit),
                [](const ValidationLine& v) { return concat("[", v.step, ",", page_number(v.loss), "]"); }),
      ",\"planned\":",
      page_list(start.planned_memory,
                [](const auto& p) { return concat("[", json_quoted(p.first), ",", page_number(p.second), "]"); }),
      ",\"device\":", page_number(start.device_bytes), ",\"flopsPerToken\":", page_number(start.flops_per_token),
      ",\"peakFlops\":", page_number(start.peak_flops), ",\"facts\":", pairs_list(start.facts),
      ",\"config\":", pairs_list(start.config), ",\"problems\":", page_list(run.problems, json_quoted), ",\n",
      curves(thinned(run.steps, limit), run.steps.size() <= limit), "}");
}

}  // namespace

std::string run_report(std::span<const RunFiles> runs, size_t points) {
  return html_page(
      run_page(),
      concat("{\"runs\":", page_list(runs, [&](const RunFiles& run) { return run_json(run, points); }), "}"));
}

}  // namespace sfsdp::train
