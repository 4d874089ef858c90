#include "base/same_secret.h"

#include <string>

#include "gtest/gtest.h"

namespace tessera {
namespace {

TEST(SameSecretTest, IsTheSameOnlyIfEachByteIs) {
  const std::string secret("\0key\xff", 5);
  EXPECT_TRUE(IsSameSecret(secret, secret));
  EXPECT_TRUE(IsSameSecret("", ""));
  EXPECT_FALSE(IsSameSecret(secret, ""));
  EXPECT_FALSE(IsSameSecret(secret, secret.substr(0, 4)));
  EXPECT_FALSE(IsSameSecret(secret.substr(0, 4), secret));
  for (size_t i = 0; i < secret.size(); ++i) {
    for (int bit = 0; bit < 8; ++bit) {
      std::string wrong = secret;
      wrong[i] = static_cast<char>(wrong[i] ^ 1 << bit);
      EXPECT_FALSE(IsSameSecret(secret, wrong)) << "byte " << i << ", bit " << bit;
    }
  }
}

}  // namespace
}  // namespace tessera
