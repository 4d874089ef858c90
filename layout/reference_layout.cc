#include "layout/reference_layout.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace tessera {
namespace {

int64_t Pick(std::mt19937* random, int64_t least, int64_t most) {
  return std::uniform_int_distribution<int64_t>(least, most)(*random);
}

int64_t PickOf(std::mt19937* random, const std::vector<int64_t>& values) {
  return values[Pick(random, 0, static_cast<int64_t>(values.size()) - 1)];
}

// Counts by walking every index of the shape.
int64_t CountElements(const std::vector<int64_t>& shape, size_t dimension = 0) {
  if (dimension == shape.size()) return 1;
  int64_t count = 0;
  for (int64_t i = 0; i < shape[dimension]; ++i) count += CountElements(shape, dimension + 1);
  return count;
}

bool IsMultiple(int64_t elements, int64_t alignment_bytes, DType dtype) {
  return alignment_bytes == 0 || elements * SizeBytes(dtype) % alignment_bytes == 0;
}

}  // namespace

ReferenceLayout LayOutSlowly(const UnitSpec& unit, const LayoutOptions& options,
                             int64_t world_size) {
  ReferenceLayout reference;
  std::vector<Cell>& cells = reference.cells;
  for (const TensorSpec& spec : unit.parameters) {
    if (!spec.shared_with.empty()) continue;
    while (!IsMultiple(cells.size(), options.parameter_alignment_bytes, options.alignment_dtype)) {
      cells.push_back({-1, 0});
    }
    const int64_t parameter = static_cast<int64_t>(reference.first_element.size());
    reference.first_element.push_back(cells.size());
    const int64_t numel = CountElements(spec.shape);
    for (int64_t i = 0; i < numel; ++i) cells.push_back({parameter, i});
  }
  reference.end_elements = cells.size();
  while (
      reference.shard_numel * world_size < reference.end_elements ||
      !IsMultiple(reference.shard_numel, options.shard_alignment_bytes, options.alignment_dtype)) {
    ++reference.shard_numel;
  }
  cells.resize(reference.shard_numel * world_size);
  return reference;
}

std::string RandomCase::DebugString() const {
  std::string text = absl::StrCat(
      "world size ", world_size, ", parameter alignment ", options.parameter_alignment_bytes,
      ", shard alignment ", options.shard_alignment_bytes, " of ", Name(options.alignment_dtype));
  for (const TensorSpec& spec : unit.parameters) {
    absl::StrAppend(&text, "; ", spec.name, " [", absl::StrJoin(spec.shape, ","), "]",
                    spec.shared_with.empty() ? "" : "=", spec.shared_with);
  }
  return text;
}

RandomCase MakeRandomCase(std::mt19937* random) {
  constexpr DType kFloating[] = {DType::kFp32, DType::kBf16, DType::kFp16, DType::kFp64};
  RandomCase random_case;
  random_case.world_size = Pick(random, 1, 16);
  random_case.options.alignment_dtype = kFloating[Pick(random, 0, 3)];
  random_case.options.parameter_alignment_bytes = PickOf(random, {0, 8, 16, 16, 24, 64});
  random_case.options.shard_alignment_bytes = PickOf(random, {0, 0, 16, 128});
  const DType dtype = kFloating[Pick(random, 0, 3)];
  UnitSpec& unit = random_case.unit;
  unit.name = "unit";
  const int64_t num_parameters = Pick(random, 1, 8);
  for (int64_t i = 0; i < num_parameters; ++i) {
    TensorSpec spec = MakeSpec(absl::StrCat("p", i), {}, dtype);
    const TensorSpec* earlier = i == 0 ? nullptr : &unit.parameters[Pick(random, 0, i - 1)];
    if (earlier != nullptr && earlier->shared_with.empty() && Pick(random, 0, 4) == 0) {
      spec.shape = earlier->shape;
      spec.requires_grad = earlier->requires_grad;
      spec.shared_with = earlier->name;
    } else {
      spec.requires_grad = Pick(random, 0, 1) == 1;
      for (int64_t d = Pick(random, 0, 3); d > 0; --d) spec.shape.push_back(Pick(random, 0, 5));
    }
    unit.parameters.push_back(std::move(spec));
  }
  return random_case;
}

TensorSpec MakeSpec(std::string name, std::vector<int64_t> shape, DType dtype) {
  TensorSpec spec;
  spec.name = std::move(name);
  spec.shape = std::move(shape);
  spec.dtype = dtype;
  return spec;
}

}  // namespace tessera
