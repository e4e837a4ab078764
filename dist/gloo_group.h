// gloo_group.h - ranks that are processes, over Gloo's TCP transport.
#pragma once

#include <memory>
#include <string>

#include "tarn/dist/group.h"
#include "tarn/dist/store.h"

namespace tarn::dist {

struct GlooOptions {
  GroupOptions group = {};
  /// Network interface ("eth0"); empty: TARN_GLOO_INTERFACE, else the one that leads to rank 0.
  std::string interface = {};
  std::string master = "127.0.0.1";  ///< rank 0's host, to choose the interface
};

/// True if the library was built with Gloo.
bool gloo_available();

/// All ranks call it with their part of the same store. Throws UnsupportedError in a build without
/// Gloo, TimeoutError that names the ranks which did not come.
std::shared_ptr<ProcessGroup> make_gloo_group(std::shared_ptr<Store> store, int rank, int size,
                                              GlooOptions options = {});

}  // namespace tarn::dist
