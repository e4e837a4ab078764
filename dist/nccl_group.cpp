// nccl_group.cpp - the group of ranks on GPUs, its state and its works.
#include "tarn/dist/nccl_group.h"

#ifdef TARN_HAVE_NCCL

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <map>
#include <numeric>
#include <sstream>
#include <tuple>

#include <unistd.h>

#include "tarn/cuda/rt.h"
#include "tarn/dist/nccl_group_queue.h"

namespace tarn::dist {
namespace {

// To leave in good order all ranks must come, and one may still be writing a checkpoint.
constexpr Millis kLeave{30000};

// The same for two ranks if and only if they use one GPU of one host.
std::string gpu_name(int device) {
  cudaDeviceProp properties;
  TARN_CUDA_CALL(cudaGetDeviceProperties, &properties, device);
  std::string boot;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> boot;
  std::ostringstream text;
  text << std::hex << properties.pciDomainID << ":" << properties.pciBusID << ":"
       << properties.pciDeviceID << "/";
  for (char byte : properties.uuid.bytes) text << (static_cast<unsigned>(byte) & 0xffu);
  text << "/" << boot;
  return text.str();
}

// What a rank tells of itself: its GPU, its process.
std::string introduction(int device) {
  return gpu_name(device) + " " + std::to_string(device) + " " + process_place() + " " +
         std::to_string(::getpid());
}

std::vector<PeerProcess> check_introductions(const std::vector<std::string>& all,
                                             const std::string& group) {
  std::vector<PeerProcess> peers(all.size());
  std::map<std::string, size_t> owner;
  for (size_t r = 0; r < all.size(); ++r) {
    std::istringstream in(all[r]);
    std::string gpu, place;
    int device = 0;
    pid_t pid = 0;
    in >> gpu >> device >> place >> pid;
    const auto [found, is_new] = owner.emplace(gpu, r);
    TARN_CHECK_AS(DeviceError, is_new, "nccl: ranks ", found->second, " and ", r, " of group ",
                  group, " are both on cuda:", device,
                  " of one host; every rank needs a GPU of its own (cuda:LOCAL_RANK)");
    if (place == process_place() && pid != ::getpid()) peers[r] = PeerProcess(pid);
  }
  return peers;
}

class NcclGroup final : public ProcessGroup {
 public:
  NcclGroup(std::shared_ptr<Store> store, int rank, int size, const NcclOptions& options)
      : ProcessGroup(rank, size, options.group), state_(std::make_shared<NcclState>()) {
    const auto deadline = Clock::now() + options.group.start_timeout;
    const std::string& name = options.group.name;
    std::vector<PeerProcess> peers = check_introductions(
        exchange(*store, "nccl group " + name, rank, size, introduction(options.device.index),
                 options.group.start_timeout),
        name);
    state_->rank = rank;
    state_->size = size;
    state_->options = options;
    state_->notes = std::make_unique<Notes>(store, name, rank, size, std::move(peers));
    state_->store = std::move(store);
    state_->enter();
    std::vector<int> all(static_cast<size_t>(size));
    std::iota(all.begin(), all.end(), 0);
    queue_ = add_queue("", std::move(all));
    try {
      queue_->connect(deadline);
    } catch (const TimeoutError&) {
      tarn::detail::fail<TimeoutError>("group ", name, ": NCCL did not connect rank ", rank, " of ",
                                       size, " with the others within ",
                                       duration_text(options.group.start_timeout));
    }
    queue_->start();
  }

  ~NcclGroup() override {
    queue_->drain();
    for (auto& [way, queue] : ways_) queue->drain();
    if (!state_->dead().empty()) return;
    state_->notes->publish(Ending{.last = state_->last, .text = "it left the group"});
    const auto deadline = Clock::now() + std::min(kLeave, state_->options.group.timeout);
    queue_->leave(deadline);
    for (auto& [way, queue] : ways_) queue->leave(deadline);
  }

  const char* transport() const override { return "nccl"; }
  void abort(const std::string& reason) override { state_->fail(reason); }

 protected:
  WorkPtr submit(Collective c) override {
    const auto& tensors = c.inputs.empty() ? c.outputs : c.inputs;
    if (!tensors.empty() && tensors[0].device().is_cpu()) {
      return forward(*state_->options.cpu, std::move(c));
    }
    if (c.kind != CollectiveKind::kSend && c.kind != CollectiveKind::kReceive) {
      return queue_->add(std::move(c));
    }
    state_->check_alive();
    const bool sends = c.kind == CollectiveKind::kSend;
    return queue_of(sends ? rank() : c.root, sends ? c.root : rank(), c.tag)->add(std::move(c));
  }

  std::shared_ptr<ProcessGroup> make_subgroup(std::span<const int> ranks, int rank,
                                              GroupOptions options) override {
    NcclOptions own = state_->options;
    own.group = std::move(options);
    if (own.cpu) own.cpu = own.cpu->subgroup(ranks);
    return std::make_shared<NcclGroup>(state_->store, rank, static_cast<int>(ranks.size()), own);
  }

  bool takes(Device device) const override {
    return device == state_->options.device || (state_->options.cpu && device.is_cpu());
  }
  std::string takes_what() const override { return state_->options.device.str(); }

 private:
  std::shared_ptr<NcclQueue> add_queue(const std::string& name, std::vector<int> ranks) {
    const auto queue = std::make_shared<NcclQueue>(state_, name, std::move(ranks));
    state_->add(queue);
    return queue;
  }

  std::shared_ptr<NcclQueue> queue_of(int from, int to, uint32_t tag) {
    const std::lock_guard lock(mutex_);
    auto& queue = ways_[{from, to, tag}];
    if (!queue) {
      std::ostringstream name;
      name << from << ">" << to << "#" << tag;
      queue = add_queue(name.str(), {from, to});
      queue->start();
    }
    return queue;
  }

  std::shared_ptr<NcclState> state_;
  std::shared_ptr<NcclQueue> queue_;  // of collectives
  std::mutex mutex_;
  std::map<std::tuple<int, int, uint32_t>, std::shared_ptr<NcclQueue>> ways_;
};

}  // namespace

std::string why_no_nccl() {
  if (!has_backend(DeviceType::kCUDA)) return why_no_backend(DeviceType::kCUDA);
  try {
    nccl_api();
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

std::shared_ptr<ProcessGroup> make_nccl_group(std::shared_ptr<Store> store, int rank, int size,
                                              NcclOptions options) {
  cuda::expect_ranks();
  const std::string why = why_no_nccl();
  TARN_CHECK_AS(UnsupportedError, why.empty(), "nccl group: ", why);
  const int devices = backend(DeviceType::kCUDA).device_count();
  TARN_CHECK_AS(DeviceError, options.device.is_cuda() && options.device.index < devices,
                "nccl group: rank ", rank, " is to be on ", options.device, ", but this host has ",
                devices, devices == 1 ? " GPU" : " GPUs",
                "; start no more ranks on a host than it has GPUs");
  const auto is_on = [](const char* name) {
    const char* variable = std::getenv(name);
    return variable && std::string(variable) == "1";
  };
  options.blocking_wait = options.blocking_wait || is_on("TARN_NCCL_BLOCKING_WAIT");
  options.check_calls = options.check_calls || is_on("TARN_NCCL_CHECK_CALLS");
  return std::make_shared<NcclGroup>(std::move(store), rank, size, options);
}

}  // namespace tarn::dist

#else

namespace tarn::dist {

std::string why_no_nccl() {
  return "this build of tarn has no NCCL, which connects GPUs; configure with -DTARN_CUDA=ON where "
         "nccl.h is found";
}

std::shared_ptr<ProcessGroup> make_nccl_group(std::shared_ptr<Store>, int, int, NcclOptions) {
  tarn::detail::fail<UnsupportedError>("nccl group: ", why_no_nccl());
}

}  // namespace tarn::dist

#endif
