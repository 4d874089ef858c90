// Values that are put into a job that trains, as files and as what `tessera` says and reads. A test
// fixture's parts; thread-compatible.
#ifndef TESSERA_TESTS_TESTING_LIVE_PUTS_H_
#define TESSERA_TESTS_TESTING_LIVE_PUTS_H_

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "layout/tensor_spec.h"

namespace tessera::testing_support {

struct CliResult {
  int exit_code = 0;
  std::string out, err;
};
// `tessera` with these arguments and, if it is not empty, --coordinator.
CliResult RunTessera(const std::string& coordinator, std::vector<std::string> args);

// By name: the dtype and the bytes of each tensor of a file or checkpoint.
using StoredValues = std::map<std::string, std::pair<std::string, std::string>>;
StoredValues ReadStored(const std::string& path);

// A value that differs from all other elements of all parameters, and is a number in all dtypes.
float PutValue(const std::string& parameter, int64_t element);
// Writes a safetensors file of tensors, each in its spec's dtype (fp32, fp64, bf16 or fp16), with
// PutValue(`as`'s name of it, or its own), rounded.
void WritePutFile(const std::string& path, const std::vector<TensorSpec>& tensors,
                  const std::map<std::string, std::string>& as = {});

// The state of a job, optimizer's included, with its version.
struct LiveReading {
  bool ok = false;
  std::string error;
  int64_t step = 0, committed_step = 0;
  StoredValues values;
};
LiveReading ReadLive(const std::string& coordinator, const std::string& job,
                     const std::string& path);

struct PutOutcome {
  CliResult result;
  bool applied = false;  // The state has a version that no step made.
  LiveReading after;     // That one, if it was applied.
};
// Runs `tessera put --job JOB ARGS` while trainers take one step after the other, and stops them
// right after the version that it makes, or once it has failed. `one_step` takes a step.
PutOutcome PutWhileTraining(const std::string& coordinator, const std::string& job,
                            std::vector<std::string> args, const std::string& scratch_path,
                            const std::function<void()>& one_step);

}  // namespace tessera::testing_support

#endif  // TESSERA_TESTS_TESTING_LIVE_PUTS_H_
