#include "worker/device/host/host_device.h"

#include <memory>

#include "gtest/gtest.h"
#include "worker/device/device_conformance.h"

namespace tessera {
namespace {

absl::StatusOr<std::unique_ptr<Device>> CreateHostDevice() {
  return std::make_unique<HostDevice>();
}

INSTANTIATE_TEST_SUITE_P(Host, DeviceConformanceTest,
                         testing::Values(DeviceBackend{"Host", CreateHostDevice, {}}));

}  // namespace
}  // namespace tessera
