#include "layout/layout_dump.h"

#include <algorithm>
#include <iterator>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "base/status_macros.h"

namespace tessera {
namespace {

// The pieces of one rank's line, counted but not kept once there are too many.
class Pieces {
 public:
  explicit Pieces(int64_t max_pieces) : max_pieces_(max_pieces) {}

  // Whether the next piece is only counted.
  bool full() const {
    return max_pieces_ > 0 && static_cast<int64_t>(drawn_.size()) >= max_pieces_;
  }
  void Add(std::string piece) {
    if (full()) {
      ++num_left_out_;
    } else {
      drawn_.push_back(std::move(piece));
    }
  }
  // Elements outside parameters: before the layout's end a gap, after it tail padding.
  void AddPadding(const ElementRange& range, int64_t end_elements) {
    const ElementRange gap = {range.begin, std::min(range.end, end_elements)};
    const ElementRange pad = {std::max(range.begin, end_elements), range.end};
    if (!gap.empty()) Add(absl::StrCat("gap ", gap.size()));
    if (!pad.empty()) Add(absl::StrCat("pad ", pad.size()));
  }
  std::string Text() const {
    std::string text =
        drawn_.empty() ? "|" : absl::StrCat("| ", absl::StrJoin(drawn_, " | "), " |");
    if (num_left_out_ > 0) absl::StrAppend(&text, " ... ", num_left_out_, " more");
    return text;
  }

 private:
  const int64_t max_pieces_;
  std::vector<std::string> drawn_;
  int64_t num_left_out_ = 0;
};

std::string DrawParameter(const PlacedParameter& parameter, const ElementRange& part) {
  const std::string name = absl::CHexEscape(parameter.spec.name);
  if (part.size() == parameter.numel) return absl::StrCat(name, " ", parameter.numel);
  return absl::StrCat(name, " [", part.begin - parameter.offset_elements, ", ",
                      part.end - parameter.offset_elements, ")");
}

// The first parameter that ends after `element`. Ends ascend, as parameters do not overlap.
std::vector<PlacedParameter>::const_iterator FirstEndingAfter(const FlatLayout& flat,
                                                              int64_t element) {
  return std::partition_point(flat.parameters().begin(), flat.parameters().end(),
                              [&](const PlacedParameter& parameter) {
                                return parameter.offset_elements + parameter.numel <= element;
                              });
}

void AppendNotes(const FlatLayout& flat, std::string* text) {
  for (const PlacedParameter& parameter : flat.parameters()) {
    if (parameter.numel > 0) continue;
    absl::StrAppend(text, "  empty  ", absl::CHexEscape(parameter.spec.name), "\n");
  }
  for (const Alias& alias : flat.aliases()) {
    absl::StrAppend(text, "  shared ", absl::CHexEscape(alias.name), " = ",
                    absl::CHexEscape(alias.primary), "\n");
  }
}

std::string DescribeHosts(const ModelLayout& layout, const MemoryOptions& options) {
  const int64_t ranks = options.ranks_per_host == 0 ? layout.world_size : options.ranks_per_host;
  return ranks == layout.world_size ? "one host" : absl::StrCat(ranks, " ranks a host");
}

}  // namespace

std::string FormatBytes(int64_t size_bytes) {
  constexpr const char* kUnits[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
  if (size_bytes < 1024) return absl::StrCat(size_bytes, " B");
  double value = static_cast<double>(size_bytes);
  size_t unit = 0;
  while (value >= 1024.0 && unit + 1 < std::size(kUnits)) {
    value /= 1024.0;
    ++unit;
  }
  return absl::StrFormat("%.1f %s", value, kUnits[unit]);
}

std::string DumpRank(const UnitLayout& unit, Rank rank, const DumpOptions& options) {
  const FlatLayout& flat = unit.flat;
  const ElementRange range = unit.shards.RangeOf(rank);
  Pieces pieces(options.max_pieces);
  int64_t drawn_up_to = range.begin;
  for (auto it = FirstEndingAfter(flat, range.begin);
       it != flat.parameters().end() && it->offset_elements < range.end; ++it) {
    const ElementRange part =
        Intersect({it->offset_elements, it->offset_elements + it->numel}, range);
    if (part.empty()) continue;
    pieces.AddPadding({drawn_up_to, part.begin}, flat.end_elements());
    // The text of a piece that is only counted is not made: a rank may have very many.
    pieces.Add(pieces.full() ? std::string() : DrawParameter(*it, part));
    drawn_up_to = part.end;
  }
  pieces.AddPadding({drawn_up_to, range.end}, flat.end_elements());
  const int width = static_cast<int>(absl::StrCat(unit.shards.padded_numel()).size());
  const int rank_width = static_cast<int>(absl::StrCat(unit.shards.num_shards() - 1).size());
  return absl::StrFormat("rank %*d [%*d, %*d)  %s", rank_width, rank.value(), width, range.begin,
                         width, range.end, pieces.Text());
}

std::string DumpUnit(const UnitLayout& unit, const DumpOptions& options) {
  const FlatLayout& flat = unit.flat;
  const ShardMap& shards = unit.shards;
  const size_t num_parameters = flat.parameters().size();
  std::string text =
      absl::StrCat("unit \"", absl::CHexEscape(flat.unit_name()), "\": ", Name(flat.dtype()), ", ",
                   flat.unpadded_numel(), " elements in ", num_parameters,
                   num_parameters == 1 ? " parameter; " : " parameters; ");
  absl::StrAppend(&text, shards.num_shards(), shards.num_shards() == 1 ? " rank of " : " ranks of ",
                  shards.shard_numel(), " hold", shards.num_shards() == 1 ? "s " : " ",
                  shards.padded_numel(), "\n");
  int64_t num_drawn = shards.num_shards();
  if (options.max_ranks > 0) num_drawn = std::min(num_drawn, options.max_ranks);
  for (int64_t rank = 0; rank < num_drawn; ++rank) {
    absl::StrAppend(&text, "  ", DumpRank(unit, Rank(rank), options), "\n");
  }
  if (num_drawn < shards.num_shards()) {
    absl::StrAppend(&text, "  ... ", shards.num_shards() - num_drawn, " more ranks\n");
  }
  AppendNotes(flat, &text);
  return text;
}

std::string DumpLayout(const ModelLayout& layout, const DumpOptions& options) {
  std::string text;
  for (const UnitLayout& unit : layout.units) absl::StrAppend(&text, DumpUnit(unit, options));
  return absl::StrCat(text, DumpBuffers(layout));
}

std::string DumpBuffers(const ModelLayout& layout) {
  if (layout.buffers.empty()) return "";
  std::string list;
  int64_t total_bytes = 0;
  for (const BufferSpec& buffer : layout.buffers) {
    const int64_t size_bytes = SizeBytes(buffer).value_or(0);  // Valid, or there were no layout.
    total_bytes += size_bytes;
    absl::StrAppend(&list, "  ", absl::CHexEscape(buffer.name), " ", Name(buffer.dtype), " [",
                    absl::StrJoin(buffer.shape, ", "), "] ", FormatBytes(size_bytes), "\n");
  }
  return absl::StrCat("buffers: ", layout.buffers.size(), ", ", FormatBytes(total_bytes),
                      "; rank 0's worker keeps three of each\n", list);
}

std::string DumpUnits(const ModelLayout& layout, DType compute_dtype) {
  size_t width = 4;
  for (const UnitLayout& unit : layout.units) {
    width = std::max(width, absl::CHexEscape(unit.flat.unit_name()).size());
  }
  std::string text =
      absl::StrCat("units (ranks: ", layout.world_size, ", compute ", Name(compute_dtype), ")\n");
  absl::StrAppendFormat(&text, "  %-*s %10s %14s %10s %12s %12s\n", width, "unit", "parameters",
                        "elements", "padding", "size", "of a rank");
  for (const UnitLayout& unit : layout.units) {
    const FlatLayout& flat = unit.flat;
    const int64_t element_bytes = SizeBytes(unit.compute_dtype.value_or(compute_dtype));
    absl::StrAppendFormat(&text, "  %-*s %10d %14d %10d %12s %12s\n", width,
                          absl::CHexEscape(flat.unit_name()), flat.parameters().size(),
                          flat.unpadded_numel(), unit.shards.padded_numel() - flat.unpadded_numel(),
                          FormatBytes(unit.shards.padded_numel() * element_bytes),
                          FormatBytes(unit.shards.shard_numel() * element_bytes));
  }
  return text;
}

absl::StatusOr<std::string> DumpMemory(const ModelLayout& layout, const MemoryOptions& options) {
  std::string text =
      absl::StrCat("memory per rank (", DescribeHosts(layout, options), ", shards ",
                   Name(options.shard_dtype), ", compute ", Name(options.compute_dtype), ", ",
                   options.optimizer_states, " optimizer states)\n");
  size_t width = 13;
  for (const Strategy strategy : PlannedStrategies(options)) {
    width = std::max(width, Name(strategy).size());
  }
  absl::StrAppendFormat(&text, "  %-*s %12s %12s %12s %14s %12s %12s\n", width, "strategy",
                        "parameters", "gradients", "optimizer", "unsharded peak", "rank total",
                        "host total");
  for (const Strategy strategy : PlannedStrategies(options)) {
    ASSIGN_OR_RETURN(const MemoryPlan plan, PlanMemory(layout, strategy, options));
    absl::StrAppendFormat(&text, "  %-*s %12s %12s %12s %14s %12s %12s\n", width, Name(strategy),
                          FormatBytes(plan.parameter_bytes), FormatBytes(plan.gradient_bytes),
                          FormatBytes(plan.optimizer_bytes), FormatBytes(plan.unsharded_peak_bytes),
                          FormatBytes(plan.rank_total_bytes), FormatBytes(plan.host_total_bytes));
  }
  return text;
}

}  // namespace tessera
