#include "worker/vault/memory_vault.h"

#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <thread>

#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "shm/fd_passing.h"
#include "shm/region.h"
#include "worker/vault/vault_client.h"

namespace tessera {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Pair;
using ::testing::SizeIs;

class MemoryVaultTest : public ::testing::Test {
 protected:
  MemoryVaultTest() {
    EXPECT_NE(mkdtemp(folder_.data()), nullptr);
    path_ = folder_ + "/vault.sock";
  }
  ~MemoryVaultTest() override {
    if (vault_.joinable()) vault_.join();
    std::filesystem::remove_all(folder_);
  }
  // In a thread of this process: it is the same code.
  void Start(absl::Duration patience) {
    auto listener = ListenPacketSocket(path_);
    ASSERT_OK(listener);
    vault_ = std::thread([listener = *std::move(listener), patience]() mutable {
      RunVault(std::move(listener), patience);
    });
  }
  VaultClient Connect() {
    auto socket = ConnectPacketSocket(path_);
    EXPECT_OK(socket);
    return VaultClient(*std::move(socket));
  }
  static SharedRegion RegionOf(char fill) {
    SharedRegion region = *SharedRegion::Create("test", 4096);
    const Mapping mapping = *Mapping::CreateWhole(region.fd(), Access::kReadWrite);
    *reinterpret_cast<char*>(mapping.data()) = fill;
    return region;
  }
  static char FirstByte(const UniqueFd& fd) {
    const auto mapping = Mapping::CreateWhole(fd.get(), Access::kReadOnly);
    EXPECT_OK(mapping);
    return mapping.ok() ? *reinterpret_cast<const char*>(mapping->data()) : 0;
  }

  // Short, as paths of sockets are.
  std::string folder_ = "/tmp/tessera-vault-XXXXXX", path_;
  std::thread vault_;
};

TEST_F(MemoryVaultTest, WhatOneDaemonPutTheNextOneGets) {
  Start(absl::Seconds(60));
  {
    VaultClient first = Connect();
    const SharedRegion a = RegionOf('a'), b = RegionOf('b'), c = RegionOf('c');
    ASSERT_OK(first.Put("job/1", "rank 0", {a.fd(), b.fd()}));
    ASSERT_OK(first.Put("job/1", "none", {}));
    ASSERT_OK(first.Put("job/2", "rank 0", {a.fd()}));
    ASSERT_OK(first.Put("job/2", "rank 0", {c.fd()}));  // In place of the other.
  }
  VaultClient next = Connect();
  auto all = next.List();
  ASSERT_OK(all);
  ASSERT_THAT(*all, SizeIs(2));
  ASSERT_THAT((*all)["job/1"]["rank 0"], SizeIs(2));
  EXPECT_EQ(FirstByte((*all)["job/1"]["rank 0"][0]), 'a');
  EXPECT_EQ(FirstByte((*all)["job/1"]["rank 0"][1]), 'b');
  EXPECT_THAT((*all)["job/1"]["none"], IsEmpty());
  ASSERT_THAT((*all)["job/2"]["rank 0"], SizeIs(1));
  EXPECT_EQ(FirstByte((*all)["job/2"]["rank 0"][0]), 'c');
  ASSERT_OK(next.Drop("job/1"));
  ASSERT_OK(next.Drop("job"));  // Which nobody has.
  EXPECT_THAT(*next.List(), ElementsAre(Pair("job/2", SizeIs(1))));
  ASSERT_OK(next.Drop("job/2"));
}

TEST_F(MemoryVaultTest, MessagesComeBackAsTheyWere) {
  Start(absl::Seconds(60));
  VaultClient client = Connect();
  v1::VaultedWorker worker;
  ASSERT_OK(client.PutMessage("", "empty", worker));
  worker.set_worker_id("w");
  worker.set_incarnation(1'234'567'890'123);
  ASSERT_OK(client.PutMessage("", "worker", worker));
  const auto all = client.List();
  ASSERT_OK(all);
  v1::VaultedWorker read;
  ASSERT_OK(ReadMessage(all->at(""), "worker", &read));
  EXPECT_EQ(read.SerializeAsString(), worker.SerializeAsString());
  ASSERT_OK(ReadMessage(all->at(""), "empty", &read));
  EXPECT_EQ(read.SerializeAsString(), "");
  EXPECT_THAT(ReadMessage(all->at(""), "job", &read),
              StatusIs(absl::StatusCode::kDataLoss, HasSubstr("no job")));
  ASSERT_OK(client.Drop(""));
}

TEST_F(MemoryVaultTest, EndsWithItsDaemonWhereNothingIsHeldAndWithoutOneAfterItsPatience) {
  Start(absl::Seconds(60));
  {
    VaultClient client = Connect();
    const SharedRegion a = RegionOf('a');
    ASSERT_OK(client.Put("job/1", "x", {a.fd()}));
    ASSERT_OK(client.Drop("job/1"));
  }
  vault_.join();  // It was empty.
  unlink(path_.c_str());
  Start(absl::Milliseconds(20));
  {
    VaultClient client = Connect();
    const SharedRegion a = RegionOf('a');
    ASSERT_OK(client.Put("job/1", "x", {a.fd()}));
  }
  vault_.join();  // It had something, and nobody came.
}

TEST_F(MemoryVaultTest, BytesThatAreNoCommandEndTheConnectionAndNothingElse) {
  Start(absl::Seconds(60));
  {
    VaultClient client = Connect();
    const SharedRegion a = RegionOf('a');
    ASSERT_OK(client.Put("job/1", "x", {a.fd()}));
  }
  {
    auto socket = ConnectPacketSocket(path_);
    ASSERT_OK(socket);
    ASSERT_OK(SendPacket(socket->get(), "\xff\xff\xff"));
    EXPECT_THAT(ReceivePacket(socket->get()).status(),
                StatusIs(absl::StatusCode::kUnavailable, HasSubstr("closed")));
  }
  VaultClient client = Connect();
  EXPECT_THAT(*client.List(), SizeIs(1));
  ASSERT_OK(client.Drop("job/1"));
}

// Two real processes: this one, and the vault that it starts.
TEST_F(MemoryVaultTest, ProcessThatIsStartedIsFoundByTheNextOneAndItsSocketIsThisUsersAlone) {
  const std::string folder = folder_ + "/sockets";
  {
    auto first = ConnectOrStartVault(folder, absl::Seconds(60));
    ASSERT_OK(first);
    const SharedRegion a = RegionOf('a');
    ASSERT_OK((*first)->Put("job/1", "x", {a.fd()}));
  }
  struct stat info;
  ASSERT_EQ(stat((folder + "/vault.sock").c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0600u);
  auto next = ConnectOrStartVault(folder, absl::Seconds(60));
  ASSERT_OK(next);
  const auto all = (*next)->List();
  ASSERT_OK(all);
  ASSERT_THAT(*all, SizeIs(1));
  EXPECT_EQ(FirstByte(all->at("job/1").at("x")[0]), 'a');
  ASSERT_OK((*next)->Drop("job/1"));
}

}  // namespace
}  // namespace tessera
