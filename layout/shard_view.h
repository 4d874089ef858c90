// Which part of each parameter is in one rank's slice of a flat parameter.
//
//   rank 1 [12, 24)  | ...... wk | gap | bk | pad |
//                      ^ wk's elements 8..11 at offset 0 of the shard, bk's 0..3 at offset 6
//
// All quantities are ELEMENTS. Padding belongs to no parameter and does not appear here.
// Immutable value; thread-compatible; cheap to move.
#ifndef TESSERA_LAYOUT_SHARD_VIEW_H_
#define TESSERA_LAYOUT_SHARD_VIEW_H_

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "base/ids.h"
#include "layout/flat_layout.h"
#include "layout/shard_map.h"

namespace tessera {

// One parameter's part in one shard, as FSDP's shard metadata states it. The start and the end
// within the parameter are INCLUSIVE. A parameter without elements counts as in the shard that has
// elements on both sides of its offset, with no elements there and an end of -1.
struct ParameterShard {
  bool in_shard = false;  // Where false, the rest is 0.
  int64_t offset_in_shard = 0;
  int64_t numel_in_shard = 0;
  int64_t intra_param_start = 0;
  int64_t intra_param_end = 0;

  friend bool operator==(const ParameterShard& a, const ParameterShard& b) {
    return a.in_shard == b.in_shard && a.offset_in_shard == b.offset_in_shard &&
           a.numel_in_shard == b.numel_in_shard && a.intra_param_start == b.intra_param_start &&
           a.intra_param_end == b.intra_param_end;
  }
};

// The same elements twice: counted from the parameter's first and from the shard's first element.
// Half-open, never empty.
struct ParameterSlice {
  int64_t parameter_index = 0;  // Into FlatLayout::parameters().
  ElementRange in_parameter;
  ElementRange in_shard;

  friend bool operator==(const ParameterSlice& a, const ParameterSlice& b) {
    return a.parameter_index == b.parameter_index && a.in_parameter == b.in_parameter &&
           a.in_shard == b.in_shard;
  }
};

// For any range of the flat parameter: one entry for each of layout.parameters().
std::vector<ParameterShard> ComputeParameterShards(const FlatLayout& layout,
                                                   const ElementRange& range);

class ShardView {
 public:
  // Errors: InvalidArgument  `rank` is not in [0, world_size).
  static absl::StatusOr<ShardView> Create(const FlatLayout& layout, const ShardMap& shards,
                                          Rank rank);

  Rank rank() const { return rank_; }
  ElementRange range() const { return range_; }  // Of the flat parameter.
  // One entry for each of layout.parameters(), in that order.
  const std::vector<ParameterShard>& parameters() const { return parameters_; }
  // Only what has elements here, ascending, disjoint.
  const std::vector<ParameterSlice>& slices() const { return slices_; }
  // Elements of the shard outside parameters: alignment gaps and tail padding.
  int64_t padding_elements() const { return padding_elements_; }

 private:
  Rank rank_;
  ElementRange range_;
  std::vector<ParameterShard> parameters_;
  std::vector<ParameterSlice> slices_;
  int64_t padding_elements_ = 0;
};

}  // namespace tessera

#endif  // TESSERA_LAYOUT_SHARD_VIEW_H_
