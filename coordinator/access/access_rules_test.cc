#include "coordinator/access/access_rules.h"

#include <string>
#include <vector>

#include "base/status_matchers.h"
#include "gtest/gtest.h"

namespace tessera::coordinator {
namespace {

using testing::HasSubstr;

constexpr absl::StatusCode kDenied = absl::StatusCode::kPermissionDenied;
constexpr absl::StatusCode kInvalid = absl::StatusCode::kInvalidArgument;

AccessRules Rules(const std::vector<std::string>& grants = {},
                  const std::vector<std::string>& roots = {}) {
  return *AccessRules::Make("uid:500", grants, roots);
}

TEST(AccessRulesTest, OwnUserAndRootMayDoAllAndWorkForAnyWorker) {
  for (const char* identity : {"uid:500", "uid:0"}) {
    const AccessRules rules = Rules();
    EXPECT_OK(rules.Check(identity, Right::kCreate));
    EXPECT_OK(rules.Check(identity, Right::kChange, "gpt", "uid:7"));
    EXPECT_OK(rules.Check(identity, Right::kRead, "gpt", ""));
    EXPECT_OK(rules.CheckWorker(identity, "w1"));
    EXPECT_OK(rules.SaveRootOf(identity, "/anywhere"));
  }
}

TEST(AccessRulesTest, OthersMayCreateAndHaveTheirOwnJobsAlone) {
  const AccessRules rules = Rules();
  EXPECT_OK(rules.Check("uid:7", Right::kList));
  EXPECT_OK(rules.Check("uid:7", Right::kCreate));
  EXPECT_OK(rules.Check("uid:7", Right::kRead, "gpt", "uid:7"));
  EXPECT_OK(rules.Check("uid:7", Right::kChange, "gpt", "uid:7"));
  EXPECT_THAT(rules.Check("uid:7", Right::kRead, "gpt", "uid:8"),
              StatusIs(kDenied, HasSubstr("'uid:7' may not read job 'gpt': its owner is 'uid:8'")));
  EXPECT_THAT(rules.Check("uid:7", Right::kChange, "gpt", ""),
              StatusIs(kDenied, HasSubstr("may not change job 'gpt': its owner is not known")));
  EXPECT_THAT(rules.CheckWorker("uid:7", "w1"),
              StatusIs(kDenied, HasSubstr("--grant worker:w1=uid:7")));
}

TEST(AccessRulesTest, IdentityOfAnEmptyNameOwnsNothing) {
  EXPECT_THAT(Rules().Check("", Right::kRead, "gpt", ""), StatusIs(kDenied, HasSubstr("gpt")));
}

TEST(AccessRulesTest, CertificateOfAUserIsNotTheUidOfThatName) {
  EXPECT_THAT(Rules().Check("certificate:uid:0", Right::kRead, "gpt", "uid:8"),
              StatusIs(kDenied, HasSubstr("gpt")));
  EXPECT_THAT(Rules().CheckWorker("certificate:w1", "w1"), StatusIs(kDenied, HasSubstr("w1")));
}

TEST(AccessRulesTest, CertificatesNameRolesOfTheirOwn) {
  const AccessRules rules = Rules();
  EXPECT_OK(rules.Check("certificate:tessera:operator", Right::kChange, "gpt", "uid:8"));
  EXPECT_OK(rules.Check("certificate:tessera:reader", Right::kRead, "gpt", "uid:8"));
  EXPECT_THAT(rules.Check("certificate:tessera:reader", Right::kChange, "gpt", "uid:8"),
              StatusIs(kDenied, HasSubstr("change")));
  EXPECT_THAT(rules.Check("certificate:tessera:reader", Right::kCreate),
              StatusIs(kDenied, HasSubstr("creates no jobs")));
  EXPECT_OK(rules.CheckWorker("certificate:tessera:worker:w1", "w1"));
  EXPECT_THAT(rules.CheckWorker("certificate:tessera:worker:w1", "w2"),
              StatusIs(kDenied, HasSubstr("is not worker 'w2'")));
  EXPECT_THAT(rules.Check("certificate:tessera:worker:w1", Right::kRead, "gpt", "uid:8"),
              StatusIs(kDenied, HasSubstr("read")));
  EXPECT_THAT(rules.CheckWorker("certificate:tessera:operator", "w1"),
              StatusIs(kDenied, HasSubstr("is not worker")));
  EXPECT_THAT(rules.CheckWorker("certificate:tessera:worker:", ""),
              StatusIs(kDenied, HasSubstr("is not worker")));
}

TEST(AccessRulesTest, GrantsGiveRoles) {
  const AccessRules rules = Rules({"operator=uid:7", "reader=certificate:graphs", "worker:w1=uid:9",
                                   "worker:w2=uid:9", "worker=certificate:a=b"});
  EXPECT_OK(rules.Check("uid:7", Right::kChange, "gpt", "uid:8"));
  EXPECT_OK(rules.Check("certificate:graphs", Right::kRead, "gpt", "uid:8"));
  EXPECT_OK(rules.CheckWorker("uid:9", "w1"));
  EXPECT_OK(rules.CheckWorker("uid:9", "w2"));
  EXPECT_THAT(rules.CheckWorker("uid:9", "w3"), StatusIs(kDenied, HasSubstr("w3")));
  EXPECT_OK(rules.CheckWorker("certificate:a=b", "w3"));
}

TEST(AccessRulesTest, WhoIsGrantedARoleMayStillOwnJobs) {
  const AccessRules rules = Rules({"worker:w1=uid:1000", "reader=uid:1001"});
  for (const char* identity : {"uid:1000", "uid:1001"}) {
    EXPECT_OK(rules.Check(identity, Right::kCreate));
    EXPECT_OK(rules.Check(identity, Right::kChange, "gpt", identity));
  }
}

TEST(AccessRulesTest, UidsAreNumbers) {
  EXPECT_OK(Rules({"operator=uid:007"}).Check("uid:7", Right::kChange, "gpt", "uid:8"));
}

TEST(AccessRulesTest, SaveRootOfOwnersIsForEachHisOwnFolder) {
  const AccessRules rules = Rules({}, {"/saves/{owner}", "/shared"});
  EXPECT_OK(rules.SaveRootOf("uid:7", "/saves/7/gpt"));
  EXPECT_OK(rules.SaveRootOf("certificate:alice", "/saves/alice/gpt"));
  EXPECT_OK(rules.SaveRootOf("uid:7", "/shared/gpt"));
  EXPECT_OK(rules.SaveRootOf("uid:500", "/saves/7/gpt")) << "the coordinator's own user";
  for (const char* path : {"/saves/8/gpt", "/saves/77", "/saves/7", "/saves/x"}) {
    EXPECT_THAT(rules.SaveRootOf("uid:7", path), StatusIs(kDenied, HasSubstr("{owner}"))) << path;
  }
  for (const char* identity : {"certificate:a/b", "certificate:..", "certificate:.x"}) {
    EXPECT_THAT(rules.SaveRootOf(identity, "/saves/b/x"), StatusIs(kDenied, HasSubstr("below")))
        << identity;
  }
}

TEST(AccessRulesTest, GrantsOfAnotherFormAreNamed) {
  for (const char* grant : {"", "operator", "operator=", "operator=7", "operator=uid:x",
                            "king=uid:7", "worker:=uid:7", "reader=certificate:", "=uid:7"}) {
    EXPECT_THAT(AccessRules::Make("uid:500", {grant}, {}).status(),
                StatusIs(kInvalid, HasSubstr(grant)))
        << grant;
  }
}

TEST(AccessRulesTest, CheckpointsAreBelowTheSaveRoots) {
  const AccessRules rules = Rules({}, {"/saves", "/scratch/a"});
  EXPECT_OK(rules.SaveRootOf("uid:7", "/saves/gpt/run1"));
  EXPECT_OK(rules.SaveRootOf("uid:7", "/scratch/a/x"));
  EXPECT_OK(rules.SaveRootOf("uid:7", "//saves/./gpt//run1/"));
  for (const char* identity : {"uid:7", "uid:0", "uid:500"}) {
    for (const char* path : {"/saves", "/saves2/x", "/scratch/b", "/", "/saves//"}) {
      EXPECT_THAT(rules.SaveRootOf(identity, path),
                  StatusIs(kDenied, HasSubstr("/saves, /scratch/a")))
          << path;
    }
    for (const char* path : {"/saves/../etc/x", "/saves/x/..", "saves/x", ""}) {
      EXPECT_THAT(rules.SaveRootOf(identity, path), StatusIs(kInvalid, HasSubstr("absolute")))
          << path;
    }
  }
}

TEST(AccessRulesTest, WithoutSaveRootsOnlyTheOwnUserNamesFolders) {
  EXPECT_THAT(Rules({"operator=uid:7"}).SaveRootOf("uid:7", "/saves/x"),
              StatusIs(kDenied, HasSubstr("without --save-root")));
}

TEST(AccessRulesTest, SaveRootsMayBeInObjectStoresAndCoverNoOtherStorage) {
  const AccessRules rules = Rules({}, {"/", "s3://bucket/{owner}", "s3://shared/runs/"});
  EXPECT_EQ(rules.SaveRootOf("uid:7", "s3://bucket/7/gpt").value_or("error"), "s3://bucket/7");
  EXPECT_EQ(rules.SaveRootOf("uid:7", "s3://shared/runs/gpt").value_or("error"),
            "s3://shared/runs");
  for (const char* path : {"s3://bucket/8/gpt", "s3://bucket/7", "s3://shared/runs2/gpt",
                           "s3://other/runs/gpt", "s3://shared/runs"})
    EXPECT_THAT(rules.SaveRootOf("uid:7", path), StatusIs(kDenied, HasSubstr(path))) << path;
  EXPECT_THAT(rules.SaveRootOf("uid:7", "s3://shared/runs/../x"),
              StatusIs(kInvalid, HasSubstr("absolute")));
  EXPECT_THAT(Rules({}, {"s3://bucket/runs"}).SaveRootOf("uid:7", "/bucket/runs/gpt"),
              StatusIs(kDenied, HasSubstr("below none")));
  // Without roots the own user may use all of the storage that the path is in.
  EXPECT_EQ(Rules({}, {}).SaveRootOf("uid:500", "s3://bucket/a/b").value_or("error"),
            "s3://bucket");
}

TEST(AccessRulesTest, SaveRootsThatAreNoAbsolutePathsAreNamed) {
  for (const char* root : {"saves", "/a/../b", ""}) {
    EXPECT_THAT(AccessRules::Make("uid:500", {}, {root}).status(),
                StatusIs(kInvalid, HasSubstr("--save-root")))
        << root;
  }
}

}  // namespace
}  // namespace tessera::coordinator
