#include "worker/engine/agreed_error.h"

#include "base/status_macros.h"
#include "gtest/gtest.h"

namespace tessera {
namespace {

absl::Status PassOn(const absl::Status& status) {
  RETURN_IF_ERROR(status);
  return absl::OkStatus();
}

TEST(AgreedErrorTest, IsToldFromTheErrorThatEndsTheEpochWhereverItIsPassedOn) {
  const absl::Status full = absl::ResourceExhaustedError("disk full");
  EXPECT_TRUE(IsAgreed(PassOn(Annotate(AsAgreed(full), "save"))));
  EXPECT_EQ(AsAgreed(full).code(), full.code());
  EXPECT_EQ(AsAgreed(full).message(), full.message());
  EXPECT_FALSE(IsAgreed(PassOn(Annotate(full, "save"))));
}

TEST(AgreedErrorTest, OkStaysOkAndIsNoError) {
  EXPECT_EQ(AsAgreed(absl::OkStatus()), absl::OkStatus());
  EXPECT_FALSE(IsAgreed(absl::OkStatus()));
}

}  // namespace
}  // namespace tessera
