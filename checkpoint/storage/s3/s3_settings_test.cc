#include "checkpoint/storage/s3/s3_settings.h"

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>

#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tessera::s3 {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

class S3SettingsTest : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = testing::TempDir() + "/settings-XXXXXX";
    ASSERT_NE(mkdtemp(folder_.data()), nullptr);
    set_["HOME"] = folder_;
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  void WriteFile(const std::string& text) {
    std::filesystem::create_directories(folder_ + "/.aws");
    std::ofstream(folder_ + "/.aws/credentials") << text;
  }
  absl::StatusOr<S3Settings> Read() {
    return ReadSettings([this](const char* name) -> std::optional<std::string> {
      const auto found = set_.find(name);
      if (found == set_.end()) return std::nullopt;
      return found->second;
    });
  }

  std::string folder_;
  std::map<std::string, std::string> set_;
};

TEST_F(S3SettingsTest, EnvironmentComesBeforeTheFile) {
  WriteFile("[default]\naws_access_key_id = FILE\naws_secret_access_key=fs\nregion = eu-west-1\n");
  ASSERT_OK_AND_ASSIGN(S3Settings settings, Read());
  EXPECT_EQ(settings.access_key, "FILE");
  EXPECT_EQ(settings.secret_key, "fs");
  EXPECT_EQ(settings.region, "eu-west-1");
  set_["AWS_ACCESS_KEY_ID"] = "ENV";
  set_["AWS_SECRET_ACCESS_KEY"] = "es";
  set_["AWS_SESSION_TOKEN"] = "token";
  set_["AWS_DEFAULT_REGION"] = "us-west-2";
  ASSERT_OK_AND_ASSIGN(settings, Read());
  EXPECT_EQ(settings.access_key, "ENV");
  EXPECT_EQ(settings.secret_key, "es");
  EXPECT_EQ(settings.session_token, "token");
  EXPECT_EQ(settings.region, "us-west-2");
  set_["AWS_REGION"] = "eu-central-1";
  ASSERT_OK_AND_ASSIGN(settings, Read());
  EXPECT_EQ(settings.region, "eu-central-1");
}

TEST_F(S3SettingsTest, ProfileIsTheOneThatIsNamedAndPartsOfTwoAreNotMixed) {
  WriteFile(
      "# x\n[default]\naws_access_key_id = A\naws_secret_access_key = a\n\n[train]\n"
      "aws_access_key_id = B\naws_secret_access_key = b=/+\naws_session_token = t\n[half]\n"
      "aws_access_key_id = C\n");
  set_["AWS_PROFILE"] = "train";
  ASSERT_OK_AND_ASSIGN(const S3Settings settings, Read());
  EXPECT_EQ(settings.access_key, "B");
  EXPECT_EQ(settings.secret_key, "b=/+");
  EXPECT_EQ(settings.session_token, "t");
  EXPECT_EQ(settings.region, "us-east-1");
  set_["AWS_PROFILE"] = "half";
  EXPECT_THAT(Read(), StatusIs(absl::StatusCode::kFailedPrecondition,
                               AllOf(HasSubstr("'half'"), HasSubstr("AWS_ACCESS_KEY_ID"))));
}

TEST_F(S3SettingsTest, MissingOnesAreNamedWithThePlacesWhereTheyWereLookedFor) {
  EXPECT_THAT(Read(), StatusIs(absl::StatusCode::kFailedPrecondition,
                               AllOf(HasSubstr("AWS_SECRET_ACCESS_KEY"),
                                     HasSubstr(folder_ + "/.aws/credentials"))));
  set_["AWS_SHARED_CREDENTIALS_FILE"] = "/elsewhere/keys";
  EXPECT_THAT(Read(),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("/elsewhere/keys")));
}

TEST_F(S3SettingsTest, ErrorsDoNotShowSecrets) {
  set_["AWS_ACCESS_KEY_ID"] = "ID";
  set_["AWS_SECRET_ACCESS_KEY"] = "se cret\r\n";
  EXPECT_THAT(Read(), StatusIs(absl::StatusCode::kInvalidArgument,
                               AllOf(HasSubstr("secret key"), Not(HasSubstr("se cret")))));
  set_["AWS_SECRET_ACCESS_KEY"] = "s";
  set_["AWS_ENDPOINT_URL"] = "https://me:password@host";
  EXPECT_THAT(Read(), StatusIs(absl::StatusCode::kInvalidArgument,
                               AllOf(HasSubstr("AWS_ENDPOINT_URL"), Not(HasSubstr("password")))));
}

TEST_F(S3SettingsTest, EndpointHasTheBucketInThePathAndAwsInTheHost) {
  set_["AWS_ACCESS_KEY_ID"] = "ID";
  set_["AWS_SECRET_ACCESS_KEY"] = "s";
  set_["AWS_REGION"] = "eu-central-1";
  ASSERT_OK_AND_ASSIGN(S3Settings settings, Read());
  EXPECT_EQ(BucketUrl(settings, "bucket"), "https://bucket.s3.eu-central-1.amazonaws.com");
  EXPECT_EQ(BucketUrl(settings, "b.x"), "https://s3.eu-central-1.amazonaws.com/b.x");
  set_["AWS_ENDPOINT_URL"] = "http://127.0.0.1:9000/";
  ASSERT_OK_AND_ASSIGN(settings, Read());
  EXPECT_EQ(BucketUrl(settings, "bucket"), "http://127.0.0.1:9000/bucket");
  set_["AWS_ENDPOINT_URL_S3"] = "https://s3.example";
  ASSERT_OK_AND_ASSIGN(settings, Read());
  EXPECT_EQ(BucketUrl(settings, "bucket"), "https://s3.example/bucket");
  for (const char* url :
       {"host:9000", "ftp://host", "https://", "https://h/?q", "https://h\r\nx:"}) {
    set_["AWS_ENDPOINT_URL_S3"] = url;
    EXPECT_THAT(Read(), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("https://HOST")));
  }
}

}  // namespace
}  // namespace tessera::s3
