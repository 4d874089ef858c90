#include "worker/keeper/save_counts.h"

#include <algorithm>

namespace tessera {

void SaveCounts::Add(const v1::SaveReport& begun, const v1::SaveReport& ended) {
  if (ended.code() != 0) return;
  const double took_s = static_cast<double>(ended.took_ms()) / 1e3;
  const auto* bound = std::lower_bound(kBounds_s.begin(), kBounds_s.end(), took_s);
  ++counts[bound - kBounds_s.begin()];
  sum_s += took_s;
  // The whole of the rank's part, which it said when it began: `ended` has what all ranks wrote.
  written_bytes += static_cast<double>(begun.all_bytes());
}

}  // namespace tessera
