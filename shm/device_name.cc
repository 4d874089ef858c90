#include "shm/device_name.h"

#include <algorithm>
#include <iterator>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "base/status_macros.h"

namespace tessera {
namespace {

constexpr size_t kDashes[] = {8, 13, 18, 23};
constexpr size_t kUuidChars = 36;

absl::Status NoUuid(absl::string_view text) {
  return absl::InvalidArgumentError(absl::StrCat(
      "'", text, "' is not a GPU's UUID, such as GPU-12345678-1234-1234-1234-123456789abc"));
}

}  // namespace

std::string UuidText(const DeviceUuid& uuid) {
  std::string text = absl::BytesToHexString(
      absl::string_view(reinterpret_cast<const char*>(uuid.data()), uuid.size()));
  for (const size_t dash : kDashes) text.insert(dash, 1, '-');
  return absl::StrCat("GPU-", text);
}

absl::StatusOr<DeviceUuid> ParseUuid(absl::string_view text) {
  absl::string_view digits = text;
  if (!absl::ConsumePrefix(&digits, "GPU-") && !absl::ConsumePrefix(&digits, "MIG-"))
    return NoUuid(text);
  if (digits.size() != kUuidChars) return NoUuid(text);
  std::string hex;
  for (size_t i = 0; i < digits.size(); ++i) {
    const bool is_dash = std::find(std::begin(kDashes), std::end(kDashes), i) != std::end(kDashes);
    if (is_dash ? digits[i] != '-' : !absl::ascii_isxdigit(digits[i])) return NoUuid(text);
    if (!is_dash) hex.push_back(digits[i]);
  }
  const std::string bytes = absl::HexStringToBytes(hex);
  DeviceUuid uuid;
  std::copy(bytes.begin(), bytes.end(), uuid.begin());
  if (uuid == DeviceUuid{}) return NoUuid(text);
  return uuid;
}

std::string ToText(const DeviceName& name) {
  if (!name.has_uuid()) return absl::StrCat(name.number);
  if (name.number == kNoNumber) return UuidText(name.uuid);
  return absl::StrCat(name.number, " ", UuidText(name.uuid));
}

absl::StatusOr<DeviceName> ParseDeviceName(absl::string_view text) {
  const size_t space = text.find(' ');
  const absl::string_view first = text.substr(0, space);
  int number = kNoNumber;
  if (!absl::SimpleAtoi(first, &number)) {
    ASSIGN_OR_RETURN(const DeviceUuid uuid, ParseUuid(text));
    return DeviceName(kNoNumber, uuid);
  }
  if (number < kHostDevice)
    return absl::InvalidArgumentError(absl::StrCat("'", text, "' is not the number of a device"));
  if (space == absl::string_view::npos) return DeviceName(number);
  const absl::StatusOr<DeviceUuid> uuid = ParseUuid(text.substr(space + 1));
  if (!uuid.ok()) return NoUuid(text);
  return DeviceName(number, *uuid);
}

}  // namespace tessera
