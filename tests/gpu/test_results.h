// The result of one program of a check, from the files that it left. Pure; thread-safe.
//
//   it ended by itself   gtest's JSON: counts, and the names of what failed
//   it was killed        there is none; its output says which tests ended and which one was running
#ifndef TESSERA_TESTS_GPU_TEST_RESULTS_H_
#define TESSERA_TESTS_GPU_TEST_RESULTS_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace tessera {
namespace gpu_check {

struct TestCounts {
  int passed = 0;
  int skipped = 0;
  std::vector<std::string> failures;  // "Suite.Test", each once.
};

// `text` is what --gtest_output=json wrote.
// Errors: InvalidArgument  it is not such a document
absl::StatusOr<TestCounts> CountsOfJson(const std::string& text);

// Of the lines "[       OK ] Suite.Test (0 ms)" and the like. A test that began and did not end is
// a failure.
TestCounts CountsOfOutput(absl::string_view output);

// The line that the first skipped test gave as its reason; empty where none was skipped.
std::string FirstSkipReason(absl::string_view output);

}  // namespace gpu_check
}  // namespace tessera

#endif  // TESSERA_TESTS_GPU_TEST_RESULTS_H_
