#include "client/torch/state_entry_check.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace tessera {
namespace {

const char* Name(StateEntry::Kind kind) {
  switch (kind) {
    case StateEntry::Kind::kWhole:
      return "a whole tensor";
    case StateEntry::Kind::kRows:
      return "rows of a tensor";
    case StateEntry::Kind::kFlat:
      return "a flat part of a unit";
  }
  return "";
}

std::string Text(const std::vector<int64_t>& shape) {
  return absl::StrCat("[", absl::StrJoin(shape, ", "), "]");
}

// Of the part itself.
std::vector<int64_t> ShapeOfPart(const ExpectedEntry& expected) {
  std::vector<int64_t> shape = expected.shape;
  if (expected.kind != StateEntry::Kind::kWhole) shape[0] = expected.part.size();
  return shape;
}

}  // namespace

absl::Status CheckStateEntry(const std::string& key, const StateEntry& entry,
                             const ExpectedEntry& expected) {
  const auto error = [&key](const std::string& what) {
    return absl::InvalidArgumentError(absl::StrCat("state dict, '", key, "': ", what));
  };
  // Meta tensors have a shape, but no elements to copy.
  if (!entry.tensor.defined() || entry.tensor.is_meta()) return error("it has no values");
  if (entry.kind != expected.kind) {
    return error(
        absl::StrCat("it is ", Name(entry.kind), ", where ", Name(expected.kind), " is wanted"));
  }
  if (entry.shape != expected.shape) {
    return error(absl::StrCat("its shape is ", Text(entry.shape), ", that of the model ",
                              Text(expected.shape)));
  }
  const bool whole = entry.kind == StateEntry::Kind::kWhole;
  if (entry.tensor.sizes().vec() == ShapeOfPart(expected) &&
      (whole || entry.begin == expected.part.begin)) {
    return absl::OkStatus();
  }
  if (whole) return error("its shape is not that of its tensor");
  const int64_t size = entry.tensor.dim() == 0 ? 1 : entry.tensor.size(0);
  return error(absl::StrCat("it has [", entry.begin, ", ", entry.begin + size, ") with tensor ",
                            Text(entry.tensor.sizes().vec()), ", this rank's part is [",
                            expected.part.begin, ", ", expected.part.end, ")"));
}

}  // namespace tessera
