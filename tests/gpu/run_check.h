// Runs the programs of a check one after the other, and writes what came of it.
#ifndef TESSERA_TESTS_GPU_RUN_CHECK_H_
#define TESSERA_TESTS_GPU_RUN_CHECK_H_

#include <ostream>
#include <string>
#include <vector>

#include "tests/gpu/gpu_facts.h"

namespace tessera {
namespace gpu_check {

struct CheckOptions {
  std::string folder;             // Of the programs and of kSuitesFile.
  std::string out;                // The document. The log is next to it: ".log" for ".json".
  std::vector<std::string> only;  // Names of programs; empty: all.
  bool once = false;              // None runs again in other ways, which takes long.
  // Where compute-sanitizer and nvidia-cuda-mps-control are looked for.
  std::vector<std::string> tool_folders;
};

inline constexpr char kSuitesFile[] = "gpu_suites.txt";

// "dir/gpu-check.log" of "dir/gpu-check.json".
std::string LogOf(const std::string& out);

// Each program by itself first, then those that run again, in other ways (see check_suites.h). A
// way whose tool is not there is in the document, and fails nothing.
//
// One line of progress before and after each program goes to `progress` and to the log, the table
// to `table` in the end. Where `gpu` is not usable nothing runs, and the document says why.
// Returns an exit status of check_report.h: kExitWrongUsage where the programs are not there, a
// name is of none of them, or a file cannot be written.
int RunCheck(const CheckOptions& options, const GpuFacts& gpu, std::ostream* progress,
             std::ostream* table);

}  // namespace gpu_check
}  // namespace tessera

#endif  // TESSERA_TESTS_GPU_RUN_CHECK_H_
