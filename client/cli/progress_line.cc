#include "client/cli/progress_line.h"

#include "layout/layout_dump.h"

namespace tessera::cli {

ProgressLine::~ProgressLine() {
  if (told_percent_ >= 0) *console_.err << "\n" << std::flush;
}

void ProgressLine::Tell(int64_t done_bytes, int64_t all_bytes) {
  const double share = all_bytes == 0 ? 1 : static_cast<double>(done_bytes) / all_bytes;
  const auto percent = static_cast<int64_t>(share * 100);
  // Calls come with each piece, far more often than the number changes.
  if (!console_.out_is_terminal || percent == told_percent_) return;
  told_percent_ = percent;
  *console_.err << "\r" << what_ << ": " << percent << "% of " << FormatBytes(all_bytes)
                << std::flush;
}

}  // namespace tessera::cli
