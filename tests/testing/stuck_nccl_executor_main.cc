// tessera-executor on an in-process fake GPU, with a fake NCCL that meets nobody. Before
// all else on its command line:
//
//   --stuck-once=FOLDER   the first of all of these that finds FOLDER missing fails to join, and
//                         its abort never comes back; all after the second have no NCCL. The
//                         folder has one named by the first one's process then, and "other"
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "absl/synchronization/notification.h"
#include "tests/testing/fake_gpu.h"
#include "worker/comm/nccl/fake_nccl_api.h"
#include "worker/comm/nccl/nccl_direct.h"
#include "worker/executor/executor_program.h"

namespace tessera {
namespace {

constexpr char kFlag[] = "--stuck-once=";

// Never destroyed: what is stuck in it uses it until the process ends.
FakeNcclApi* StuckNccl() {
  FakeNcclApi::Options options;
  options.abort_until = new absl::Notification();
  auto* const nccl = new FakeNcclApi(new FakeNcclWorld(), testing_support::FakeGpu(), options);
  nccl->FailAsync(NcclResult::kInternalError);
  // As a library's exit handler, which waits for the lock that the stuck call holds.
  static absl::Notification* const abort_until = options.abort_until;
  atexit([] { abort_until->WaitForNotification(); });
  return nccl;
}

// The ranks are on one GPU, which they may not know of each other here.
NcclSharing OwnHost() { return {absl::StrCat(getpid())}; }

absl::StatusOr<std::unique_ptr<DirectCommunicators>> MakeDirect(const std::string& folder,
                                                                RankDevice* device) {
  if (mkdir(folder.c_str(), 0700) == 0) {
    const std::string who = absl::StrCat(folder, "/", getpid());
    if (mkdir(who.c_str(), 0700) != 0) return absl::InternalError(who);
    return MakeNcclCommunicators(StuckNccl(), device, /*call_timeout=*/absl::Milliseconds(500),
                                 OwnHost());
  }
  if (mkdir((folder + "/other").c_str(), 0700) == 0)  // The other rank: to have one to meet.
    return MakeNcclCommunicators(new FakeNcclApi(new FakeNcclWorld(), testing_support::FakeGpu()),
                                 device, absl::Seconds(30), OwnHost());
  return absl::NotFoundError("no NCCL after the one that was stuck");
}

}  // namespace
}  // namespace tessera

int main(int argc, char** argv) {
  std::string folder;
  std::vector<char*> rest;
  for (int i = 0; i < argc; ++i) {
    if (absl::StartsWith(argv[i], tessera::kFlag)) {
      folder = std::string(absl::StripPrefix(argv[i], tessera::kFlag));
    } else {
      rest.push_back(argv[i]);
    }
  }
  tessera::ExecutorMachine machine;
  machine.make_device = tessera::testing_support::MakeFakeGpuDevice;
  machine.make_direct = [folder](tessera::RankDevice* device) {
    return tessera::MakeDirect(folder, device);
  };
  return tessera::RunExecutorProgram(static_cast<int>(rest.size()), rest.data(), machine);
}
