// init.cpp - from a launcher's environment to the group of all ranks.
#include "tarn/dist/init.h"

#include <cstdlib>

#include "tarn/dist/file_store.h"
#include "tarn/dist/gloo_group.h"
#include "tarn/dist/host_channel.h"
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
  const char* variable = std::getenv("TARN_DIST_TRANSPORT");
  const std::string transport =
      options.transport == "auto" && variable ? variable : options.transport;
  TARN_CHECK_AS(ValueError, transport == "auto" || transport == "gloo" || transport == "host",
                "init_process_group: transport must be auto, host or gloo; got \"", transport,
                "\"");
  if (e.size == 1) return make_local_groups(1, options.group)[0];
  const std::shared_ptr<Store> store = make_store(e, options);
  if (transport == "host") return make_host_group(store, e.rank, e.size, options.group);
  if (transport == "auto") {
    ChannelPtr channel =
        make_host_channel(*store, options.group.name, e.rank, e.size, options.group.start_timeout);
    if (channel) {
      return make_host_group(store, e.rank, e.size, options.group, std::move(channel));
    }
  }
  return make_gloo_group(store, e.rank, e.size, {.group = options.group, .master = e.host});
}

std::shared_ptr<ProcessGroup> init_process_group(const InitOptions& options) {
  return init_process_group(read_environment(), options);
}

}  // namespace tarn::dist
