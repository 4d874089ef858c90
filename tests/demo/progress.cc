#include "tests/demo/progress.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <utility>

namespace tessera::demo {
namespace {

constexpr int kBarWidth = 24;

}  // namespace

Progress::Progress(std::string title, long total, int lines)
    : title_(std::move(title)),
      total_(std::max(1L, total)),
      every_(std::max(1L, total / lines)),
      terminal_(isatty(STDERR_FILENO) == 1) {}

Progress::~Progress() {
  if (terminal_ && shown_ >= 0) fputc('\n', stderr);
}

void Progress::Update(long done, absl::string_view detail) {
  const std::string text(detail);
  if (terminal_) {
    const int filled = static_cast<int>(kBarWidth * std::min(done, total_) / total_);
    fprintf(stderr, "\r\x1b[K%s [%s%s] %ld/%ld %s", title_.c_str(),
            std::string(filled, '#').c_str(), std::string(kBarWidth - filled, '.').c_str(), done,
            total_, text.c_str());
    shown_ = done;
  } else if (done == 1 || done == total_ || done / every_ > shown_ / every_) {
    fprintf(stderr, "%s %ld/%ld %s\n", title_.c_str(), done, total_, text.c_str());
    shown_ = done;
  }
}

void Progress::Note(absl::string_view text) {
  fprintf(stderr, "%s%s\n", terminal_ ? "\r\x1b[K" : "", std::string(text).c_str());
}

}  // namespace tessera::demo
