#include "checkpoint/storage/s3/file_parts.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "checkpoint/safetensors/strict_json.h"
#include "nlohmann/json.hpp"

namespace tessera::s3 {
namespace {

constexpr int64_t kMostPlanned = kMostParts - 1'000;  // What joining adds at most is less.

absl::Status Invalid(absl::string_view why) {
  return absl::InvalidArgumentError(absl::StrCat("list of what was written: ", why));
}

bool IsSize(const nlohmann::json& json) {
  return json.is_number_unsigned() && json.get<uint64_t>() <= uint64_t{kMaxFileBytes};
}

bool Follows(const Extent& next, const Extent& before) {
  return next.key == before.key && next.file_at_bytes == before.file_at_bytes + before.size_bytes &&
         next.object_at_bytes == before.object_at_bytes + before.size_bytes;
}

std::vector<Extent> Join(const std::vector<Extent>& extents) {
  std::vector<Extent> joined;
  for (const Extent& extent : extents) {
    if (extent.size_bytes == 0) continue;
    if (!joined.empty() && Follows(extent, joined.back())) {
      joined.back().size_bytes += extent.size_bytes;
    } else {
      joined.push_back(extent);
    }
  }
  return joined;
}

absl::Status CheckCover(const std::vector<Extent>& sorted, int64_t file_bytes) {
  int64_t at = 0;
  for (const Extent& extent : sorted) {
    // Ranges come from all ranks. One that is missing or there twice is a save that went wrong.
    if (extent.file_at_bytes != at) {
      const int64_t end = std::max(at, extent.file_at_bytes);
      return absl::DataLossError(
          absl::StrCat("bytes [", std::min(at, extent.file_at_bytes), ", ", end, ") were ",
                       extent.file_at_bytes > at ? "not written"
                                                 : "written by two: another save writes it, too"));
    }
    at += extent.size_bytes;
  }
  if (at == file_bytes) return absl::OkStatus();
  return absl::DataLossError(
      absl::StrCat("bytes [", std::min(at, file_bytes), ", ", std::max(at, file_bytes), ") were ",
                   at < file_bytes ? "not written" : "written past its end"));
}

// Takes extents in their order and cuts them into parts.
class Planner {
 public:
  Planner(int64_t least_bytes, int64_t most_copy_bytes)
      : least_bytes_(least_bytes), most_copy_bytes_(std::max(most_copy_bytes, 2 * least_bytes)) {}

  void Add(Extent extent) {
    // What is pending is too small for a part of its own: it takes what it lacks.
    if (pending_.size_bytes > 0)
      Send(&extent, std::min(extent.size_bytes, least_bytes_ - pending_.size_bytes));
    while (extent.size_bytes >= least_bytes_) {
      // What would be left over is not too small for another copy.
      const int64_t rest = extent.size_bytes - most_copy_bytes_;
      const bool fits = rest <= 0;
      const int64_t bytes = fits                   ? extent.size_bytes
                            : rest >= least_bytes_ ? most_copy_bytes_
                                                   : extent.size_bytes - least_bytes_;
      // The store copies these by itself. They do not come here.
      parts_.push_back({true, {Cut(&extent, bytes)}, bytes});
    }
    if (extent.size_bytes > 0) Send(&extent, extent.size_bytes);
  }

  std::vector<FilePart> Take() {
    if (pending_.size_bytes > 0) parts_.push_back(std::move(pending_));  // The last may be smaller.
    return std::move(parts_);
  }

 private:
  static Extent Cut(Extent* extent, int64_t size_bytes) {
    Extent cut = *extent;
    cut.size_bytes = size_bytes;
    extent->object_at_bytes += size_bytes;
    extent->file_at_bytes += size_bytes;
    extent->size_bytes -= size_bytes;
    return cut;
  }

  void Send(Extent* extent, int64_t size_bytes) {
    pending_.extents.push_back(Cut(extent, size_bytes));
    pending_.size_bytes += size_bytes;
    if (pending_.size_bytes < least_bytes_) return;
    parts_.push_back(std::move(pending_));
    pending_ = FilePart();
  }

  const int64_t least_bytes_, most_copy_bytes_;
  FilePart pending_;
  std::vector<FilePart> parts_;
};

}  // namespace

std::string EncodeExtents(const std::vector<Extent>& extents) {
  nlohmann::ordered_json ranges = nlohmann::ordered_json::array();
  for (const Extent& extent : Join(extents))
    ranges.push_back({extent.file_at_bytes, extent.object_at_bytes, extent.size_bytes});
  nlohmann::ordered_json json = nlohmann::ordered_json::object();
  json["ranges"] = std::move(ranges);
  return json.dump();
}

absl::StatusOr<std::vector<Extent>> DecodeExtents(absl::string_view text, const std::string& key) {
  ASSIGN_OR_RETURN(const nlohmann::json json, ParseStrictJsonObject(text));
  const auto ranges = json.find("ranges");
  if (ranges == json.end() || !ranges->is_array()) return Invalid("it has no ranges");
  std::vector<Extent> extents;
  for (const nlohmann::json& range : *ranges) {
    if (!range.is_array() || range.size() != 3 || !std::all_of(range.begin(), range.end(), IsSize))
      return Invalid("a range is not three sizes");
    extents.push_back(
        {key, range[1].get<int64_t>(), range[0].get<int64_t>(), range[2].get<int64_t>()});
  }
  return extents;
}

absl::StatusOr<std::vector<FilePart>> PlanParts(std::vector<Extent> extents, int64_t file_bytes,
                                                int64_t most_copy_bytes) {
  if (file_bytes > kMaxFileBytes) {
    return absl::InvalidArgumentError(absl::StrCat("a file of ", file_bytes,
                                                   " bytes, more than an object store's ",
                                                   kMaxFileBytes, ": split it (max_file_bytes)"));
  }
  std::sort(extents.begin(), extents.end(),
            [](const Extent& a, const Extent& b) { return a.file_at_bytes < b.file_at_bytes; });
  extents = Join(extents);
  RETURN_IF_ERROR(CheckCover(extents, file_bytes));
  // So that there are few enough of them.
  const int64_t least_bytes = std::max(kLeastPartBytes, file_bytes / kMostPlanned + 1);
  Planner planner(least_bytes, most_copy_bytes);
  for (Extent& extent : extents) planner.Add(std::move(extent));
  return planner.Take();
}

}  // namespace tessera::s3
