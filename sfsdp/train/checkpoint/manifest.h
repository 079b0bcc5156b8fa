// SPDX-License-Identifier: BSD-3-Clause
// What a checkpoint holds and where: manifest.json. Tensors are ranges of elements in files, each with its hashes, so
// that nothing in it depends on units, layout, mesh or number of ranks. docs/checkpoints.md describes the text.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "sfsdp/base/error.h"
#include "sfsdp/ir/type.h"
#include "sfsdp/mesh/chunk.h"
#include "sfsdp/plan/storage_layout.h"

namespace sfsdp::train::checkpoint {

inline constexpr std::string_view kManifestFile = "manifest.json";
// Boxes of a tensor: as many as ranks along its model axes. No two may overlap, and each is compared with each.
inline constexpr size_t kMaxBoxes = 4096;
// Bytes of a range that share a hash: what a rank reads too much, at most, at either end of its part.
inline constexpr int64_t kBlockBytes = int64_t{4} << 20;

// A checkpoint that is not whole or not what was written: it may be skipped for an older one.
class DamagedError : public UserError {
 public:
  using UserError::UserError;
};

// Parameters and buffers make the model; Optimizer: moments and the count of updates.
enum class TensorKind : uint8_t { Parameter, Buffer, Optimizer };

// Elements [begin, end) of a tensor, or of a box of it, row-major, at byte `offset` of a file.
struct StoredRange {
  int64_t begin = 0, end = 0;
  int64_t file = 0;  // index in Manifest::files
  int64_t offset = 0;
  std::vector<uint64_t> hashes;  // one per kBlockBytes, the last one of the rest
  int64_t box = -1;              // index in StoredTensor::boxes; -1: the whole tensor
  bool operator==(const StoredRange&) const = default;
};

struct StoredTensor {
  std::string name;
  TensorKind kind = TensorKind::Parameter;
  ir::DType dtype = ir::DType::f32;
  std::vector<int64_t> shape;
  // Whose it is, where each data rank has a buffer of its own (batch norm's statistics). -1: the same on all ranks.
  int64_t rank = -1;
  std::vector<StoredRange> ranges;  // by box, then by begin; together all elements, each once
  // There for a tensor that is left out: it has no ranges, its values are those of Manifest::source, and this is their digest
  // (left_out.h). In a rank's fragment: of what the rank would have written.
  std::optional<uint64_t> digest = {};
  // Parts of the tensor by dimension, as tensor parallelism cuts it, side by side; empty: ranges are of the whole.
  std::vector<std::vector<Chunk>> boxes = {};
  std::vector<int64_t> block_shape = {};  // whose ranges boxes are, where it is another one (plan::Box::block_shape)
  int64_t numel() const;
  plan::Box place_of(const StoredRange& range) const;        // what of the tensor it is
  std::vector<std::span<const StoredRange>> by_box() const;  // ranges of one box together
  // "elements 5 to 17 of "w"", for messages.
  std::string name_of(const StoredRange& range, int64_t begin, int64_t end) const;
  bool operator==(const StoredTensor&) const = default;
};

struct StoredFile {
  std::string name;  // in the checkpoint's folder
  int64_t bytes = 0;
  int64_t header_bytes = 0;  // of safetensors, its 8 bytes of length included
  uint64_t header_hash = 0;
  bool operator==(const StoredFile&) const = default;
};

// Where the values are that a checkpoint leaves out.
struct WeightSource {
  enum class Kind : uint8_t { Initial, Archive, HuggingFace, Checkpoint };
  Kind kind = Kind::Initial;  // as the model draws them by debug.seed
  std::string path = {};      // a file or folder; "step-N" is a checkpoint of the same folder
  bool operator==(const WeightSource&) const = default;
};

// Where a run stands. All of it is the same on all ranks.
struct RunState {
  int64_t step = 0;    // steps done; random streams are a function of it and the seed
  int64_t tokens = 0;  // trained on
  uint64_t seed = 0;
  int64_t lr_offset = 0;  // steps before the schedule began: not 0 where exclude_from_loading had lr_scheduler
  int64_t skipped = 0;    // the last steps in a row that updated nothing, as a gradient was not finite
  std::map<std::string, int64_t> data = {};          // the loader's own
  std::map<std::string, std::string> schedule = {};  // the schedule's settings, for the reader
  std::map<std::string, std::string> kernels = {};   // that decide last bits: "products" -> "onednn.matmul"
  bool operator==(const RunState&) const = default;
};

// Among model_args: a hash of what an archive of torch.export computes.
inline constexpr const char* kGraphOfModel = "model.graph";

struct Manifest {
  RunState run;
  bool model_only = false;  // a run cannot go on from it
  int64_t world_size = 1;   // the rest of these says where it comes from; loading asks for none of it
  int64_t data_ranks = 1;
  int64_t save = 0;      // each save of a folder has a higher one than those before it; 0: of before they were numbered
  int64_t saved_at = 0;  // seconds since 1970, by a clock that may go back
  std::string launch;    // whose run has saved it: all starts of a launch have the same one
  std::string model;     // "llama3", "gpt", …; "": not known
  std::map<std::string, std::string> model_args = {};
  std::string mesh, plan, sfsdp_version, torch_version;
  WeightSource source = {};  // of the tensors that are left out
  std::vector<StoredFile> files;
  std::vector<StoredTensor> tensors;

  // Null if there is none.  rank: of a buffer with one per rank
  const StoredTensor* find(std::string_view name, int64_t rank = -1) const;
  int64_t bytes() const;  // of all files
  std::vector<const StoredTensor*> left_out() const;
  bool operator==(const Manifest&) const = default;
};

// `a` was saved before `b`, of one folder.
bool is_older(const Manifest& a, const Manifest& b);

// Counts that a run can go on counting from: step, tokens and save up to 2^60, lr_offset and skipped up to the step.
//   throws: DamagedError naming the file and the count
void check_counts(const Manifest& manifest, const std::string& file);

// One line per file and tensor; the first line has the hash of all that follows.
std::string print(const Manifest& manifest);

// A manifest as printed, or a rank's fragment of one: then tensors need not be whole.
//   file:   its name, for messages
//   throws: DamagedError naming file, expected and got: a changed byte, a name that leaves the folder, ranges or boxes that
//           overlap, have gaps or do not fit into their file or tensor, sizes beyond int64, counts that check_counts refuses
Manifest parse_manifest(std::string_view text, const std::string& file);
Manifest parse_fragment(std::string_view text, const std::string& file);

// The manifest of all ranks: fragments[r] is rank r's, with its own file, ranges and parts of digests; the rest is rank 0's.
//   throws: InternalError if tensors of one name differ, or do not add up to the whole
Manifest merge(const std::vector<Manifest>& fragments);

// "float32": as export_dtype has it; of f32, bf16 and f16.  throws: UserError
ir::DType parse_export_dtype(const std::string& text);

}  // namespace sfsdp::train::checkpoint
