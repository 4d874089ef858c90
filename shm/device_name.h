// Which device: the host, or a GPU by its UUID, which is the same in all processes, and by its
// number, which is not: CUDA_VISIBLE_DEVICES has each process count its own. A plain value.
//
//   "0"   "0 GPU-12345678-1234-1234-1234-123456789abc"   "-1" is the host
//
// A part of a GPU (MIG) has a UUID of its own, and is a device like any other.
#ifndef TESSERA_SHM_DEVICE_NAME_H_
#define TESSERA_SHM_DEVICE_NAME_H_

#include <array>
#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace tessera {

inline constexpr int kHostDevice = -1;
inline constexpr int kNoNumber = -2;  // Only the UUID is known.

using DeviceUuid = std::array<uint8_t, 16>;

struct DeviceName {
  DeviceName() = default;
  // NOLINTNEXTLINE: a number alone is a name, within one process.
  DeviceName(int number, const DeviceUuid& uuid = {}) : number(number), uuid(uuid) {}

  int number = kHostDevice;  // As CUDA numbers it, in the process that gave the name.
  DeviceUuid uuid = {};      // All zero: none is known.

  bool is_host() const { return number == kHostDevice; }
  bool has_uuid() const { return uuid != DeviceUuid{}; }
};

// "GPU-12345678-1234-1234-1234-123456789abc".
std::string UuidText(const DeviceUuid& uuid);
// The same, or "MIG-" before it; digits of either case.
// Errors: InvalidArgument  anything else
absl::StatusOr<DeviceUuid> ParseUuid(absl::string_view text);

// "0 GPU-...", "0", "-1"; "GPU-..." without a number.
std::string ToText(const DeviceName& name);
// What ToText gives, and what people write: a number or a UUID.
// Errors: InvalidArgument  anything else
absl::StatusOr<DeviceName> ParseDeviceName(absl::string_view text);

}  // namespace tessera

#endif  // TESSERA_SHM_DEVICE_NAME_H_
