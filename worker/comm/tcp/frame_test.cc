#include "worker/comm/tcp/frame.h"

#include <random>

#include "base/status_matchers.h"
#include "gtest/gtest.h"

namespace tessera {
namespace {

using testing::HasSubstr;

TEST(FrameTest, GreetingsComeBack) {
  Hello hello = {7, 3, 5, {}};
  for (size_t i = 0; i < hello.secret.size(); ++i) hello.secret[i] = static_cast<uint8_t>(200 + i);
  const auto back = DecodeGreeting(EncodeGreeting(hello));
  ASSERT_TRUE(back.has_value());
  EXPECT_EQ(back->epoch, 7);
  EXPECT_EQ(back->from, 3);
  EXPECT_EQ(back->to, 5);
  EXPECT_EQ(back->secret, hello.secret);
}

TEST(FrameTest, HeadersComeBack) {
  const Frame frame = {FrameKind::kFailure, 0x1122334455667788, 9, (int64_t{1} << 40) + 1};
  const auto back = DecodeFrameHeader(EncodeFrameHeader(frame));
  ASSERT_TRUE(back.has_value());
  EXPECT_EQ(back->kind, FrameKind::kFailure);
  EXPECT_EQ(back->digest, frame.digest);
  EXPECT_EQ(back->sequence, frame.sequence);
  EXPECT_EQ(back->bytes, frame.bytes);
}

TEST(FrameTest, RandomBytesAreNeitherGreetingNorHeader) {
  std::mt19937 random(5);
  for (int i = 0; i < 2000; ++i) {
    Greeting greeting;
    FrameHeader header;
    for (uint8_t& byte : greeting) byte = static_cast<uint8_t>(random());
    for (uint8_t& byte : header.bytes) byte = static_cast<uint8_t>(random());
    EXPECT_FALSE(DecodeGreeting(greeting).has_value());
    EXPECT_FALSE(DecodeFrameHeader(header).has_value());
  }
}

TEST(FrameTest, HeaderWithAnAbsurdSizeIsRefused) {
  EXPECT_FALSE(DecodeFrameHeader(EncodeFrameHeader({FrameKind::kExchange, 1, 0, -1})).has_value());
}

TEST(FrameTest, AddressesComeBackAndOthersAreRefused) {
  PeerAddress address = {"fd00::7", 65535, {}};
  address.secret.fill(0xab);
  ASSERT_OK_AND_ASSIGN(const PeerAddress back, ParsePeerAddress(FormatPeerAddress(address)));
  EXPECT_EQ(back.host, "fd00::7");
  EXPECT_EQ(back.port, 65535);
  EXPECT_EQ(back.secret, address.secret);
  const std::string secret(32, 'a');
  for (const std::string& bad :
       {std::string(""), std::string("10.0.0.1 80"), "10.0.0.1 0 " + secret,
        "10.0.0.1 65536 " + secret, "10.0.0.1 80 " + secret + "0",
        "10.0.0.1 80 " + std::string(32, 'g'), " 80 " + secret}) {
    EXPECT_THAT(ParsePeerAddress(bad), StatusIs(absl::StatusCode::kInvalidArgument,
                                                HasSubstr("not the address of a rank")))
        << bad;
  }
}

}  // namespace
}  // namespace tessera
