#include "worker/device/cuda/keeper_memory.h"

#include "base/status_matchers.h"
#include "gtest/gtest.h"
#include "worker/device/cuda/cuda_error.h"
#include "worker/device/cuda/fake_cuda_api.h"

namespace tessera {
namespace {

using testing::HasSubstr;

TEST(KeeperMemoryTest, EveryCaseOfTheChoice) {
  const absl::Status ok;
  const absl::Status bad = absl::FailedPreconditionError("cuMemCreate: refused");
  const absl::Status full = absl::ResourceExhaustedError("cuMemCreate: no memory");
  const absl::Status gone = absl::UnavailableError("cuDevicePrimaryCtxRetain: busy");
  const struct {
    DeviceMemoryFacts facts;
    KeeperMemory where;
    const char* reason;
  } cases[] = {
      {{bad, true, true, ok, ok}, KeeperMemory::kNowhere, "no device: cuMemCreate: refused"},
      {{ok, false, true, ok, ok}, KeeperMemory::kInTrainer, "no virtual memory management"},
      {{ok, true, false, ok, ok}, KeeperMemory::kInTrainer, "no descriptors"},
      {{ok, true, true, ok, ok}, KeeperMemory::kWithoutContext, "without a context"},
      {{ok, true, true, ok, bad}, KeeperMemory::kWithoutContext, "without a context"},
      {{ok, true, true, bad, ok}, KeeperMemory::kWithContext, "need a context: cuMemCreate"},
      {{ok, true, true, bad, bad}, KeeperMemory::kInTrainer, "do not work here: cuMemCreate"},
      {{ok, true, true, bad, full}, KeeperMemory::kNowhere, "could not be tried whether"},
      {{ok, true, true, full, bad}, KeeperMemory::kNowhere, "cuMemCreate: no memory"},
      {{ok, true, true, full, ok}, KeeperMemory::kWithContext, "need a context"},
      {{ok, true, true, gone, gone}, KeeperMemory::kNowhere, "cuDevicePrimaryCtxRetain"},
  };
  for (const auto& c : cases) {
    const KeeperMemoryChoice choice = ChooseKeeperMemory(c.facts);
    EXPECT_EQ(choice.where, c.where) << c.reason;
    EXPECT_THAT(choice.reason, HasSubstr(c.reason));
  }
}

TEST(KeeperMemoryTest, ProbeFindsWhatTheMachineDoesAndGivesEverythingBack) {
  const auto choose = [](const FakeCudaApi::Options& options, const char* fails = nullptr,
                         int error = kCudaNotPermitted) {
    FakeCudaApi api(options);
    if (fails != nullptr) {
      api.FailCall(fails, error);
      api.FailCall(fails, error);
    }
    const KeeperMemory where = FindKeeperMemory(&api, 0).where;
    EXPECT_EQ(api.Held(), "");
    return where;
  };
  FakeCudaApi::Options options;
  EXPECT_EQ(choose(options), KeeperMemory::kWithoutContext);
  EXPECT_EQ(choose(options, "MemExportToShareableHandle"), KeeperMemory::kInTrainer);
  EXPECT_EQ(choose(options, "MemImportFromShareableHandle"), KeeperMemory::kInTrainer);
  EXPECT_EQ(choose(options, "MemCreate", kCudaOutOfMemory), KeeperMemory::kNowhere);
  EXPECT_EQ(choose(options, "Init"), KeeperMemory::kNowhere);
  options.memory_needs_context = true;
  EXPECT_EQ(choose(options), KeeperMemory::kWithContext);
  options.descriptors = false;
  EXPECT_EQ(choose(options), KeeperMemory::kInTrainer);
  options = {};
  options.memory_management = false;
  EXPECT_EQ(choose(options), KeeperMemory::kInTrainer);
  options = {};
  options.num_devices = 0;
  EXPECT_EQ(choose(options), KeeperMemory::kNowhere);
}

}  // namespace
}  // namespace tessera
