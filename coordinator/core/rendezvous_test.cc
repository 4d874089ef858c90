#include "coordinator/core/rendezvous.h"

#include "absl/strings/str_cat.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tessera::coordinator {
namespace {

using ::testing::HasSubstr;

TEST(RendezvousTest, KeyIsWrittenOnce) {
  Rendezvous values;
  bool is_new = false;
  EXPECT_OK(values.CheckPut("k", "v", &is_new));
  EXPECT_TRUE(is_new);
  EXPECT_EQ(values.Get("k"), nullptr);
  values.Put("k", "v");
  EXPECT_EQ(*values.Get("k"), "v");
  EXPECT_OK(values.CheckPut("k", "v", &is_new));
  EXPECT_FALSE(is_new);
  EXPECT_THAT(values.CheckPut("k", "w", &is_new),
              StatusIs(absl::StatusCode::kAlreadyExists, HasSubstr("'k'")));
}

TEST(RendezvousTest, NumberOfKeysIsBounded) {
  Rendezvous values;
  for (int64_t i = 0; i < kMaxValuesPerEpoch; ++i) values.Put(absl::StrCat(i), "");
  bool is_new = false;
  EXPECT_THAT(values.CheckPut("one more", "", &is_new),
              StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("one more")));
  EXPECT_OK(values.CheckPut("0", "", &is_new));
}

}  // namespace
}  // namespace tessera::coordinator
