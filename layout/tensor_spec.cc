#include "layout/tensor_spec.h"

#include <algorithm>
#include <string>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status_macros.h"
#include "layout/checked_math.h"

namespace tessera {
namespace {

std::string ShapeText(const std::vector<int64_t>& shape) {
  return absl::StrCat("[", absl::StrJoin(shape, ", "), "]");
}

// Names come from outside: escaped and cut, so that an error stays one readable line.
std::string Quoted(absl::string_view name) {
  constexpr size_t kMaxNameChars = 200;
  return absl::StrCat("\"", absl::CHexEscape(name.substr(0, kMaxNameChars)),
                      name.size() > kMaxNameChars ? "...\"" : "\"");
}

absl::Status UnitError(const UnitSpec& unit, absl::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat("unit ", Quoted(unit.name), ": ", what));
}

absl::Status ParameterError(const UnitSpec& unit, const TensorSpec& spec, absl::string_view what) {
  return absl::InvalidArgumentError(
      absl::StrCat("unit ", Quoted(unit.name), ", parameter ", Quoted(spec.name), ": ", what));
}

using Primaries = absl::flat_hash_map<absl::string_view, const TensorSpec*>;

absl::Status ValidateAlias(const UnitSpec& unit, const TensorSpec& alias,
                           const Primaries& primaries) {
  const auto it = primaries.find(alias.shared_with);
  if (it == primaries.end()) {
    return ParameterError(unit, alias,
                          absl::StrCat("shared with ", Quoted(alias.shared_with),
                                       ", which is not an earlier primary parameter of this unit"));
  }
  const TensorSpec& primary = *it->second;
  if (alias.shape != primary.shape) {
    return ParameterError(
        unit, alias,
        absl::StrCat("shape ", ShapeText(alias.shape), " differs from shape ",
                     ShapeText(primary.shape), " of ", Quoted(primary.name), " that it shares"));
  }
  if (alias.requires_grad != primary.requires_grad) {
    return ParameterError(unit, alias,
                          absl::StrCat("requires_grad differs from that of ", Quoted(primary.name),
                                       " that it shares"));
  }
  return absl::OkStatus();
}

absl::Status ValidateDType(const UnitSpec& unit, const TensorSpec& spec) {
  if (!IsFloatingPoint(spec.dtype)) {
    return ParameterError(unit, spec,
                          absl::StrCat("integer dtype ", Name(spec.dtype), " cannot be flattened"));
  }
  const TensorSpec& first = unit.parameters.front();
  if (spec.dtype != first.dtype) {
    return ParameterError(
        unit, spec,
        absl::StrCat("dtype ", Name(spec.dtype), " differs from ", Name(first.dtype), " of ",
                     Quoted(first.name), "; a unit has one dtype"));
  }
  return absl::OkStatus();
}

std::string Describe(const TensorSpec& spec) {
  return absl::StrCat(
      "shape ", ShapeText(spec.shape), ", dtype ", Name(spec.dtype), ", requires_grad ",
      spec.requires_grad ? "true" : "false",
      spec.shared_with.empty() ? "" : absl::StrCat(", shared with ", Quoted(spec.shared_with)));
}

std::string DescribeOptions(const UnitSpec& unit) {
  const auto name = [](const auto& option) {
    return option.has_value() ? Name(*option) : absl::string_view("the job's");
  };
  return absl::StrCat("compute ", name(unit.compute_dtype), ", reduce ", name(unit.reduce_dtype),
                      ", strategy ", name(unit.strategy));
}

bool SameOptions(const UnitSpec& a, const UnitSpec& b) {
  return a.compute_dtype == b.compute_dtype && a.reduce_dtype == b.reduce_dtype &&
         a.strategy == b.strategy;
}

bool SameSpec(const TensorSpec& a, const TensorSpec& b) {
  return a.name == b.name && a.shape == b.shape && a.dtype == b.dtype &&
         a.requires_grad == b.requires_grad && a.shared_with == b.shared_with;
}

// The two sides of a comparison, and how an error tells them apart.
struct Sides {
  absl::string_view name_a;
  absl::string_view name_b;

  absl::Status Differ(absl::string_view where, absl::string_view a, absl::string_view b) const {
    return absl::InvalidArgumentError(
        absl::StrCat("models differ in ", where, ": ", name_a, ": ", a, ", ", name_b, ": ", b));
  }
};

std::string Describe(const BufferSpec& spec) {
  return absl::StrCat(Quoted(spec.name), " of shape ", ShapeText(spec.shape), ", dtype ",
                      Name(spec.dtype));
}

absl::Status CompareBuffers(const std::vector<BufferSpec>& a, const std::vector<BufferSpec>& b,
                            const Sides& sides) {
  for (size_t i = 0; i < std::max(a.size(), b.size()); ++i) {
    const std::string left = i < a.size() ? Describe(a[i]) : "none";
    const std::string right = i < b.size() ? Describe(b[i]) : "none";
    if (left != right) return sides.Differ(absl::StrCat("buffer ", i), left, right);
  }
  return absl::OkStatus();
}

absl::Status CompareUnits(const UnitSpec& a, const UnitSpec& b, size_t index, const Sides& sides) {
  const std::string where = absl::StrCat("unit ", index, " (", Quoted(a.name), ")");
  if (a.name != b.name) {
    return sides.Differ(absl::StrCat("the name of unit ", index), Quoted(a.name), Quoted(b.name));
  }
  if (!SameOptions(a, b)) {
    return sides.Differ(absl::StrCat(where, ", options"), DescribeOptions(a), DescribeOptions(b));
  }
  for (size_t i = 0; i < a.parameters.size() && i < b.parameters.size(); ++i) {
    const TensorSpec& left = a.parameters[i];
    const TensorSpec& right = b.parameters[i];
    if (SameSpec(left, right)) continue;
    if (left.name != right.name) {
      return sides.Differ(absl::StrCat(where, ", parameter ", i), Quoted(left.name),
                          Quoted(right.name));
    }
    return sides.Differ(absl::StrCat(where, ", parameter ", Quoted(left.name)), Describe(left),
                        Describe(right));
  }
  if (a.parameters.size() == b.parameters.size()) return absl::OkStatus();
  const UnitSpec& longer = a.parameters.size() > b.parameters.size() ? a : b;
  const size_t first_extra = std::min(a.parameters.size(), b.parameters.size());
  return sides.Differ(
      absl::StrCat(where, ", parameter ", Quoted(longer.parameters[first_extra].name)),
      absl::StrCat(a.parameters.size(), " parameters"),
      absl::StrCat(b.parameters.size(), " parameters"));
}

absl::StatusOr<int64_t> NumelOf(const std::string& tensor, const std::vector<int64_t>& shape) {
  bool has_zero = false;
  for (const int64_t dimension : shape) {
    if (dimension < 0) {
      return absl::InvalidArgumentError(
          absl::StrCat(tensor, ": negative dimension in shape ", ShapeText(shape)));
    }
    has_zero |= dimension == 0;
  }
  // Before the product: the other dimensions may overflow it.
  if (has_zero) return 0;
  int64_t numel = 1;
  for (const int64_t dimension : shape) {
    if (!CheckedMul(numel, dimension, &numel)) {
      return absl::InvalidArgumentError(absl::StrCat(tensor, ": shape ", ShapeText(shape),
                                                     " has more elements than int64 can count"));
    }
  }
  return numel;
}

}  // namespace

absl::StatusOr<int64_t> Numel(const TensorSpec& spec) {
  return NumelOf(absl::StrCat("parameter ", Quoted(spec.name)), spec.shape);
}

absl::StatusOr<int64_t> Numel(const BufferSpec& spec) {
  return NumelOf(absl::StrCat("buffer ", Quoted(spec.name)), spec.shape);
}

absl::StatusOr<int64_t> SizeBytes(const BufferSpec& spec) {
  if (SizeBits(spec.dtype) % 8 != 0) {
    return absl::InvalidArgumentError(absl::StrCat("buffer ", Quoted(spec.name), ": elements of ",
                                                   Name(spec.dtype), " end within a byte"));
  }
  ASSIGN_OR_RETURN(const int64_t numel, Numel(spec));
  const std::optional<int64_t> size_bytes = SizeBytes(spec.dtype, numel);
  if (size_bytes.has_value()) return *size_bytes;
  return absl::InvalidArgumentError(absl::StrCat("buffer ", Quoted(spec.name), ": shape ",
                                                 ShapeText(spec.shape),
                                                 " has more bytes than int64 can count"));
}

absl::Status ValidateUnit(const UnitSpec& unit) {
  if (unit.name.empty()) return absl::InvalidArgumentError("a unit has no name");
  if (unit.parameters.empty()) return UnitError(unit, "has no parameters");
  absl::flat_hash_map<absl::string_view, bool> names;
  names.reserve(unit.parameters.size());
  Primaries primaries;
  primaries.reserve(unit.parameters.size());
  int64_t total_numel = 0;
  for (const TensorSpec& spec : unit.parameters) {
    if (spec.name.empty()) return UnitError(unit, "a parameter has no name");
    if (!names.emplace(spec.name, true).second) {
      return ParameterError(unit, spec, "the name is used twice");
    }
    RETURN_IF_ERROR(ValidateDType(unit, spec));
    if (absl::StatusOr<int64_t> numel = Numel(spec); !numel.ok()) {
      return Annotate(numel.status(), absl::StrCat("unit ", Quoted(unit.name)));
    } else if (!spec.shared_with.empty()) {
      RETURN_IF_ERROR(ValidateAlias(unit, spec, primaries));
    } else {
      primaries.emplace(spec.name, &spec);
      if (!CheckedAdd(total_numel, *numel, &total_numel)) {
        return ParameterError(unit, spec, "the unit's total size overflows int64");
      }
    }
  }
  return absl::OkStatus();
}

absl::Status ValidateModel(const ModelSpec& model) {
  if (model.units.empty()) return absl::InvalidArgumentError("the model has no unit");
  absl::flat_hash_map<absl::string_view, bool> unit_names;
  absl::flat_hash_map<absl::string_view, const UnitSpec*> owner_of_name;
  for (const UnitSpec& unit : model.units) {
    RETURN_IF_ERROR(ValidateUnit(unit));
    if (!unit_names.emplace(unit.name, true).second) {
      return UnitError(unit, "the name is used by two units");
    }
    for (const TensorSpec& spec : unit.parameters) {
      // Unique in the whole model, since checkpoints know no units.
      const auto [it, inserted] = owner_of_name.emplace(spec.name, &unit);
      if (inserted) continue;
      return ParameterError(unit, spec,
                            absl::StrCat("unit ", Quoted(it->second->name), " has it too"));
    }
  }
  absl::flat_hash_map<absl::string_view, bool> buffer_names;
  int64_t total_bytes = 0;
  for (const BufferSpec& spec : model.buffers) {
    if (spec.name.empty()) return absl::InvalidArgumentError("a buffer has no name");
    if (owner_of_name.count(spec.name) > 0 || !buffer_names.emplace(spec.name, true).second) {
      return absl::InvalidArgumentError(
          absl::StrCat("buffer ", Quoted(spec.name), ": the name is used twice"));
    }
    ASSIGN_OR_RETURN(const int64_t size_bytes, SizeBytes(spec));
    if (!CheckedAdd(total_bytes, size_bytes, &total_bytes)) {
      return absl::InvalidArgumentError(
          absl::StrCat("buffer ", Quoted(spec.name), ": the buffers' size overflows int64"));
    }
  }
  return absl::OkStatus();
}

absl::Status CompareModels(const ModelSpec& a, absl::string_view name_a, const ModelSpec& b,
                           absl::string_view name_b) {
  const Sides sides{name_a, name_b};
  for (size_t i = 0; i < a.units.size() && i < b.units.size(); ++i) {
    RETURN_IF_ERROR(CompareUnits(a.units[i], b.units[i], i, sides));
  }
  if (a.units.size() == b.units.size()) return CompareBuffers(a.buffers, b.buffers, sides);
  const ModelSpec& longer = a.units.size() > b.units.size() ? a : b;
  const UnitSpec& extra = longer.units[std::min(a.units.size(), b.units.size())];
  return sides.Differ(absl::StrCat("unit ", Quoted(extra.name)),
                      absl::StrCat(a.units.size(), " units"),
                      absl::StrCat(b.units.size(), " units"));
}

}  // namespace tessera
