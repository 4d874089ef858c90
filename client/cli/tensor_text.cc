#include "client/cli/tensor_text.h"

#include <fnmatch.h>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace tessera::cli {
namespace {

std::string ValuesText(const TensorDiff& diff) {
  const ElementDiff& elements = diff.elements;
  std::string text = absl::StrCat("in ", elements.num_different, " of ", diff.a.numel,
                                  " elements, from ", elements.first_element, " on");
  const bool any_finite = elements.num_different > elements.num_non_finite;
  if (any_finite && HasDifferences(diff.a.dtype.value_or(StoredDType::kU8)))
    absl::StrAppend(&text, ", by up to ", elements.largest);
  if (elements.num_non_finite > 0)
    absl::StrAppend(&text, ", ", elements.num_non_finite, " of them NaN or infinite on a side");
  return text;
}

}  // namespace

bool MatchesPattern(const std::string& pattern, const std::string& name) {
  // A backslash stands for itself, because a name may have one.
  return pattern.empty() || fnmatch(pattern.c_str(), name.c_str(), FNM_NOESCAPE) == 0;
}

std::string DTypeText(const StoredEntry& entry) {
  return entry.dtype.has_value() ? std::string(Name(*entry.dtype)) : "bytes";
}

std::string ShapeText(const StoredEntry& entry) {
  return absl::StrCat("[", absl::StrJoin(entry.shape, ", "), "]");
}

std::string DifferenceText(const TensorDiff& diff) {
  switch (diff.kind) {
    case DiffKind::kOnlyInA:
      return absl::StrCat(DTypeText(diff.a), " ", ShapeText(diff.a));
    case DiffKind::kOnlyInB:
      return absl::StrCat(DTypeText(diff.b), " ", ShapeText(diff.b));
    case DiffKind::kDType:
      return absl::StrCat(DTypeText(diff.a), ", ", DTypeText(diff.b));
    case DiffKind::kShape:
      return absl::StrCat(ShapeText(diff.a), ", ", ShapeText(diff.b));
    case DiffKind::kValues:
      return ValuesText(diff);
  }
  return "";
}

}  // namespace tessera::cli
