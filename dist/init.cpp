// init.cpp - from a launcher's environment to the group of all ranks.
#include "tarn/dist/init.h"

#include <algorithm>
#include <cstdlib>

#include "tarn/core/backend.h"
#include "tarn/dist/file_store.h"
#include "tarn/dist/gloo_group.h"
#include "tarn/dist/host_channel.h"
#include "tarn/dist/local_group.h"
#include "tarn/dist/nccl_group.h"
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
  // A rank whose limit has passed tells the others through the store, whose rank 0 may be the one
  // that hangs: its own caller is not to learn of it much later.
  return std::make_shared<TcpStore>(
      TcpStoreOptions{.host = e.host,
                      .port = e.port,
                      .server = e.rank == 0,
                      .start = e.start,
                      .timeout = options.group.start_timeout,
                      .patience = std::clamp(options.group.timeout, Millis(1000), Millis(5000))});
}

namespace {

std::shared_ptr<ProcessGroup> make_cpu_group(const std::shared_ptr<Store>& store,
                                             const Environment& e, const GroupOptions& group,
                                             const std::string& transport) {
  if (transport == "host") return make_host_group(store, e.rank, e.size, group);
  if (transport != "gloo") {
    ChannelPtr channel = make_host_channel(*store, group.name, e.rank, e.size, group.start_timeout);
    if (channel) return make_host_group(store, e.rank, e.size, group, std::move(channel));
  }
  return make_gloo_group(store, e.rank, e.size, {.group = group, .master = e.host});
}

// Before anybody waits for the others: what holds for one rank of a host holds for all.
Device nccl_device(const Environment& e, Device device) {
  const std::string why = why_no_nccl();
  TARN_CHECK_AS(UnsupportedError, why.empty(), "init_process_group: transport nccl: ", why);
  const int devices = backend(DeviceType::kCUDA).device_count();
  TARN_CHECK_AS(DeviceError, e.local_size <= devices, "init_process_group: ", e.local_size,
                " ranks were started on this host, but it has ", devices,
                devices == 1 ? " GPU" : " GPUs", "; NCCL needs one for each rank");
  return device.is_cuda() ? device : Device(DeviceType::kCUDA, e.local_rank);
}

}  // namespace

std::string chosen_transport(const std::string& transport) {
  const char* variable = std::getenv("TARN_DIST_TRANSPORT");
  const std::string chosen = transport == "auto" && variable ? variable : transport;
  TARN_CHECK_AS(
      ValueError, chosen == "auto" || chosen == "gloo" || chosen == "host" || chosen == "nccl",
      "init_process_group: transport must be auto, host, gloo or nccl; got \"", chosen, "\"");
  return chosen;
}

std::shared_ptr<ProcessGroup> init_process_group(const Environment& e, const InitOptions& options) {
  const std::string transport = chosen_transport(options.transport);
  const bool nccl = transport == "nccl" || (transport == "auto" && options.device.is_cuda());
  const Device device = nccl ? nccl_device(e, options.device) : kCPU;
  GroupOptions group = options.group;
  if (nccl) group.name += " cpu";
  std::shared_ptr<Store> store;
  std::shared_ptr<ProcessGroup> cpu;
  if (e.size == 1) {
    store = std::make_shared<MemoryStore>();
    cpu = make_local_groups(1, group)[0];
  } else {
    store = make_store(e, options);
    cpu = make_cpu_group(store, e, group, transport);
  }
  if (!nccl) return cpu;
  return make_nccl_group(store, e.rank, e.size,
                         {.group = options.group, .device = device, .cpu = std::move(cpu)});
}

std::shared_ptr<ProcessGroup> init_process_group(const InitOptions& options) {
  return init_process_group(read_environment(), options);
}

}  // namespace tarn::dist
