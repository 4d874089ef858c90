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
    log.Put(id, MakeRequest(RequestKind::kCreateJob, id, 0, log.NextSequence()));
  }
  EXPECT_THAT(log.Surplus(), ElementsAre("x"));
  log.Forget("x");
  EXPECT_EQ(log.Find("x"), nullptr);
  EXPECT_EQ(log.Find("c")->job, JobId("c"));
  EXPECT_THAT(log.Surplus(), IsEmpty());
  EXPECT_EQ(log.NextSequence(), 4);
}

TEST(RequestLogTest, KnowsTheLastEpochOfADeletedJob) {
  RequestLog log;
  log.Put("1", MakeRequest(RequestKind::kCreateJob, "j", 9, 1));
  EXPECT_EQ(log.LastEpochOfDeleted(JobId("j")), Epoch(0));
  log.Put("2", MakeRequest(RequestKind::kDeleteJob, "j", 7, 2));
  log.Put("3", MakeRequest(RequestKind::kDeleteJob, "other", 8, 3));
  EXPECT_EQ(log.LastEpochOfDeleted(JobId("j")), Epoch(7));
}

}  // namespace
}  // namespace tessera::coordinator
