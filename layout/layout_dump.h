// Layouts as human-readable text: what each rank holds, drawn in a line.
//
//   unit "mlp": fp32, 81 elements in 3 parameters; 2 ranks of 43 hold 86
//     rank 0 [ 0, 43)  | 0.weight 21 | gap 3 | 1.weight [0, 19) |
//     rank 1 [43, 86)  | 1.weight [19, 35) | gap 1 | 2.weight 25 | pad 1 |
//
// A name alone with a count is a whole parameter; with a range, that range of its elements.
// All quantities are ELEMENTS except where a unit of bytes is written. Pure functions.
#ifndef TESSERA_LAYOUT_LAYOUT_DUMP_H_
#define TESSERA_LAYOUT_LAYOUT_DUMP_H_

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "base/ids.h"
#include "layout/dtype.h"
#include "layout/memory_plan.h"
#include "layout/model_layout.h"

namespace tessera {

struct DumpOptions {
  int64_t max_pieces = 16;  // Drawn of one rank; the rest is counted. 0: all.
  int64_t max_ranks = 64;   // Drawn of one unit; the rest is counted. 0: all.
};

// One rank's line, without indentation and newline. Requires 0 <= rank < world size.
std::string DumpRank(const UnitLayout& unit, Rank rank, const DumpOptions& options);

// A unit's heading, its ranks and, if any, its shared and its empty parameters; ends in a newline.
std::string DumpUnit(const UnitLayout& unit, const DumpOptions& options);

// A heading and a line for each buffer of the model; nothing where it has none.
std::string DumpBuffers(const ModelLayout& layout);

// All units, then the buffers.
std::string DumpLayout(const ModelLayout& layout, const DumpOptions& options);

// A table with a row for each unit: its elements, what is padding of that, its size in
// `compute_dtype`, or the unit's own, and how much of that is one rank's.
std::string DumpUnits(const ModelLayout& layout, DType compute_dtype);

// A table of the memory that each strategy needs.
// Errors: InvalidArgument  as PlanMemory.
absl::StatusOr<std::string> DumpMemory(const ModelLayout& layout, const MemoryOptions& options);

std::string FormatBytes(int64_t size_bytes);  // "384 B", "1.5 GiB".

}  // namespace tessera

#endif  // TESSERA_LAYOUT_LAYOUT_DUMP_H_
