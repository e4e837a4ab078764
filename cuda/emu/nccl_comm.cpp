// nccl_comm.cpp - one rank's side of an emulated communicator.
#if TARN_HAVE_NCCL

#include "tarn/cuda/emu/nccl_comm.h"

#include <cstring>

#include <sys/socket.h>
#include <unistd.h>

namespace tarn::emu {

NcclComm::NcclComm(int rank, int size, int device, bool blocking)
    : rank_(rank), size_(size), device_(device), blocking_(blocking) {}

void NcclComm::start(const std::string& address) {
  reader_ = std::thread([this, address] { run_reader(address); });
  writer_ = std::thread([this] { run_writer(); });
}

void NcclComm::run_reader(const std::string& address) {
  const int socket = nccl_connect(address);
  if (socket < 0) return fail(ncclSystemError, "nobody listens at " + address);
  {
    const std::lock_guard lock(mutex_);
    socket_ = socket;
    if (closing_) ::shutdown(socket_, SHUT_RDWR);
  }
  NcclMessage message{.kind = NcclKind::kHello, .root = rank_, .type = device_};
  message.count = static_cast<uint64_t>(size_);
  NcclData data;
  bool open = nccl_write(socket, message, nullptr);
  while (open && nccl_read(socket, message, data)) {
    if (message.kind == NcclKind::kError) {
      fail(static_cast<ncclResult_t>(message.root), std::string(data.begin(), data.end()));
    } else if (message.kind == NcclKind::kWelcome || message.kind == NcclKind::kBye) {
      const std::lock_guard lock(mutex_);
      ready_ = true;
      finalizing_ = false;
      changed_.notify_all();
    } else {
      take_answer(message, std::move(data));
    }
  }
  fail(ncclRemoteError, "the connection to the other ranks was closed");
}

// Device code must not wait for the network: it would do so with the emulator's mutex held.
void NcclComm::run_writer() {
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [&] { return closing_ || (socket_ >= 0 && !outgoing_.empty()); });
    if (outgoing_.empty() || socket_ < 0) return;
    const auto [message, data] = std::move(outgoing_.front());
    outgoing_.pop_front();
    lock.unlock();
    const bool written = nccl_write(socket_, message, data.data());
    lock.lock();
    if (!written) return;
  }
}

void NcclComm::fail(ncclResult_t code, const std::string& text) {
  const std::lock_guard lock(mutex_);
  if (error_ == ncclSuccess && !closing_ && !(finalizing_ && code == ncclRemoteError)) {
    error_ = code;
    text_ = text;
  }
  finalizing_ = false;
  changed_.notify_all();
}

void NcclComm::take_answer(const NcclMessage& message, NcclData data) {
  Lock lock = lock_runtime();
  const std::lock_guard own(mutex_);
  const auto found = waiting_.find(message.number);
  if (found == waiting_.end()) return;
  NcclBatch& batch = *found->second.batch;
  batch.answers[found->second.index] = std::move(data);
  if (--batch.missing == 0) complete_outside(*batch.done);
  waiting_.erase(found);
}

void NcclComm::wait_ready() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return ready_ || error_ != ncclSuccess; });
}

ncclResult_t NcclComm::async_error() {
  const std::lock_guard lock(mutex_);
  if (error_ != ncclSuccess) return error_;
  if (!ready_ || finalizing_) return ncclInProgress;
  return lag_-- > 0 ? ncclInProgress : (lag_ = 0, ncclSuccess);
}

ncclResult_t NcclComm::check_ready() {
  const std::lock_guard lock(mutex_);
  if (error_ != ncclSuccess) return error_;
  if (!ready_ || lag_ > 0 || finalizing_ || closing_) {
    text_ = "the communicator is used before the previous call on it is done";
    return ncclInvalidArgument;
  }
  return ncclSuccess;
}

std::string NcclComm::error_text() {
  const std::lock_guard lock(mutex_);
  return text_;
}

ncclResult_t NcclComm::launch(std::vector<NcclCall> calls, cudaStream_t handle) {
  Lock lock = lock_runtime();
  Stream* stream = stream_of(handle);
  if (stream == nullptr || stream->device != device_) return ncclInvalidArgument;
  if (stream->capture != nullptr) return ncclInvalidUsage;  // the stand-in cannot be captured
  for (const NcclCall& call : calls) {
    const void* ends[] = {call.send, call.receive};
    for (int i : {0, 1}) {
      const std::size_t bytes = i == 0 ? call.send_bytes : call.receive_bytes;
      if (bytes == 0) continue;
      if (device_of(ends[i]) == device_ && is_device_range(ends[i], bytes)) continue;
      const std::lock_guard own(mutex_);
      text_ = call.message.describe() + ": " + std::to_string(bytes) +
              " bytes that are not memory of CUDA device " + std::to_string(device_);
      return ncclInvalidArgument;
    }
  }
  auto batch = std::make_shared<NcclBatch>();
  batch->calls = std::move(calls);
  enqueue(
      *stream, [self = shared_from_this(), batch] { self->send(batch); }, lock);
  Operation receive;
  receive.wait = batch->done;
  receive.version = 1;
  receive.run = [batch] {
    if (batch->aborted) return;  // the memory keeps whatever is in it
    MemoryAccess access;
    for (std::size_t i = 0; i < batch->calls.size(); ++i) {
      const NcclCall& call = batch->calls[i];
      if (call.receive_bytes == 0) continue;
      require_device_range(call.receive, call.receive_bytes, "NCCL");
      std::memcpy(call.receive, batch->answers[i].data(), call.receive_bytes);
    }
  };
  enqueue(*stream, std::move(receive), lock);
  const std::lock_guard own(mutex_);
  lag_ = blocking_ ? 0 : 1;
  return blocking_ ? ncclSuccess : ncclInProgress;
}

// In the order of the stream. REQUIRES: the emulator's mutex held.
void NcclComm::send(const std::shared_ptr<NcclBatch>& batch) {
  const std::lock_guard own(mutex_);
  batch->sent = true;
  batch->missing = batch->calls.size();
  batch->answers.resize(batch->calls.size());
  expect_outside(*batch->done);
  if (closing_) {
    batch->aborted = true;
    return complete_outside(*batch->done);
  }
  MemoryAccess access;
  for (std::size_t i = 0; i < batch->calls.size(); ++i) {
    NcclCall& call = batch->calls[i];
    require_device_range(call.send, call.send_bytes, "NCCL");
    const char* from = static_cast<const char*>(call.send);
    call.message.number = next_number_++;
    call.message.bytes = call.send_bytes;
    waiting_[call.message.number] = {batch, i};
    outgoing_.emplace_back(call.message, NcclData(from, from + call.send_bytes));
  }
  changed_.notify_all();
}

void NcclComm::finalize() {
  const std::lock_guard lock(mutex_);
  finalizing_ = true;
  outgoing_.emplace_back(NcclMessage{.kind = NcclKind::kBye}, NcclData());
  changed_.notify_all();
}

void NcclComm::close() {
  {
    const std::lock_guard lock(mutex_);
    closing_ = true;
    if (socket_ >= 0) ::shutdown(socket_, SHUT_RDWR);
    changed_.notify_all();
  }
  if (reader_.joinable()) reader_.join();
  if (writer_.joinable()) writer_.join();
  Lock lock = lock_runtime();
  const std::lock_guard own(mutex_);
  for (auto& [number, waiting] : waiting_) {
    if (std::exchange(waiting.batch->aborted, true)) continue;
    complete_outside(*waiting.batch->done);
  }
  waiting_.clear();
  if (socket_ >= 0) ::close(std::exchange(socket_, -1));
}

void NcclComm::wait_for_device() {
  Lock lock = lock_runtime();
  drain_device(device_, lock);
}

}  // namespace tarn::emu

#endif  // TARN_HAVE_NCCL
