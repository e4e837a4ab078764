// collective.cpp - collectives in words.
#include "tarn/dist/collective.h"

#include <sstream>

namespace tarn::dist {

const char* op_name(ReduceOp op) {
  constexpr const char* kNames[] = {"sum", "avg", "min", "max", "product", "bit_and", "bit_or"};
  return kNames[static_cast<int>(op)];
}

const char* kind_name(CollectiveKind kind) {
  constexpr const char* kNames[] = {"all_reduce",     "reduce",     "broadcast", "all_gather",
                                    "reduce_scatter", "all_to_all", "gather",    "scatter",
                                    "barrier",        "send",       "recv"};
  return kNames[static_cast<int>(kind)];
}

int64_t Collective::bytes() const {
  int64_t sum = 0;
  for (const Tensor& t : inputs.empty() ? outputs : inputs) sum += t.numel() * item_size(t.dtype());
  return sum;
}

std::string Collective::describe() const {
  std::ostringstream text;
  const std::vector<Tensor>& tensors = inputs.empty() ? outputs : inputs;
  if (tensors.size() == 1) {
    text << tensors[0].sizes() << " " << tensors[0].dtype();
  } else if (!tensors.empty()) {
    text << tensors.size() << " tensors, " << bytes() << " bytes, " << tensors[0].dtype();
  }
  if (reduces()) text << ", " << op_name(op);
  if (kind == CollectiveKind::kSend) {
    text << ", to rank " << root;
  } else if (kind == CollectiveKind::kReceive) {
    text << ", from rank " << root;
  } else if (root >= 0) {
    text << ", root " << root;
  }
  return text.str();
}

}  // namespace tarn::dist
