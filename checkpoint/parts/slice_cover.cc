#include "checkpoint/parts/slice_cover.h"

#include <algorithm>
#include <tuple>

#include "absl/strings/str_cat.h"

namespace tessera {
namespace {

std::string RangeOf(const std::string& tensor, int64_t begin, int64_t end) {
  return absl::StrCat("tensor '", tensor, "': elements [", begin, ", ", end, ")");
}

}  // namespace

absl::StatusOr<std::vector<HeldSlice>> CoverOnce(
    const std::string& tensor, int64_t numel, std::vector<HeldSlice> slices,
    absl::FunctionRef<std::string(int holder)> holder_name) {
  // Sorted by beginning and length: replicas are neighbours, and the lowest holder comes first.
  std::sort(slices.begin(), slices.end(), [](const HeldSlice& a, const HeldSlice& b) {
    return std::tie(a.begin_elements, a.count, a.holder) <
           std::tie(b.begin_elements, b.count, b.holder);
  });
  std::vector<HeldSlice> taken;
  int64_t at = 0;
  for (const HeldSlice& slice : slices) {
    const int64_t begin = slice.begin_elements;
    // Written so that no sum can overflow.
    if (begin < 0 || slice.count < 0 || begin > numel || slice.count > numel - begin) {
      return absl::InvalidArgumentError(absl::StrCat(RangeOf(tensor, begin, begin + slice.count),
                                                     " of ", holder_name(slice.holder),
                                                     " are not in its ", numel));
    }
    if (slice.count == 0) continue;
    if (begin > at)
      return absl::InvalidArgumentError(absl::StrCat(RangeOf(tensor, at, begin), " are nowhere"));
    if (begin == at) {
      taken.push_back(slice);
      at = begin + slice.count;
      continue;
    }
    // Not empty, since something ends at `at`.
    const HeldSlice& last = taken.back();
    const std::string both =
        absl::StrCat(holder_name(last.holder), " and in ", holder_name(slice.holder));
    // An overlap that is not a replica means that the parts do not belong together.
    if (last.begin_elements != begin || last.count != slice.count) {
      return absl::InvalidArgumentError(
          absl::StrCat(RangeOf(tensor, begin, std::min(at, begin + slice.count)), " are in ", both,
                       ", in slices that are not the same"));
    }
    if (last.crc32 != slice.crc32) {
      return absl::DataLossError(
          absl::StrCat(RangeOf(tensor, begin, at), " are not the same in ", both));
    }
  }
  if (at < numel)
    return absl::InvalidArgumentError(absl::StrCat(RangeOf(tensor, at, numel), " are nowhere"));
  return taken;
}

}  // namespace tessera
