// NCCL of executors that are threads of a test, over fakes of the GPU and of the library.
#ifndef TESSERA_TESTS_TESTING_FAKE_NCCL_H_
#define TESSERA_TESTS_TESTING_FAKE_NCCL_H_

#include <memory>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "tests/testing/fake_gpu.h"
#include "worker/comm/nccl/fake_nccl_api.h"
#include "worker/comm/nccl/nccl_direct.h"

namespace tessera::testing_support {

// Keeps what each rank was given. Outlives the executors.
struct FakeNccl {
  FakeNcclWorld world;
  absl::Mutex mu;
  std::vector<std::unique_ptr<FakeNcclApi>> apis ABSL_GUARDED_BY(mu);

  // `one_cannot_register`: the first rank that comes has a library without registration.
  absl::StatusOr<std::unique_ptr<DirectCommunicators>> Make(RankDevice* device,
                                                            bool one_cannot_register = false) {
    absl::MutexLock lock(&mu);
    FakeNcclApi::Options options;
    options.device_buffers_only = false;  // Regions of keepers are no allocations of this process.
    options.has_register = !one_cannot_register || !apis.empty();
    apis.push_back(std::make_unique<FakeNcclApi>(&world, FakeGpu(), options));
    return MakeNcclCommunicators(apis.back().get(), device);
  }
};

}  // namespace tessera::testing_support

#endif  // TESSERA_TESTS_TESTING_FAKE_NCCL_H_
