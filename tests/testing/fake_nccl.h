// NCCL of executors that are threads of a test, over fakes of the GPU and of the library.
#ifndef TESSERA_TESTS_TESTING_FAKE_NCCL_H_
#define TESSERA_TESTS_TESTING_FAKE_NCCL_H_

#include <memory>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
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

  // All ranks are on one GPU, since a process has but one fake, and each is told that it is a host
  // of its own, as the library must be to join them; not with `tell_apart` false.
  // `one_cannot_register`: the first rank that comes has a library without registration.
  absl::StatusOr<std::unique_ptr<DirectCommunicators>> Make(RankDevice* device,
                                                            bool one_cannot_register = false,
                                                            bool tell_apart = true) {
    absl::MutexLock lock(&mu);
    NcclSharing sharing;
    if (tell_apart) sharing.host_id = absl::StrCat("host", apis.size());
    FakeNcclApi::Options options;
    options.place = absl::StrCat(sharing.host_id, " ", device->number());
    options.device_buffers_only = false;  // Keepers' regions are not allocated here.
    options.has_register = !one_cannot_register || !apis.empty();
    apis.push_back(std::make_unique<FakeNcclApi>(&world, FakeGpu(), options));
    return MakeNcclCommunicators(apis.back().get(), device, absl::Seconds(30), sharing);
  }
};

}  // namespace tessera::testing_support

#endif  // TESSERA_TESTS_TESTING_FAKE_NCCL_H_
