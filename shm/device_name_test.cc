#include "shm/device_name.h"

#include "base/status_matchers.h"
#include "gtest/gtest.h"

namespace tessera {
namespace {

using absl::StatusCode;
using testing::HasSubstr;

constexpr char kUuid[] = "GPU-0123abcd-4567-89ef-0011-2233445566ff";
constexpr DeviceUuid kBytes = {0x01, 0x23, 0xab, 0xcd, 0x45, 0x67, 0x89, 0xef,
                               0x00, 0x11, 0x22, 0x33, 0x44, 0x55, 0x66, 0xff};

TEST(DeviceNameTest, TextIsReadAsWhatItWasMadeOf) {
  for (const DeviceName& name :
       {DeviceName(), DeviceName(3), DeviceName(0, kBytes), DeviceName(kNoNumber, kBytes)}) {
    SCOPED_TRACE(ToText(name));
    ASSERT_OK_AND_ASSIGN(const DeviceName read, ParseDeviceName(ToText(name)));
    EXPECT_EQ(read.number, name.number);
    EXPECT_EQ(read.uuid, name.uuid);
  }
  EXPECT_EQ(ToText({2, kBytes}), std::string("2 ") + kUuid);
}

TEST(DeviceNameTest, UuidIsItsBytesHoweverItIsWritten) {
  for (const char* text : {kUuid, "MIG-0123abcd-4567-89ef-0011-2233445566ff",
                           "GPU-0123ABCD-4567-89EF-0011-2233445566FF"}) {
    ASSERT_OK_AND_ASSIGN(const DeviceName name, ParseDeviceName(text));
    EXPECT_EQ(name.uuid, kBytes);
    EXPECT_EQ(name.number, kNoNumber);
    EXPECT_FALSE(name.is_host());
  }
}

TEST(DeviceNameTest, WhatIsNeitherNumberNorUuidIsRefused) {
  for (const char* text :
       {"", " ", "gpu", "-2", "1.5", "0x1", "GPU-", "GPU-0123abcd-4567-89ef-0011-2233445566f",
        "GPU-0123abcd-4567-89ef-0011-2233445566fff", "GPU-0123abcd4-567-89ef-0011-2233445566ff",
        "GPU-0123abcg-4567-89ef-0011-2233445566ff", "XYZ-0123abcd-4567-89ef-0011-2233445566ff",
        "0123abcd-4567-89ef-0011-2233445566ff", "GPU-00000000-0000-0000-0000-000000000000", "0 ",
        "0 1", "x GPU-0123abcd-4567-89ef-0011-2233445566ff", "99999999999999999999"}) {
    EXPECT_THAT(ParseDeviceName(text),
                StatusIs(StatusCode::kInvalidArgument, HasSubstr(std::string("'") + text)))
        << text;
  }
}

}  // namespace
}  // namespace tessera
