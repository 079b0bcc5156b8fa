// SPDX-License-Identifier: BSD-3-Clause
#include "sfsdp/train/data/tokenizer/post_processor.h"

#include <string>

namespace sfsdp::train::tokenizer {
namespace {

class Reader {
 public:
  explicit Reader(int64_t most) : most_(most) {}

  void read(const Field& field, int depth) {
    const Field type = field.at("type");
    const std::string& name = type.text();
    if (name == "Sequence") {
      if (depth > 0) field.refuse("no sequence in a sequence");
      field.allow_only({"processors"});
      for (const Field& item : field.at("processors").items()) read(item, depth + 1);
    } else if (name == "ByteLevel") {
      field.allow_only({"add_prefix_space", "trim_offsets", "use_regex"});
    } else if (name == "TemplateProcessing" || name == "BertProcessing" || name == "RobertaProcessing") {
      if (adds_) field.refuse("one processor that adds tokens");
      adds_ = true;
      name == "TemplateProcessing" ? read_template(field) : read_pair(field, name == "RobertaProcessing");
    } else {
      type.refuse("TemplateProcessing, BertProcessing, RobertaProcessing, ByteLevel or Sequence");
    }
  }

  PostProcessor result;

 private:
  int32_t id_of(const Field& field) const {
    return static_cast<int32_t>(field.whole(static_cast<uint64_t>(most_ - 1)));
  }

  void read_template(const Field& field) {
    field.allow_only({"single", "pair", "special_tokens"});
    bool after = false;
    for (const Field& piece : field.at("single").items()) {
      piece.allow_only({"Sequence", "SpecialToken"});
      if (const auto sequence = piece.find("Sequence")) {
        if (after || sequence->at("id").text() != "A") sequence->refuse("the sequence A, once");
        after = true;
      } else {
        add_special(piece.at("SpecialToken").at("id"), field.at("special_tokens"), after);
      }
    }
    if (!after) field.at("single").refuse("the sequence A, once");
  }

  void add_special(const Field& name, const Field& tokens, bool after) {
    const auto token = tokens.find(name.text());
    if (!token) name.refuse("a member of special_tokens");
    for (const Field& id : token->at("ids").items()) (after ? result.after : result.before).push_back(id_of(id));
  }

  void read_pair(const Field& field, bool is_roberta) {
    if (is_roberta)
      field.allow_only({"sep", "cls", "trim_offsets", "add_prefix_space"});
    else
      field.allow_only({"sep", "cls"});
    const auto id = [&](const char* key) {
      const Field member = field.at(key);
      const auto items = member.items();
      if (items.size() != 2) member.refuse("[token, id]");
      return id_of(items[1]);
    };
    result.before.push_back(id("cls"));
    result.after.push_back(id("sep"));
  }

  int64_t most_;
  bool adds_ = false;
};

}  // namespace

PostProcessor PostProcessor::parse(const Field& field, int64_t most) {
  Reader reader(most);
  reader.read(field, 0);
  return std::move(reader.result);
}

}  // namespace sfsdp::train::tokenizer
