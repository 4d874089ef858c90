// A model without a framework: gradients are a fixed function of parameters, rank and step, so that
// a whole run is deterministic and an unsharded reference is a few lines.
//
//   gradient[i] = parameter[i] * 0.1 + sin(i + 7 * rank + 13 * step)
#ifndef TESSERA_TESTS_TESTING_TOY_TRAINING_H_
#define TESSERA_TESTS_TESTING_TOY_TRAINING_H_

#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "tessera/session.h"

namespace tessera::testing_support {

// `num_units` units of two or three parameters each, of odd sizes; the last one of each frozen if
// `with_frozen`.
ModelSpec ToyModel(int num_units, bool with_frozen = false);

// A count, statistics and a table that never changes; and what they are after a step, all bytes.
std::vector<BufferSpec> ToyBuffers();
std::string ToyBufferAt(int buffer, int64_t step);
// From now on, where the session is rank 0's: with each version those of the step that makes it.
void PublishToyBuffers(Session* session);

// The initial value of an element.
float InitialValue(int unit, int parameter, int64_t element);

float ToyGradient(float parameter, int64_t element, int rank, int64_t step);

// Initialises where needed.
absl::Status InitializeToy(Session* session);

// Unshards all units in order, forms gradients in reverse order, reduces, and steps.
// `micro_batches` > 1 accumulates that many contributions before reducing.
absl::Status ToyStep(Session* session, int64_t step, const StepOptions& options = StepOptions(),
                     int micro_batches = 1);

// Trains up to and including `last_step`, recovering from every failure. `before` runs at the start
// of each try of a step; `options` gives the numbers of each step.
absl::Status TrainToy(Session* session, int64_t last_step,
                      const std::function<void(int64_t step)>& before = nullptr,
                      int micro_batches = 1,
                      const std::function<StepOptions(int64_t step)>& options = nullptr);

// All parameters, unit by unit, read through the session (which must be all resharded).
absl::StatusOr<std::vector<float>> ReadAll(Session* session);

// One parameter and its moments.
struct ReferenceState {
  std::vector<float> p, m, v;
};

// One parameter's `update`-th update (1 is the first) in plain scalar code; the gradient is
// averaged already and is multiplied by `scale`.
void ReferenceUpdate(const JobConfig& config, const ParamGroup& group, int64_t update, double scale,
                     const std::vector<float>& gradient, ReferenceState* state);

// What ReadAll gives after an unsharded run in double-checked plain C++ (AdamW or SGD as config).
std::vector<float> ReferenceRun(const ModelSpec& model, const JobConfig& config, int64_t last_step,
                                int micro_batches = 1);

}  // namespace tessera::testing_support

#endif  // TESSERA_TESTS_TESTING_TOY_TRAINING_H_
