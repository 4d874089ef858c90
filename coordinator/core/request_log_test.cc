#include "coordinator/core/request_log.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tessera::coordinator {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

Request MakeRequest(RequestKind kind, const std::string& job, int64_t epoch, int64_t sequence) {
  Request request;
  request.kind = kind;
  request.job = JobId(job);
  request.reply.epoch = Epoch(epoch);
  request.sequence = sequence;
  return request;
}

TEST(RequestLogTest, OldestAreForgottenFirst) {
  RequestLog log(/*capacity=*/3);
  for (const char* id : {"x", "c", "m"}) {
    EXPECT_THAT(log.Surplus(), IsEmpty());
    log.Put(id, MakeRequest(RequestKind::kCreateJob, id, 0, log.NextSequence(0)));
  }
  EXPECT_THAT(log.Surplus(), ElementsAre("x"));
  log.Forget("x");
  EXPECT_EQ(log.Find("x"), nullptr);
  EXPECT_EQ(log.Find("c")->job, JobId("c"));
  EXPECT_THAT(log.Surplus(), IsEmpty());
  EXPECT_EQ(log.NextSequence(0), 4);
}

TEST(RequestLogTest, NumbersGrowAndNeverRepeat) {
  RequestLog log(/*capacity=*/1);
  EXPECT_EQ(log.NextSequence(5), 5);
  log.Put("a", MakeRequest(RequestKind::kCreateJob, "j", 0, 5));
  EXPECT_EQ(log.NextSequence(5), 6) << "also at the same time";
  EXPECT_EQ(log.NextSequence(0), 6) << "also where time goes back";
  EXPECT_EQ(log.NextSequence(100), 100);
}

}  // namespace
}  // namespace tessera::coordinator
