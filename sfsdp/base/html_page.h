// SPDX-License-Identifier: BSD-3-Clause
// HTML pages that draw data which is put into them: one frame, page_frame.html, and a part that each page brings.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace sfsdp {

// A whole page.
//   part: its styles, elements and scripts, which find what the frame's script defines
//   data: JSON. No text in it can end the script that holds it.
std::string html_page(std::string_view part, std::string_view data);

// page_frame.html as text; CMake makes the .cc of it.
std::string_view page_frame();

// JSON: seven digits are more than a screen shows; whole numbers keep theirs. What is not finite is null.
std::string page_number(double value);

//   row: the JSON of an item
template <class Items, class Row>
std::string page_list(const Items& items, const Row& row) {
  std::string text = "[";
  for (const auto& item : items) {
    if (text.size() > 1) text += ",\n";
    text += row(item);
  }
  return text + "]";
}

// Texts that come often, by number.
class PageStrings {
 public:
  size_t add(const std::string& text);
  std::string json() const;  // the list of them

 private:
  std::unordered_map<std::string, size_t> index_;
  std::vector<std::string> list_;
};

}  // namespace sfsdp
