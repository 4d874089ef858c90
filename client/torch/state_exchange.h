// What ranks tell each other while they load state. For state_dict_loader.h and
// optim_state_dicts.h.
//
// Collective: all ranks make the same calls, outside of a step. As SessionSetup, by which it goes.
// Errors of all: as there, and Internal  rank 0 announced what cannot be. That and what libtorch
// throws are of this rank alone: RunCollective tells the others.
#ifndef TESSERA_CLIENT_TORCH_STATE_EXCHANGE_H_
#define TESSERA_CLIENT_TORCH_STATE_EXCHANGE_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "client/session/session_setup.h"
#include "layout/shard_view.h"
#include "tessera/session.h"
#include "tessera/torch/libtorch.h"

namespace tessera {

class StateExchange {
 public:
  explicit StateExchange(Session* session) : session_(session), setup_(session) {}  // Not owned.

  // OK if every rank's is; else each rank gets its own, or that of the lowest rank.
  absl::Status AgreeOn(const absl::Status& own) { return setup_.AgreeOn(own); }
  // Errors: FailedPrecondition  some rank has other bytes than rank 0: "ranks 0 and R" + `text`.
  absl::Status CheckAlike(absl::Span<const char> bytes, absl::string_view text);

  // Rank 0's to everybody.
  absl::Status Share(absl::Span<char> bytes) { return setup_.Broadcast(bytes); }
  absl::Status Share(std::vector<int64_t>* numbers);      // As many as everybody has.
  absl::Status Share(std::vector<std::string>* strings);  // Any number, of any bytes.
  // So many bytes, which each rank knows; null: they are dropped, and take no memory here.
  absl::Status Share(int64_t size_bytes, char* bytes);
  // `own` of rank 0 alone, converted; a copy.
  absl::StatusOr<torch::Tensor> Share(const torch::Tensor& own, const std::vector<int64_t>& shape,
                                      torch::ScalarType dtype);

  // All rows of a tensor of this shape, from what `chunks` ranks side by side have of it as RowsOf
  // says. Every so many ranks have all of it.
  absl::StatusOr<torch::Tensor> GatherRows(const torch::Tensor& own, std::vector<int64_t> shape,
                                           torch::ScalarType dtype, int64_t chunks);
  // All elements of something flat, from what each of so many ranks side by side has of it.
  absl::StatusOr<torch::Tensor> GatherParts(const torch::Tensor& own,
                                            const std::vector<ElementRange>& parts,
                                            torch::ScalarType dtype);

 private:
  Session* const session_;
  SessionSetup setup_;
};

// These elements of a tensor as a flat copy on the host.
torch::Tensor FlatPart(const torch::Tensor& whole, const ElementRange& range,
                       torch::ScalarType dtype);

}  // namespace tessera

#endif  // TESSERA_CLIENT_TORCH_STATE_EXCHANGE_H_
