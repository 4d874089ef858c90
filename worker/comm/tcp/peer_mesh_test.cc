// Meshes of threads, over real sockets of the loopback interface.
#include "worker/comm/tcp/peer_mesh.h"

#include <fcntl.h>
#include <linux/sockios.h>
#include <sys/ioctl.h>
#include <sys/resource.h>

#include <asio.hpp>
#include <atomic>
#include <future>
#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/status_macros.h"
#include "base/status_matchers.h"
#include "base/unique_fd.h"
#include "gtest/gtest.h"
#include "worker/comm/tcp/frame.h"

namespace tessera {
namespace {

using testing::AllOf;
using testing::HasSubstr;

absl::Time Soon() { return absl::Now() + absl::Seconds(20); }

PeerMesh::Operation Op(uint64_t digest) {
  return {digest, [](uint64_t d) { return absl::StrCat("operation ", d); }};
}

// Ranks 0 to n-1, all peers of each other.
class Mesh {
 public:
  explicit Mesh(int size, uint32_t last_epoch = 1) {
    for (int rank = 0; rank < size; ++rank) {
      PeerMesh::Options options;
      options.rank = rank;
      options.group_size = size;
      options.epoch = rank == size - 1 ? last_epoch : 1;
      for (int peer = 0; peer < size; ++peer) {
        if (peer != rank) options.peers.push_back(peer);
      }
      auto mesh = PeerMesh::Listen(options);
      EXPECT_OK(mesh);
      addresses[rank] = (*mesh)->address();
      meshes.push_back(*std::move(mesh));
    }
  }
  // Runs on a thread for each rank.
  std::vector<absl::Status> Run(const std::function<absl::Status(int, PeerMesh*)>& body) {
    std::vector<absl::Status> statuses(meshes.size());
    std::vector<std::thread> threads;
    for (size_t rank = 0; rank < meshes.size(); ++rank) {
      threads.emplace_back([&, rank] { statuses[rank] = body(rank, meshes[rank].get()); });
    }
    for (std::thread& thread : threads) thread.join();
    return statuses;
  }
  void Connect() {
    for (const absl::Status& status :
         Run([this](int, PeerMesh* mesh) { return mesh->Connect(addresses, Soon()); })) {
      EXPECT_OK(status);
    }
  }

  std::vector<std::unique_ptr<PeerMesh>> meshes;
  std::map<int, std::string> addresses;
};

std::vector<int> Others(int rank, int size) {
  std::vector<int> others;
  for (int peer = 0; peer < size; ++peer) {
    if (peer != rank) others.push_back(peer);
  }
  return others;
}

TEST(PeerMeshTest, BytesOfAllSizesReachThePeerTheyAreMeantFor) {
  constexpr int kSize = 4;
  Mesh mesh(kSize);
  mesh.Connect();
  for (const int64_t bytes : {0, 1, 1000, 3000001}) {
    for (const absl::Status& status : mesh.Run([&](int rank, PeerMesh*m) -> absl::Status {
           std::vector<std::vector<char>> out(kSize), in(kSize);
           std::vector<PeerMesh::Part> sends, receives;
           for (const int peer : Others(rank, kSize)) {
             // Both ways differ, and the parts of one peer are two.
             out[peer].assign(bytes + rank, static_cast<char>(10 * rank + peer));
             in[peer].resize(bytes + peer);
             sends.push_back({peer, out[peer].data(), rank});
             sends.push_back({peer, out[peer].data() + rank, bytes});
             receives.push_back({peer, in[peer].data(), bytes + peer});
           }
           RETURN_IF_ERROR(m->Exchange(Op(1), Others(rank, kSize), sends, receives, Soon()));
           for (const int peer : Others(rank, kSize)) {
             const std::vector<char> expected(bytes + peer, static_cast<char>(10 * peer + rank));
             if (in[peer] != expected) return absl::InternalError(absl::StrCat("from ", peer));
           }
           return absl::OkStatus();
         })) {
      EXPECT_OK(status);
    }
  }
  EXPECT_EQ(mesh.meshes[0]->bytes_received(), 3 * 3001002 + 4 * (1 + 2 + 3));
}

TEST(PeerMeshTest, RankThatDoesNotComeIsNamed) {
  Mesh mesh(3);
  mesh.Connect();
  int value = 0;
  const std::vector<absl::Status> statuses = mesh.Run([&](int rank, PeerMesh* m) -> absl::Status {
    if (rank == 2) return absl::OkStatus();
    int received[2];
    const std::vector<int> others = Others(rank, 3);
    return m->Exchange(Op(9), others, {{others[0], &value, 4}, {others[1], &value, 4}},
                       {{others[0], &received[0], 4}, {others[1], &received[1], 4}},
                       absl::Now() + absl::Milliseconds(100));
  });
  for (int rank = 0; rank < 2; ++rank) {
    EXPECT_THAT(statuses[rank],
                StatusIs(absl::StatusCode::kDeadlineExceeded,
                         AllOf(HasSubstr("operation 9"), HasSubstr("ranks 2 of 3"))));
  }
}

TEST(PeerMeshTest, RankThatDoesNotConnectIsNamed) {
  Mesh mesh(3);
  const std::vector<absl::Status> statuses = mesh.Run([&](int rank, PeerMesh* m) -> absl::Status {
    if (rank == 0) return absl::OkStatus();
    return m->Connect(mesh.addresses, absl::Now() + absl::Milliseconds(100));
  });
  EXPECT_THAT(statuses[2],
              StatusIs(absl::StatusCode::kDeadlineExceeded, HasSubstr("connect with ranks 0")));
}

TEST(PeerMeshTest, DialThatGetsNoAnswerEndsAtTheDeadline) {
  Mesh mesh(2);
  ASSERT_OK_AND_ASSIGN(PeerAddress address, ParsePeerAddress(mesh.addresses[1]));
  address.host = "192.0.2.1";  // Nobody is there.
  mesh.addresses[1] = FormatPeerAddress(address);
  const absl::Time begin = absl::Now();
  EXPECT_FALSE(mesh.meshes[0]->Connect(mesh.addresses, begin + absl::Milliseconds(100)).ok());
  EXPECT_LT(absl::Now() - begin, absl::Seconds(20));
}

TEST(PeerMeshTest, DifferentOperationsAndSizesAreNamed) {
  struct Case {
    uint64_t digest;
    int64_t bytes;
    const char* text;
  };
  for (const Case& c : {Case{2, 4, "called operation 2"}, Case{1, 2, "with other sizes"}}) {
    Mesh mesh(2);
    mesh.Connect();
    const std::vector<absl::Status> statuses = mesh.Run([&](int rank, PeerMesh* m) {
      char out[4] = {}, in[4];
      return m->Exchange(Op(rank == 0 ? 1 : c.digest), {1 - rank},
                         {{1 - rank, out, rank == 0 ? 4 : c.bytes}}, {{1 - rank, in, 4}}, Soon());
    });
    EXPECT_THAT(statuses[0], StatusIs(absl::StatusCode::kFailedPrecondition,
                                      AllOf(HasSubstr("rank 0 called operation 1 while rank 1"),
                                            HasSubstr(c.text))));
  }
}

TEST(PeerMeshTest, LostConnectionIsAnErrorThatNamesThePeer) {
  Mesh mesh(2);
  mesh.Connect();
  mesh.meshes[1].reset();
  char byte = 0;
  EXPECT_THAT(mesh.meshes[0]->Exchange(Op(1), {1}, {}, {{1, &byte, 1}}, Soon()),
              StatusIs(absl::StatusCode::kUnavailable, HasSubstr("with rank 1")));
}

TEST(PeerMeshTest, FailureOfAPeerComesWithItsReason) {
  Mesh mesh(2);
  mesh.Connect();
  mesh.meshes[1]->Tell(absl::InternalError("the optimizer is gone"));
  char byte = 0;
  EXPECT_THAT(mesh.meshes[0]->Exchange(Op(1), {1}, {}, {{1, &byte, 1}}, Soon()),
              StatusIs(absl::StatusCode::kAborted, HasSubstr("the optimizer is gone")));
}

TEST(PeerMeshTest, AbortEndsAWait) {
  Mesh mesh(2);
  mesh.Connect();
  std::thread aborter([&] { mesh.meshes[0]->Abort(absl::CancelledError("a new epoch")); });
  char byte = 0;
  for (int i = 0; i < 2; ++i) {
    EXPECT_THAT(mesh.meshes[0]->Exchange(Op(1), {1}, {}, {{1, &byte, 1}}, Soon()),
                StatusIs(absl::StatusCode::kAborted, HasSubstr("a new epoch")));
  }
  aborter.join();
}

TEST(PeerMeshTest, ConnectEndsWhenItIsToldToStop) {
  Mesh mesh(2);
  int asked = 0;
  EXPECT_THAT(mesh.meshes[1]->Connect(mesh.addresses, Soon(), [&] { return ++asked > 3; }),
              StatusIs(absl::StatusCode::kAborted, HasSubstr("told to stop")));
}

TEST(PeerMeshTest, PeerOfAnotherEpochDoesNotGetIn) {
  Mesh mesh(2, /*last_epoch=*/2);
  const std::vector<absl::Status> statuses = mesh.Run([&](int, PeerMesh* m) {
    return m->Connect(mesh.addresses, absl::Now() + absl::Milliseconds(200));
  });
  EXPECT_THAT(statuses[1],
              StatusIs(absl::StatusCode::kDeadlineExceeded, HasSubstr("connect with ranks 0")));
}

TEST(PeerMeshTest, WhoDoesNotKnowTheSecretDoesNotGetInAndDisturbsNobody) {
  Mesh mesh(2);
  ASSERT_OK_AND_ASSIGN(const PeerAddress address, ParsePeerAddress(mesh.addresses[1]));
  asio::io_context io;
  const asio::ip::tcp::endpoint endpoint(asio::ip::make_address(address.host), address.port);
  asio::ip::tcp::socket silent(io), stranger(io), garbage(io);
  for (auto* socket : {&silent, &stranger, &garbage}) socket->connect(endpoint);
  asio::write(stranger, asio::buffer(EncodeGreeting({1, 0, 1, {}})));
  asio::write(garbage, asio::buffer(std::string(100, 'x')));
  mesh.Connect();
  char out = 42, in = 0;
  for (const absl::Status& status : mesh.Run([&](int rank, PeerMesh*m) {
         return rank == 0 ? m->Exchange(Op(1), {1}, {{1, &out, 1}}, {}, Soon())
                          : m->Exchange(Op(1), {0}, {}, {{0, &in, 1}}, Soon());
       })) {
    EXPECT_OK(status);
  }
  EXPECT_EQ(in, 42);
}

asio::ip::tcp::endpoint EndpointOf(const PeerAddress& address) {
  return {asio::ip::make_address(address.host), address.port};
}

TEST(PeerMeshTest, AbortEndsAnExchangeOfWhichAHeaderHasComeAndTheBytesHaveNot) {
  Mesh mesh(2);
  ASSERT_OK_AND_ASSIGN(const PeerAddress address, ParsePeerAddress(mesh.addresses[1]));
  asio::io_context io;
  asio::ip::tcp::socket rank0(io);
  rank0.connect(EndpointOf(address));
  asio::write(rank0, asio::buffer(EncodeGreeting({1, 0, 1, address.secret})));
  PeerMesh* const rank1 = mesh.meshes[1].get();
  ASSERT_OK(rank1->Connect(mesh.addresses, Soon()));
  asio::write(rank0, asio::buffer(EncodeFrameHeader({FrameKind::kExchange, 1, 0, 1}).bytes));
  // Until the other end has it, so that its first read succeeds at once.
  int on_the_way = 1;
  while (on_the_way > 0) ASSERT_EQ(ioctl(rank0.native_handle(), SIOCOUTQ, &on_the_way), 0);
  rank1->Abort(absl::CancelledError("a new epoch"));
  auto exchanged = std::async(std::launch::async, [rank1] {
    char byte = 0;
    return rank1->Exchange(Op(1), {0}, {}, {{0, &byte, 1}}, Soon());
  });
  EXPECT_EQ(exchanged.wait_for(std::chrono::seconds(10)), std::future_status::ready);
  rank0.close();  // Ends it in any case.
  EXPECT_THAT(exchanged.get(), StatusIs(absl::StatusCode::kAborted, HasSubstr("a new epoch")));
}

TEST(PeerMeshTest, ConnectionsThatNeverGreetEndWithConnectAndTheOldestEarlierIfThereAreMany) {
  Mesh mesh(2);
  ASSERT_OK_AND_ASSIGN(const PeerAddress address, ParsePeerAddress(mesh.addresses[1]));
  asio::io_context io;
  std::vector<asio::ip::tcp::socket> silent;
  for (int i = 0; i < 200; ++i) silent.emplace_back(io).connect(EndpointOf(address));
  const auto has_ended = [](asio::ip::tcp::socket* socket) {
    asio::error_code error;
    char byte;
    socket->non_blocking(true);
    socket->read_some(asio::buffer(&byte, 1), error);
    return error && error != asio::error::would_block;
  };
  // Rank 0 does not connect, so this goes on until it stops itself.
  EXPECT_THAT(
      mesh.meshes[1]->Connect(mesh.addresses, Soon(), [&] { return has_ended(&silent.front()); }),
      StatusIs(absl::StatusCode::kAborted, HasSubstr("told to stop")));
  const absl::Time deadline = Soon();
  for (auto& socket : silent) {
    while (!has_ended(&socket) && absl::Now() < deadline) std::this_thread::yield();
    ASSERT_TRUE(has_ended(&socket));
  }
}

// This process has no free descriptor, until End.
class NoFreeDescriptor {
 public:
  NoFreeDescriptor() {
    EXPECT_EQ(getrlimit(RLIMIT_NOFILE, &before_), 0);
    rlimit none = before_;
    {
      const UniqueFd lowest(open("/dev/null", O_RDONLY | O_CLOEXEC));
      none.rlim_cur = static_cast<rlim_t>(lowest.get());
    }
    EXPECT_EQ(setrlimit(RLIMIT_NOFILE, &none), 0);
  }
  ~NoFreeDescriptor() { End(); }
  void End() { EXPECT_EQ(setrlimit(RLIMIT_NOFILE, &before_), 0); }

 private:
  rlimit before_;
};

TEST(PeerMeshTest, WithoutAFreeDescriptorItWaitsForOneAndThePeersGetIn) {
  Mesh mesh(2);
  // Rank 1 has not accepted yet: the connection and the greeting are in its backlog.
  ASSERT_OK(mesh.meshes[0]->Connect(mesh.addresses, Soon()));
  NoFreeDescriptor none;
  int asked = 0;
  const absl::Status connected = mesh.meshes[1]->Connect(mesh.addresses, Soon(), [&] {
    // Between two questions it handles what is ready: the first accept fails after the first one.
    if (++asked == 4) none.End();
    return false;
  });
  none.End();
  EXPECT_GE(asked, 4) << "a descriptor was free";
  EXPECT_OK(connected);
}

TEST(PeerMeshTest, DeadlineWithoutAFreeDescriptorSaysSo) {
  Mesh mesh(2);
  ASSERT_OK(mesh.meshes[0]->Connect(mesh.addresses, Soon()));
  NoFreeDescriptor none;
  const absl::Status connected =
      mesh.meshes[1]->Connect(mesh.addresses, absl::Now() + absl::Milliseconds(100));
  none.End();
  EXPECT_THAT(connected, StatusIs(absl::StatusCode::kDeadlineExceeded,
                                  AllOf(HasSubstr("connect with ranks 0"),
                                        HasSubstr("cannot accept: Too many open files"))));
}

TEST(PeerMeshTest, AddressThatIsNotOfThisHostIsRefused) {
  PeerMesh::Options options;
  options.listen_host = "192.0.2.1";
  EXPECT_THAT(PeerMesh::Listen(options),
              StatusIs(absl::StatusCode::kUnavailable, HasSubstr("192.0.2.1")));
  options.listen_host = "localhost.example";
  EXPECT_THAT(PeerMesh::Listen(options),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("localhost.example")));
}

}  // namespace
}  // namespace tessera
