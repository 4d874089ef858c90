// Where a benchmark keeps its rows, as they come: if the program ends in the middle of a part, the
// rows of earlier parts stay.
#ifndef TESSERA_TESTS_GPU_ROWS_FILE_H_
#define TESSERA_TESTS_GPU_ROWS_FILE_H_

#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "tests/gpu/bench_row.h"

namespace tessera {
namespace gpu_check {

// Thread-compatible.
class RowsFile {
 public:
  explicit RowsFile(std::string path) : path_(std::move(path)) {}

  // A reader of the file finds all rows so far, or the previous ones: it is written to a temporary
  // file and renamed. Errors: those of writing, by errno
  absl::Status Add(const std::vector<BenchRow>& rows);
  // A row of this name that says why there is none.
  absl::Status AddError(const std::string& name, const absl::Status& why);

  const std::vector<BenchRow>& rows() const { return rows_; }

 private:
  const std::string path_;
  std::vector<BenchRow> rows_;
};

}  // namespace gpu_check
}  // namespace tessera

#endif  // TESSERA_TESTS_GPU_ROWS_FILE_H_
