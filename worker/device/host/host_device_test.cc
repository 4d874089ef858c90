#include "worker/device/host/host_device.h"

#include <memory>

#include "base/no_more_threads.h"
#include "base/status_matchers.h"
#include "gtest/gtest.h"
#include "worker/device/device_conformance.h"

namespace tessera {
namespace {

absl::StatusOr<std::unique_ptr<Device>> CreateHostDevice() {
  return std::make_unique<HostDevice>();
}

INSTANTIATE_TEST_SUITE_P(Host, DeviceConformanceTest,
                         testing::Values(DeviceBackend{"Host", CreateHostDevice, {}}));

TEST(HostDeviceTest, StreamThatGetsNoThreadIsAnErrorThatNamesIt) {
  HostDevice device;
  const NoMoreThreads limit;
  EXPECT_THAT(device.CreateStream("copy"),
              StatusIs(absl::StatusCode::kResourceExhausted, testing::HasSubstr("stream 'copy'")));
}

}  // namespace
}  // namespace tessera
