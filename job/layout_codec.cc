#include "job/layout_codec.h"

#include "job/job_codec.h"
#include "layout/layout_digest.h"

namespace tessera {

v1::JobLayout EncodeLayout(const ModelLayout& layout) {
  v1::JobLayout encoded;
  encoded.set_world_size(static_cast<int32_t>(layout.world_size));
  encoded.set_layout_digest(LayoutDigest(layout));
  for (const UnitLayout& unit : layout.units) {
    v1::UnitLayout& to = *encoded.add_units();
    to.set_name(unit.flat.unit_name());
    to.set_dtype(EncodeDType(unit.full_dtype()));
    to.set_strategy(EncodeStrategy(unit.strategy));
    to.set_size_elements(unit.shards.padded_numel());
    to.set_shard_elements(unit.shards.shard_numel());
    to.set_num_shards(static_cast<int32_t>(unit.shards.num_shards()));
    for (const PlacedParameter& placed : unit.flat.parameters()) {
      v1::PlacedParameter& parameter = *to.add_parameters();
      parameter.set_name(placed.spec.name);
      parameter.mutable_shape()->Assign(placed.spec.shape.begin(), placed.spec.shape.end());
      parameter.set_offset_elements(placed.offset_elements);
      parameter.set_num_elements(placed.numel);
      parameter.set_requires_grad(placed.spec.requires_grad);
    }
    for (const Alias& alias : unit.flat.aliases())
      (*to.mutable_shared_parameters())[alias.name] = alias.primary;
  }
  return encoded;
}

}  // namespace tessera
