// Test only: the layout again, element by element and without any cleverness, and random units to
// compare on. Usable for small sizes only.
#ifndef TESSERA_LAYOUT_REFERENCE_LAYOUT_H_
#define TESSERA_LAYOUT_REFERENCE_LAYOUT_H_

#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "layout/flat_layout.h"
#include "layout/tensor_spec.h"

namespace tessera {

// What one element of the padded flat parameter is.
struct Cell {
  int64_t parameter = -1;  // Index among the primaries; -1: padding.
  int64_t index = 0;       // Within the parameter.
};

struct ReferenceLayout {
  std::vector<Cell> cells;             // Of the padded flat parameter.
  std::vector<int64_t> first_element;  // Of each primary, those without elements too.
  int64_t end_elements = 0;
  int64_t shard_numel = 0;
};

ReferenceLayout LayOutSlowly(const UnitSpec& unit, const LayoutOptions& options,
                             int64_t world_size);

struct RandomCase {
  UnitSpec unit;
  LayoutOptions options;
  int64_t world_size = 1;

  std::string DebugString() const;
};

// Shapes of 0 to 3 dimensions of 0 to 5, sharing, every floating dtype, alignments, 1..16 ranks.
RandomCase MakeRandomCase(std::mt19937* random);

TensorSpec MakeSpec(std::string name, std::vector<int64_t> shape, DType dtype = DType::kFp32);

}  // namespace tessera

#endif  // TESSERA_LAYOUT_REFERENCE_LAYOUT_H_
