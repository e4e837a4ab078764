// init.cpp - from a launcher's environment to the group of all ranks.
#include "tarn/dist/init.h"

#include "tarn/dist/file_store.h"
#include "tarn/dist/gloo_group.h"
#include "tarn/dist/local_group.h"
#include "tarn/dist/tcp_store.h"

namespace tarn::dist {

std::shared_ptr<Store> make_store(const Environment& e, const InitOptions& options) {
  constexpr std::string_view kFile = "file://";
  if (options.meet.starts_with(kFile)) {
    return std::make_shared<FileStore>(options.meet.substr(kFile.size()));
  }
  TARN_CHECK_AS(ValueError, options.meet == "env://",
                "init_process_group: ranks meet at \"env://\" or \"file:///folder\"; got \"",
                options.meet, "\"");
  return std::make_shared<TcpStore>(TcpStoreOptions{.host = e.host,
                                                    .port = e.port,
                                                    .server = e.rank == 0,
                                                    .timeout = options.group.start_timeout});
}

std::shared_ptr<ProcessGroup> init_process_group(const Environment& e, const InitOptions& options) {
  TARN_CHECK_AS(ValueError, options.transport == "auto" || options.transport == "gloo",
                "init_process_group: transport must be auto or gloo; got \"", options.transport,
                "\"");
  if (e.size == 1) return make_local_groups(1, options.group)[0];
  return make_gloo_group(make_store(e, options), e.rank, e.size,
                         {.group = options.group, .master = e.host});
}

std::shared_ptr<ProcessGroup> init_process_group(const InitOptions& options) {
  return init_process_group(read_environment(), options);
}

}  // namespace tarn::dist
