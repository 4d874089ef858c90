// One line on a terminal that says how far something is, again and again in the same place:
//
//   verifying: 40% of 1.5 GiB
//
// Written to `err`, and only if a person looks. Thread-compatible.
#ifndef TESSERA_CLIENT_CLI_PROGRESS_LINE_H_
#define TESSERA_CLIENT_CLI_PROGRESS_LINE_H_

#include <cstdint>
#include <string>
#include <utility>

#include "client/cli/command.h"

namespace tessera::cli {

class ProgressLine {
 public:
  // The console's streams outlive this.
  ProgressLine(const Console& console, std::string what)
      : console_(console), what_(std::move(what)) {}
  // Ends the line, so that what follows has one of its own.
  ~ProgressLine();
  ProgressLine(const ProgressLine&) = delete;
  ProgressLine& operator=(const ProgressLine&) = delete;

  void Tell(int64_t done_bytes, int64_t all_bytes);

 private:
  const Console console_;
  const std::string what_;
  int64_t told_percent_ = -1;
};

}  // namespace tessera::cli

#endif  // TESSERA_CLIENT_CLI_PROGRESS_LINE_H_
