// The toy model's trainer on whatever device the rank has: on a GPU gradients are there, and
// parameters are read from there.
#ifndef TESSERA_TESTS_TESTING_GPU_TRAINING_H_
#define TESSERA_TESTS_TESTING_GPU_TRAINING_H_

#include <cstdint>
#include <functional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "tessera/session.h"
#include "worker/device/rank_device.h"

namespace tessera::testing_support {

// Of a unit, by parameter, in full precision. The unit is unsharded.
absl::StatusOr<std::vector<std::vector<float>>> ReadUnit(Session* session, RankDevice* device,
                                                         int unit);
// Gives the unit's gradient, by parameter, from where the rank's device is, and reduces it.
absl::Status AddAndReduce(Session* session, RankDevice* device, int unit,
                          const std::vector<std::vector<float>>& gradients);
// As ReadAll of toy_training.h.
absl::StatusOr<std::vector<float>> ReadAllFrom(Session* session, RankDevice* device);
// As ToyStep, with the same gradients, each reduced once for each micro-batch.
absl::Status ToyStepOn(Session* session, RankDevice* device, int64_t step, int micro_batches = 1);
// As TrainToy, with its recoveries.
absl::Status TrainToyOn(Session* session, RankDevice* device, int64_t last_step,
                        int micro_batches = 1);

// A step with the windows of a framework: the root's stays open, each of the others is open in its
// forward and in its backward and opened while the one before is still in use. Gradients depend on
// what both showed. In the order of the units, or with `backwards` in the other one. Any dtype.
absl::Status WindowedStepOn(Session* session, RankDevice* device, int64_t step,
                            bool backwards = false);
// What the unit's window shows, in whichever precision it is open, by parameter.
absl::StatusOr<std::vector<std::vector<float>>> ReadWindow(Session* session, RankDevice* device,
                                                           int unit);

}  // namespace tessera::testing_support

#endif  // TESSERA_TESTS_TESTING_GPU_TRAINING_H_
