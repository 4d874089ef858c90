// The real programs with mutual TLS on loopback: training works, and untrusted programs are told
// so.
#include <stdlib.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <thread>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "net/test_certificates.h"
#include "tessera/session.h"
#include "tests/demo/child_process.h"
#include "tests/testing/toy_training.h"

namespace tessera {
namespace {

using demo::ChildProcess;
using ::testing::HasSubstr;

constexpr int kWorldSize = 2;
constexpr absl::Duration kDeadline = absl::Seconds(20);

std::string ReadFile(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return std::string(std::istreambuf_iterator<char>(in), {});
}

std::vector<std::string> TlsFlags(const TlsFiles& tls) {
  return {"--tls-cert=" + tls.certificate_path, "--tls-key=" + tls.key_path,
          "--tls-ca=" + tls.ca_path};
}

class TransportSecurityTest : public ::testing::Test {
 protected:
  void SetUp() override {
    auto made = TestCertificates::Make();
    if (absl::IsNotFound(made.status())) GTEST_SKIP() << made.status().message();
    ASSERT_OK(made);
    certificates_ = *std::move(made);
    folder_ = "/tmp/tessera-tls-run-XXXXXX";
    ASSERT_NE(mkdtemp(folder_.data()), nullptr);
    Start(&coordinator_, "coordinator",
          {"coordinator/tessera-coordinator", "--ephemeral", "--listen=127.0.0.1:0",
           "--port-file=" + folder_ + "/port"},
          certificates_->server());
    int port;
    ASSERT_TRUE(Eventually([&] { return absl::SimpleAtoi(ReadFile(folder_ + "/port"), &port); }));
    coordinator_address_ = absl::StrCat("127.0.0.1:", port);
  }
  void TearDown() override {
    worker_.reset();
    coordinator_.reset();
    if (HasFailure()) fputs(ReadFile(folder_ + "/worker.log").c_str(), stderr);
    if (!folder_.empty()) std::filesystem::remove_all(folder_);
  }

  void Start(std::unique_ptr<ChildProcess>* process, const std::string& name,
             std::vector<std::string> args, const TlsFiles& tls) {
    if (!tls.empty()) {
      for (const std::string& flag : TlsFlags(tls)) args.push_back(flag);
    }
    auto started = ChildProcess::Start(args, absl::StrCat(folder_, "/", name, ".log"));
    ASSERT_OK(started);
    *process = *std::move(started);
  }
  void StartWorker(const TlsFiles& tls) {
    Start(&worker_, "worker",
          {"worker/tessera-worker", "--coordinator=" + coordinator_address_, "--worker-id=node",
           absl::StrCat("--devices=", kWorldSize), "--socket-dir=" + folder_,
           "--executor-binary=worker/tessera-executor"},
          tls);
  }
  SessionOptions OptionsFor(int rank, const TlsFiles& tls) const {
    SessionOptions options;
    options.coordinator_address = coordinator_address_;
    options.worker_address = absl::StrCat("unix:", folder_, "/worker.sock");
    options.tls = tls;
    options.job_id = "toy";
    options.rank = rank;
    options.model = testing_support::ToyModel(2);
    options.config.world_size = kWorldSize;
    return options;
  }
  // What `tessera status` of the coordinator prints to standard output; empty if it failed.
  std::string Status(const TlsFiles& tls) {
    std::unique_ptr<ChildProcess> cli;
    Start(&cli, "cli", {"client/cli/tessera", "jobs", "--coordinator=" + coordinator_address_},
          tls);
    std::string text;
    if (cli == nullptr) return text;
    EXPECT_TRUE(Eventually([&] {
      for (const std::string& line : cli->ReadLines()) absl::StrAppend(&text, line, "\n");
      return cli->at_end();
    }));
    return cli->Wait() == 0 ? text : "";
  }
  // The wait looks again every millisecond; what it waits for is another process.
  static bool Eventually(const std::function<bool()>& condition) {
    const absl::Time deadline = absl::Now() + kDeadline;
    while (absl::Now() < deadline) {
      if (condition()) return true;
      absl::SleepFor(absl::Milliseconds(1));
    }
    return false;
  }

  std::string folder_, coordinator_address_;
  std::unique_ptr<TestCertificates> certificates_;
  std::unique_ptr<ChildProcess> coordinator_, worker_;
};

TEST_F(TransportSecurityTest, TrainingOverMutualTlsMatchesTheReference) {
  StartWorker(certificates_->FilesOf("worker"));
  std::vector<float> trained;
  std::vector<std::thread> trainers;
  for (int rank = 0; rank < kWorldSize; ++rank) {
    trainers.emplace_back([&, rank] {
      auto session = Session::Open(OptionsFor(rank, certificates_->client()));
      ASSERT_OK(session);
      ASSERT_OK(testing_support::TrainToy(session->get(), 3));
      auto all = testing_support::ReadAll(session->get());
      ASSERT_OK(all);
      if (rank == 0) trained = *std::move(all);
    });
  }
  for (std::thread& trainer : trainers) trainer.join();
  const SessionOptions options = OptionsFor(0, {});
  const std::vector<float> expected =
      testing_support::ReferenceRun(options.model, options.config, 3);
  ASSERT_EQ(trained.size(), expected.size());
  for (size_t i = 0; i < trained.size(); ++i) ASSERT_NEAR(trained[i], expected[i], 2e-6f);
  EXPECT_THAT(Status(certificates_->client()), HasSubstr("toy"));
}

TEST_F(TransportSecurityTest, TrainerThatIsNotTrustedIsRefusedByAnErrorWithTheAddress) {
  for (const TlsFiles& tls :
       {TlsFiles(), certificates_->stranger(), certificates_->client_of_other_ca()}) {
    SCOPED_TRACE(tls.certificate_path + " " + tls.ca_path);
    SessionOptions options = OptionsFor(0, tls);
    options.attach_timeout = absl::Milliseconds(500);
    EXPECT_THAT(Session::Open(options).status(),
                StatusIs(absl::StatusCode::kDeadlineExceeded, HasSubstr(coordinator_address_)));
    EXPECT_EQ(Status(tls), "");
    EXPECT_THAT(ReadFile(folder_ + "/cli.log"), HasSubstr(coordinator_address_));
    std::filesystem::remove(folder_ + "/cli.log");
  }
}

TEST_F(TransportSecurityTest, WorkerThatTrustsAnotherAuthoritySaysWhomItCannotReach) {
  StartWorker(certificates_->client_of_other_ca());
  EXPECT_TRUE(Eventually([this] {
    return absl::StrContains(ReadFile(folder_ + "/worker.log"),
                             absl::StrCat("coordinator ", coordinator_address_, ": UNAVAILABLE"));
  }));
}

TEST_F(TransportSecurityTest, OtherMachinesAreNotDialledWithoutTls) {
  coordinator_address_ = "node7.invalid:7070";
  EXPECT_THAT(Session::Open(OptionsFor(0, {})).status(),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("'node7.invalid:7070'")));
  StartWorker({});
  EXPECT_EQ(worker_->Wait(), 1);
  EXPECT_THAT(ReadFile(folder_ + "/worker.log"), HasSubstr("--insecure-connect"));
}

}  // namespace
}  // namespace tessera
