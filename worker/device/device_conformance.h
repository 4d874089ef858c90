// What every Device must do. A back-end joins by linking this and naming its factory:
//
//   INSTANTIATE_TEST_SUITE_P(Host, DeviceConformanceTest,
//                            testing::Values(DeviceBackend{"Host", MakeHostDevice, {}}));
//
// A factory that returns Unavailable skips the test (the hardware is not here); any other error
// fails it. An excluded test is skipped with its reason.
#ifndef TESSERA_WORKER_DEVICE_DEVICE_CONFORMANCE_H_
#define TESSERA_WORKER_DEVICE_DEVICE_CONFORMANCE_H_

#include <functional>
#include <map>
#include <memory>
#include <ostream>
#include <string>

#include "absl/status/statusor.h"
#include "gtest/gtest.h"
#include "worker/device/device.h"

namespace tessera {

struct DeviceBackend {
  std::string name;
  std::function<absl::StatusOr<std::unique_ptr<Device>>()> create;
  std::map<std::string, std::string> exclusions;  // Test name -> reason.

  friend std::ostream& operator<<(std::ostream& os, const DeviceBackend& b) { return os << b.name; }
};

class DeviceConformanceTest : public testing::TestWithParam<DeviceBackend> {
 protected:
  void SetUp() override;

  std::unique_ptr<Stream> NewStream(const std::string& name);
  std::unique_ptr<Event> NewEvent();

  std::unique_ptr<Device> device_;
};

}  // namespace tessera

#endif  // TESSERA_WORKER_DEVICE_DEVICE_CONFORMANCE_H_
