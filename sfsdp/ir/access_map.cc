// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/ir/access_map.h"

#include <algorithm>
#include <cctype>
#include <optional>

#include "sfsdp/base/check.h"
#include "sfsdp/base/strings.h"

namespace sfsdp::ir {
namespace {

constexpr std::string_view kMarks = "!+^~@";

class Reader {
 public:
  explicit Reader(std::string_view text) : text_(text) {}

  AccessMap read() {
    if (const size_t linear = text_.find('&'); linear != std::string_view::npos) {
      read_linear(text_.substr(linear + 1));
      text_ = text_.substr(0, linear);
    }
    for (const std::string& choice : split(text_, '|')) map_.choices.push_back(read_choice(choice));
    return std::move(map_);
  }

 private:
  template <class... Words>
  void expect(bool holds, const Words&... what) const {
    SFSDP_CHECK(holds, "access map \"", text_, "\": ", what...);
  }

  void read_linear(std::string_view text) {
    map_.by_place = trim(text) == "place";
    if (map_.by_place) return;
    for (const std::string& group : split(text, ',')) {
      if (trim(group) == "exact") {
        map_.exact = true;
        continue;
      }
      std::vector<size_t>& operands = map_.linear.emplace_back();
      for (const std::string& word : split(trim(group), ' ')) {
        const auto operand = parse_int(word);
        expect(operand && *operand >= 0, '"', word, "\" is no number of an operand");
        operands.push_back(static_cast<size_t>(*operand));
      }
    }
  }

  AccessMap::Choice read_choice(std::string_view text) {
    AccessMap::Choice choice;
    if (const size_t question = text.find('?'); question != std::string_view::npos) {
      choice.flag = trim(text.substr(0, question));
      text.remove_prefix(question + 1);
    }
    for (const std::string& clause : split(text, ';')) choice.clauses.push_back(read_clause(clause));
    return choice;
  }

  AccessMap::Clause read_clause(std::string_view text) {
    const size_t arrow = text.find("->");
    expect(arrow != std::string_view::npos, "no -> in \"", text, '"');
    AccessMap::Clause clause;
    if (const auto operands = trim(text.substr(0, arrow)); !operands.empty())
      for (const std::string& one : split(operands, ',')) clause.operands.push_back(read_pattern(one));
    for (const std::string& one : split(text.substr(arrow + 2), ',')) clause.results.push_back(read_pattern(one));
    expect(std::ranges::count_if(clause.operands, &AccessMap::Pattern::list) <= 1, "two lists of operands");
    check_marks(clause);
    return clause;
  }

  // What an unmarked operand's factor is, the result must show; a result has no marks.
  void check_marks(const AccessMap::Clause& clause) const {
    for (const AccessMap::Pattern& result : clause.results) {
      const auto has = [&](int factor) {
        return std::ranges::any_of(result.dims, [&](const AccessMap::Dimension& dim) {
          return std::ranges::find(dim, factor, &AccessMap::Use::factor) != dim.end();
        });
      };
      for (const AccessMap::Dimension& dim : result.dims)
        for (const AccessMap::Use& use : dim) expect(use.mark == ' ', "a mark on a result");
      for (const AccessMap::Pattern& operand : clause.operands)
        for (const AccessMap::Dimension& dim : operand.dims)
          for (const AccessMap::Use& use : dim) {
            if (use.factor == AccessMap::kOnes) continue;
            const std::string& name = map_.factors[static_cast<size_t>(use.factor)].name;
            expect(use.mark != ' ' || has(use.factor), name, " is not in the result, and has no mark");
            expect((use.mark != '+' && use.mark != '^') || !has(use.factor), name, " is in the result all the same");
          }
    }
  }

  AccessMap::Pattern read_pattern(std::string_view text) {
    AccessMap::Pattern pattern;
    std::string_view rest = trim(text);
    expect(!rest.empty(), "an empty operand; a number is written 1");
    if (rest.front() == '[' && rest.back() == ']') {
      pattern.list = true;
      rest = trim(rest.substr(1, rest.size() - 2));
    }
    if (rest == "_") {
      pattern.read = false;
      return pattern;
    }
    while (!rest.empty()) {
      if (rest.front() == '(') {
        const size_t end = rest.find(')');
        expect(end != std::string_view::npos, "no ) in \"", text, '"');
        pattern.dims.emplace_back();
        for (const std::string& word : split(trim(rest.substr(1, end - 1)), ' '))
          pattern.dims.back().push_back(read_use(word, pattern));
        rest = trim(rest.substr(end + 1));
        continue;
      }
      const size_t end = std::min(rest.find(' '), rest.size());
      pattern.dims.push_back({read_use(rest.substr(0, end), pattern)});
      rest = trim(rest.substr(end));
    }
    return pattern;
  }

  AccessMap::Use read_use(std::string_view word, AccessMap::Pattern& pattern) {
    AccessMap::Use use;
    if (kMarks.find(word.front()) != std::string_view::npos) {
      use.mark = word.front();
      word.remove_prefix(1);
    }
    AccessMap::Factor factor;
    const size_t bracket = word.find('['), hash = word.find('#'), equals = word.find('=');
    if (bracket != std::string_view::npos) {
      expect(word.back() == ']', "no ] in \"", word, '"');
      factor.length = AccessMap::Length::Listed;
      factor.attribute = word.substr(bracket + 1, word.size() - bracket - 2);
      if (const size_t is = factor.attribute.find('='); is != std::string::npos) {
        factor.fallback = parse_int(factor.attribute.substr(is + 1));
        expect(factor.fallback.has_value(), "no number in \"", word, '"');
        factor.attribute.resize(is);
      }
      word = word.substr(0, bracket);
    } else if (hash != std::string_view::npos) {
      factor.length = AccessMap::Length::Counted;
      factor.attribute = word.substr(hash + 1);
      word = word.substr(0, hash);
    } else if (equals != std::string_view::npos) {
      factor.size = parse_int(word.substr(equals + 1)).value_or(0);
      expect(factor.size > 1, "no size in \"", word, '"');
      word = word.substr(0, equals);
    } else if (word == "...") {
      factor.length = AccessMap::Length::Dots;
    } else if (word.ends_with('*')) {
      factor.length = AccessMap::Length::Any;
      word.remove_suffix(1);
    }
    if (word == "1") {
      pattern.ones = factor;
      use.factor = AccessMap::kOnes;
      return use;
    }
    expect(factor.length == AccessMap::Length::Dots ||
               (!word.empty() && std::ranges::all_of(word, [](unsigned char c) { return std::islower(c) != 0; })),
           '"', word, "\" is no factor");
    factor.name = word;
    use.factor = number_of(factor);
    return use;
  }

  // What stands for several dimensions says how many wherever it is named first.
  int number_of(const AccessMap::Factor& factor) {
    const auto known = std::ranges::find(map_.factors, factor.name, &AccessMap::Factor::name);
    if (known == map_.factors.end()) {
      map_.factors.push_back(factor);
      return static_cast<int>(map_.factors.size()) - 1;
    }
    const bool bare = factor.length == AccessMap::Length::One && factor.size == 0;
    expect(bare || (known->length == factor.length && known->attribute == factor.attribute &&
                    known->fallback == factor.fallback && known->size == factor.size),
           factor.name, " is two things");
    return static_cast<int>(known - map_.factors.begin());
  }

  std::string_view text_;
  AccessMap map_;
};

}  // namespace

AccessMap parse_access_map(std::string_view text) { return Reader(text).read(); }

namespace {

struct Text {
  std::string_view names;  // of the row, as it stands in the file
  std::string_view map;
};
#define SFSDP_OP(name, min_operands, max_operands, results, flags, cost, alias, rule, access) Text{name, access},
#define SFSDP_UPDATE(name, moments, operands, results, flags, rule, access) Text{name, access},
#define SFSDP_COLLECTIVE(name, fewest, most, rule) Text{name, ""}, Text{name ".start", ""},
#define SFSDP_ATEN SFSDP_OP
constexpr Text kMapTexts[] = {
#include "sfsdp/ir/opset.def"

#include "sfsdp/ir/atenset.def"
};
#undef SFSDP_ATEN
#undef SFSDP_COLLECTIVE
#undef SFSDP_UPDATE
#undef SFSDP_OP

bool is_elementwise(const AccessMap& map) {
  if (map.choices.size() != 1 || !map.choices[0].flag.empty() || map.choices[0].clauses.size() != 1) return false;
  const AccessMap::Clause& clause = map.choices[0].clauses[0];
  const auto is_plain = [&](const AccessMap::Pattern& pattern) {
    if (!pattern.read || pattern.list || pattern.dims.size() != 1 || pattern.dims[0].size() != 1) return false;
    const AccessMap::Use& use = pattern.dims[0][0];
    return use.mark == ' ' && use.factor != AccessMap::kOnes &&
           map.factors[static_cast<size_t>(use.factor)].length == AccessMap::Length::Dots;
  };
  return clause.results.size() == 1 && std::ranges::all_of(clause.operands, is_plain) && is_plain(clause.results[0]);
}

// By row of opset(), which has one for each name.
std::vector<std::optional<AccessMap>> read_all() {
  std::vector<std::optional<AccessMap>> maps;
  for (const Text& text : kMapTexts) {
    auto map = text.map.empty() ? std::nullopt : std::optional(parse_access_map(text.map));
    if (map) map->elementwise = is_elementwise(*map);
    maps.insert(maps.end(), static_cast<size_t>(1 + std::ranges::count(text.names, ' ')), map);
  }
  SFSDP_CHECK(maps.size() == opset().size(), maps.size(), " maps of ", opset().size(), " rows");
  SFSDP_CHECK(opset()[0].name == kMapTexts[0].names, "maps are in another order than rows");
  return maps;
}

}  // namespace

const AccessMap* map_of(const OpRow* row) {
  static const std::vector<std::optional<AccessMap>> maps = read_all();
  if (!row) return nullptr;
  const auto& map = maps[static_cast<size_t>(row - opset().data())];
  return map ? &*map : nullptr;
}

}  // namespace sfsdp::ir
