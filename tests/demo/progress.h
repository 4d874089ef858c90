// Progress of long work: a bar that is redrawn on a terminal, a line now and then elsewhere.
// Thread-compatible.
#ifndef TESSERA_TESTS_DEMO_PROGRESS_H_
#define TESSERA_TESTS_DEMO_PROGRESS_H_

#include <string>

#include "absl/strings/string_view.h"

namespace tessera::demo {

class Progress {
 public:
  // Writes to standard error. Without a terminal it prints about `lines` lines in all.
  Progress(std::string title, long total, int lines = 12);
  ~Progress();  // Ends the bar's line.

  void Update(long done, absl::string_view detail);
  // A line of its own, above the bar.
  void Note(absl::string_view text);

 private:
  const std::string title_;
  const long total_;
  const long every_;
  const bool terminal_;
  long shown_ = -1;
};

}  // namespace tessera::demo

#endif  // TESSERA_TESTS_DEMO_PROGRESS_H_
