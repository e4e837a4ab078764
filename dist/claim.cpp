// claim.cpp - one table of the process.
#include "tarn/dist/claim.h"

#include <cstring>
#include <mutex>
#include <unordered_map>

#include "tarn/core/error.h"

namespace tarn::dist {
namespace {

struct Owners {
  std::mutex mutex;
  std::unordered_map<const TensorImpl*, const char*> of;
};

Owners& owners() {
  static auto& all = *new Owners;  // never destroyed: a module may end as late as it likes
  return all;
}

}  // namespace

ParameterClaim::ParameterClaim(const char* who, const char* owner, const TensorDict& parameters) {
  Owners& all = owners();
  const std::lock_guard lock(all.mutex);
  for (const auto& [name, p] : parameters) {
    const auto found = all.of.find(p.impl().get());
    if (found == all.of.end()) continue;
    const bool same = std::strcmp(found->second, owner) == 0;
    tarn::detail::fail<ValueError>(who, ": ", name, " belongs to ", same ? "another " : "a ",
                                   found->second, " already; end that first");
  }
  for (const auto& [name, p] : parameters) {
    if (all.of.emplace(p.impl().get(), owner).second) parameters_.push_back(p);
  }
}

ParameterClaim::~ParameterClaim() {
  Owners& all = owners();
  const std::lock_guard lock(all.mutex);
  for (const Tensor& p : parameters_) all.of.erase(p.impl().get());
}

}  // namespace tarn::dist
