#include "tests/fault/lossy/call_fates.h"

#include <algorithm>
#include <set>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "google/protobuf/descriptor.h"
#include "proto/coordinator.pb.h"
#include "proto/events.pb.h"
#include "proto/hand_over.pb.h"
#include "proto/health.pb.h"
#include "proto/live_put.pb.h"
#include "proto/live_state.pb.h"
#include "proto/saves.pb.h"
#include "proto/worker.pb.h"

namespace tessera {
namespace {

constexpr int kMaxDelayMs = 50;
// Of messages. What lasts has to get on between two cuts.
constexpr int kMaxUncut = 8, kMaxUncutOfLasting = 100;

// What a pack has at least.
const std::vector<Fate>& FatesOf(CallKind kind) {
  static const auto* const fates = new std::map<CallKind, std::vector<Fate>>{
      {CallKind::kUnary, {Fate::kRequestLost, Fate::kReplyLost, Fate::kRepeated, Fate::kDelayed}},
      {CallKind::kClientStream, {Fate::kRequestLost, Fate::kReplyLost, Fate::kDelayed, Fate::kCut}},
      {CallKind::kServerStream, {Fate::kRequestLost, Fate::kRepeated, Fate::kDelayed, Fate::kCut}},
      {CallKind::kBothStreams,
       {Fate::kRequestLost, Fate::kDelayed, Fate::kCut, Fate::kCut, Fate::kCut}},
      {CallKind::kLasting, {Fate::kRequestLost, Fate::kCut}}};
  return fates->at(kind);
}

const char* NameOf(Fate fate) {
  switch (fate) {
    case Fate::kHandedOn:
      return "handed on";
    case Fate::kRequestLost:
      return "requests lost";
    case Fate::kReplyLost:
      return "replies lost";
    case Fate::kRepeated:
      return "repeated";
    case Fate::kDelayed:
      return "delayed";
    case Fate::kCut:
      return "cut";
  }
  return "";
}

// The generated pool has only the files that the program refers to.
const google::protobuf::DescriptorPool* PoolOfAll() {
  (void)v1::Job::descriptor();
  (void)v1::Event::descriptor();
  (void)v1::HandOverInfo::descriptor();
  (void)grpc::health::v1::HealthCheckRequest::descriptor();
  (void)v1::PutBegin::descriptor();
  (void)v1::LivePiece::descriptor();
  (void)v1::Save::descriptor();
  (void)v1::WorkerStatusRequest::descriptor();
  return google::protobuf::DescriptorPool::generated_pool();
}

}  // namespace

CallKind KindOf(const std::string& method) {
  if (absl::EndsWith(method, "/Connect")) return CallKind::kLasting;
  std::string name = method;
  std::replace(name.begin(), name.end(), '/', '.');
  const auto* found = PoolOfAll()->FindMethodByName(name);
  if (found == nullptr) return CallKind::kBothStreams;
  if (found->client_streaming())
    return found->server_streaming() ? CallKind::kBothStreams : CallKind::kClientStream;
  return found->server_streaming() ? CallKind::kServerStream : CallKind::kUnary;
}

CallFates::Method* CallFates::Find(const std::string& name) {
  const auto it = methods_.find(name);
  if (it != methods_.end()) return &it->second;
  std::vector<uint32_t> seeds = {static_cast<uint32_t>(seed_)};
  seeds.insert(seeds.end(), name.begin(), name.end());
  std::seed_seq seed(seeds.begin(), seeds.end());
  return &methods_.emplace(name, Method{KindOf(name), std::mt19937_64(seed)}).first->second;
}

CallFates::Call CallFates::Next(const std::string& name) {
  absl::MutexLock lock(&mu_);
  Method* const method = Find(name);
  const bool lasts = method->kind == CallKind::kLasting;
  if (method->pack.empty()) {
    method->pack = FatesOf(method->kind);
    if (method->pack.size() < pack_size_)
      method->pack.resize(pack_size_, lasts ? Fate::kCut : Fate::kHandedOn);
    std::shuffle(method->pack.begin(), method->pack.end(), method->random);
  }
  Call call;
  call.fate = method->pack.back();
  method->pack.pop_back();
  ++method->num_calls;
  // A stream may end before it is cut.
  if (call.fate != Fate::kCut) ++method->counts[call.fate];
  if (call.fate == Fate::kDelayed) call.delay_ms = static_cast<int>(method->random() % kMaxDelayMs);
  if (call.fate == Fate::kCut) {
    const int max_uncut = lasts ? kMaxUncutOfLasting : kMaxUncut;
    // Not before the first one: that would be a request that is lost.
    call.cut_after = 2 + static_cast<int>(method->random() % (max_uncut - 1));
  }
  return call;
}

void CallFates::NoteCut(const std::string& name) {
  absl::MutexLock lock(&mu_);
  ++Find(name)->counts[Fate::kCut];
}

std::string CallFates::Describe() const {
  absl::MutexLock lock(&mu_);
  std::string text;
  for (const auto& [name, method] : methods_) {
    absl::StrAppend(&text, name, ": ", method.num_calls, " calls");
    const std::vector<Fate>& fates = FatesOf(method.kind);
    for (const Fate fate : std::set<Fate>(fates.begin(), fates.end())) {
      const auto count = method.counts.find(fate);
      absl::StrAppend(&text, ", ", count == method.counts.end() ? 0 : count->second, " ",
                      NameOf(fate));
    }
    absl::StrAppend(&text, "\n");
  }
  return text;
}

}  // namespace tessera
